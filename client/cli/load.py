"""``rondel load``: a server under load, its answers checked, and a verdict as an exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rondel.client.cli.access import Access, with_access
from rondel.client.cli.output import print_json
from rondel.client.cli.signals import nothing_to_undo
from rondel.client.cli.usage import WrongUsage, wrong_usage

if TYPE_CHECKING:
    from rondel.client.load.schedule import Schedule

_LOAD, _WORK, _FAULTS, _VERDICT = "Load", "What streams do", "Faults", "Verdict"


@with_access
def load(
    target: Annotated[str, typer.Argument(help="host:port or unix:/path of the server.")],
    rate: Annotated[
        float | None, typer.Option(help="Operations per second, sent on time.", rich_help_panel=_LOAD)
    ] = None,
    closed: Annotated[
        int | None,
        typer.Option(help="Instead: so many under way at any time; hides stalls.", rich_help_panel=_LOAD),
    ] = None,
    poisson: Annotated[
        bool, typer.Option("--poisson", help="Exponential gaps, not even ones.", rich_help_panel=_LOAD)
    ] = False,
    streams: Annotated[int, typer.Option(help="Open streams.", rich_help_panel=_LOAD)] = 16,
    duration: Annotated[float, typer.Option(help="Seconds.", rich_help_panel=_LOAD)] = 10.0,
    warmup: Annotated[
        float, typer.Option(help="Of them, seconds at the start not counted.", rich_help_panel=_LOAD)
    ] = 0.0,
    drain: Annotated[
        float, typer.Option(help="Seconds for what is under way at the end.", rich_help_panel=_LOAD)
    ] = 10.0,
    timeout: Annotated[float, typer.Option(help="Seconds for a call.", rich_help_panel=_LOAD)] = 30.0,
    processes: Annotated[int, typer.Option(help="Processes that send.", rich_help_panel=_LOAD)] = 1,
    seed: Annotated[int, typer.Option(help="The same seed sends the same.", rich_help_panel=_LOAD)] = 0,
    layers: Annotated[int, typer.Option(help="Layers of a stream.", rich_help_panel=_WORK)] = 4,
    query_heads: Annotated[int, typer.Option(help="Query heads.", rich_help_panel=_WORK)] = 8,
    kv_heads: Annotated[int, typer.Option(help="Key and value heads.", rich_help_panel=_WORK)] = 2,
    head_dim: Annotated[int, typer.Option(help="Size of a head.", rich_help_panel=_WORK)] = 64,
    window: Annotated[int, typer.Option(help="Tokens that a query sees.", rich_help_panel=_WORK)] = 1024,
    tokens_per_step: Annotated[
        int, typer.Option(help="Tokens that a step stores in each layer.", rich_help_panel=_WORK)
    ] = 1,
    prompt_tokens: Annotated[
        int, typer.Option(help="Tokens that a new stream stores at once.", rich_help_panel=_WORK)
    ] = 0,
    attend_fraction: Annotated[
        float, typer.Option(help="Share of operations that only attend.", rich_help_panel=_WORK)
    ] = 0.0,
    truncate_fraction: Annotated[
        float, typer.Option(help="Share that takes a step back.", rich_help_panel=_WORK)
    ] = 0.0,
    fork_fraction: Annotated[
        float, typer.Option(help="Share that forks, attends and closes the fork.", rich_help_panel=_WORK)
    ] = 0.0,
    move_fraction: Annotated[
        float, typer.Option(help="Share that exports, imports and goes on there.", rich_help_panel=_WORK)
    ] = 0.0,
    batch: Annotated[
        int, typer.Option(help="Streams that step together, in one call.", rich_help_panel=_WORK)
    ] = 1,
    stream_operations: Annotated[
        int | None,
        typer.Option(
            help="Operations until a stream is closed and another opened; default: never.",
            rich_help_panel=_WORK,
        ),
    ] = None,
    cancel_fraction: Annotated[
        float, typer.Option(help="Share of calls cancelled under way.", rich_help_panel=_FAULTS)
    ] = 0.0,
    reconnects: Annotated[
        int, typer.Option(help="Broken connections, per process.", rich_help_panel=_FAULTS)
    ] = 0,
    stalls: Annotated[
        int, typer.Option(help="Times that another client stands still.", rich_help_panel=_FAULTS)
    ] = 0,
    stall_seconds: Annotated[float, typer.Option(help="How long it does.", rich_help_panel=_FAULTS)] = 1.0,
    kills: Annotated[int, typer.Option(help="Other clients that are killed.", rich_help_panel=_FAULTS)] = 0,
    check_fraction: Annotated[
        float,
        typer.Option(help="Share of streams whose answers are compared.", rich_help_panel=_VERDICT),
    ] = 1.0,
    slo_p99_ms: Annotated[
        float | None, typer.Option(help="Largest p99 of the latency.", rich_help_panel=_VERDICT)
    ] = None,
    slo_errors: Annotated[
        float | None,
        typer.Option(help="Largest share of operations that fail, 0 to 1.", rich_help_panel=_VERDICT),
    ] = None,
    max_lag_ms: Annotated[
        float,
        typer.Option(
            help="p99 of what the generator itself may be late by; beyond it the run is INVALID.",
            rich_help_panel=_VERDICT,
        ),
    ] = 20.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the line of JSON only, without the table.")
    ] = False,
    *,
    access: Access,
) -> None:
    """Put a server under load, check its answers, and say whether it held.

    An operation is a step of one stream (with --batch, of so many at once) through all its layers, or one of
    the others asked for. With --rate they are sent on time whatever the server does, and latency counts from
    the time at which each was due: a stall is seen by all who would have come meanwhile. A stream does one
    thing at a time, so there should be more of them than rate times service time. Prints a table, then one
    line of JSON.

    Exit code 0 = good, 1 = wrong answers or an SLO missed, 2 = wrong usage, 3 = INVALID: the generator was
    too slow, its figures say nothing about the server.
    """
    with nothing_to_undo():
        from rondel.client.cli.load_view import live, show
        from rondel.client.load.faults import Faults
        from rondel.client.load.plan import Plan, Slo
        from rondel.client.load.runner import run_load
        from rondel.client.load.workload import Workload
    with wrong_usage():
        plan = Plan(
            target=target,
            access=access,
            schedule=_schedule(rate, closed, poisson, seed),
            workload=Workload(
                layers=layers,
                query_heads=query_heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                window=window,
                tokens=tokens_per_step,
                prompt=prompt_tokens,
                attends=attend_fraction,
                truncates=truncate_fraction,
                forks=fork_fraction,
                moves=move_fraction,
                batch=batch,
                operations=stream_operations,
                seed=seed,
            ),
            streams=streams,
            processes=processes,
            duration=duration,
            warmup=warmup,
            drain=drain,
            timeout=timeout,
            check=check_fraction,
            faults=Faults(
                cancels=cancel_fraction,
                reconnects=reconnects,
                stalls=stalls,
                stall_seconds=stall_seconds,
                kills=kills,
            ),
            max_lag_ms=max_lag_ms,
            slo=Slo(p99_ms=slo_p99_ms, errors=slo_errors),
        )
    try:
        with live(plan) as tell:
            result = run_load(plan, tell)
    except ModuleNotFoundError as error:
        raise WrongUsage(str(error)) from None
    if not as_json:
        show(result)
    print_json(result.document())
    if result.exit_code:
        raise typer.Exit(result.exit_code)


def _schedule(rate: float | None, closed: int | None, poisson: bool, seed: int) -> Schedule:
    from rondel.client.load.schedule import Closed, Constant, Poisson

    if rate is not None and closed is None:
        return Poisson(rate=rate, seed=seed) if poisson else Constant(rate=rate)
    if closed is not None and rate is None and not poisson:
        return Closed(concurrency=closed)
    raise WrongUsage("give either --rate, perhaps with --poisson, or --closed")
