"""How ``rondel load`` shows a run, while it goes on and when it is over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from rich.live import Live
from rich.table import Table
from rich.text import Text

from rondel.client.cli.output import err, facts_table, out
from rondel.client.load.plan import Plan
from rondel.client.load.result import LoadResult
from rondel.client.load.runner import View

_COLUMNS: Final = ("count", "p50", "p90", "p99", "p99.9", "max")


@contextmanager
def live(plan: Plan) -> Iterator[Callable[[View], None]]:
    """A table on standard error that follows the run, if that is a terminal."""
    if not err.is_terminal:
        yield lambda view: None
        return
    with Live(console=err, transient=True, refresh_per_second=4) as screen:
        yield lambda view: screen.update(_progress(plan, view))


def show(result: LoadResult) -> None:
    """Print what came of a run: the times, then the facts and the verdict."""
    for title, summaries in (
        ("latency from the time due, ms", result.latency),
        ("service time, ms", result.service),
    ):
        out.print(_times(title, summaries))
    findings, faults = result.findings, result.faults
    exactly = "to the bit" if result.exact else "within a tolerance: the server's tier is not ours"
    rows = [
        (
            "operations",
            f"{result.completed} of {result.offered}, {result.in_time / result.seconds:.1f}/s in time",
        ),
        ("tokens", f"{result.tokens}, {result.tokens / result.seconds:.1f}/s"),
        ("ended as", ", ".join(f"{name} {count}" for name, count in result.statuses.items()) or "nothing"),
        (
            "answers",
            f"{findings.checked} compared {exactly}, {findings.wrong} wrong, {findings.unchecked} not",
        ),
        (
            "generator",
            f"late by {result.lag['p99']:.3f} ms (p99), at work {100 * result.busy:.0f}% of the time",
        ),
        (
            "inflicted",
            f"{faults.cancels} cancels, {faults.reconnects} reconnects, {faults.stalls} stalls, "
            f"{faults.kills} kills",
        ),
        ("verdict", _verdict(result)),
    ]
    out.print(facts_table("rondel load", rows))


def _verdict(result: LoadResult) -> str:
    if result.findings.wrong:
        return f"WRONG ANSWERS: {result.findings.first_wrong}"
    if result.invalid is not None:
        return f"INVALID: {result.invalid}"
    return "; ".join(result.missed) or "good"


def _times(title: str, summaries: Mapping[str, Mapping[str, float]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("")
    for column in _COLUMNS:
        table.add_column(column, justify="right")
    for name, summary in summaries.items():
        values = (
            f"{summary[column]:.0f}" if column == "count" else f"{summary[column]:.3f}" for column in _COLUMNS
        )
        table.add_row(name, *values)
    return table


def _progress(plan: Plan, view: View) -> Table | Text:
    if view.elapsed < 0:
        return Text(f"opening {plan.streams} streams on {plan.target}")
    progress = view.progress
    rows = [
        ("time", f"{view.elapsed:.1f} of {plan.duration:g} s"),
        ("operations", f"{progress.done} done, {progress.failed} failed, {progress.waiting} waiting"),
        ("latency", f"p50 {progress.p50:.2f} ms, p99 {progress.p99:.2f} ms"),
        ("answers", f"{progress.findings.checked} compared, {progress.findings.wrong} wrong"),
    ]
    return facts_table(f"rondel load {plan.target}", rows)
