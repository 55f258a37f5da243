"""`make bench-rpc`: what the service costs over its kernels, beside a server that only echoes.

Both servers are processes on one core, the client is one on another where there is one. Tables, then one JSON
object on the last line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from progress import Steps
from rondel.decoder import kernels, pool
from service import added, batching, decoding
from service.batching import STREAMS, Batching
from service.decoding import Decoding
from service.drive import connect
from service.processes import Addresses, servers
from shapes import Shape
from timing import Timing

SHAPES: Final = (
    Shape("small", 9, 3, 64, 128),
    Shape("large", 32, 8, 128, 4_096),
    Shape("long", 32, 8, 128, 32_768),
)
"""A small model early in its stream, where next to nothing is left but the service; a large one; a
large one with a long stream."""


@dataclass(frozen=True, slots=True)
class Found:
    """All that was measured."""

    decoding: dict[str, Decoding]
    batching: Batching
    added: dict[str, dict[int, float]]


async def run(rondel: Addresses, bare: Addresses, rounds: int) -> Found:
    """All measurements, over TCP but for the last."""
    small = SHAPES[0]
    async with AsyncExitStack() as stack:
        ours = await stack.enter_async_context(connect(rondel.tcp))
        theirs = await stack.enter_async_context(connect(bare.tcp))
        steps = stack.enter_context(Steps(2 + len(SHAPES)))
        decoded = {}
        for shape in SHAPES:
            steps.begin(f"Decode, {shape}")
            decoded[shape.name] = await decoding.measure(ours, theirs, shape, rounds)
            steps.end()
        steps.begin("one Step of many streams")
        batched = await batching.measure(ours, theirs, small, rounds)
        steps.end()
        steps.begin("added to the kernels")
        return Found(decoded, batched, await added.measure(rondel, small, rounds))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks/rpc.py", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=30, help="rounds of everything (30)")
    options = parser.parse_args(argv)
    pool.set_threads(1)
    with servers() as (rondel, bare):
        found = asyncio.run(run(rondel, bare, options.rounds))
    console = Console(width=118)
    console.print(f"tier {kernels.TIER}, {options.rounds} rounds; medians")
    _print_decoding(console, found.decoding)
    _print_batching(console, found.batching)
    _print_added(console, found.added)
    print(json.dumps(_summary(found)))
    return 0


def _print_decoding(console: Console, decoded: dict[str, Decoding]) -> None:
    names = {
        "step": "one step at a time",
        "echo": "the echo, one at a time",
        "kernel": "inside the kernels",
        "many": f"per step, {decoding.CALLS} calls with {decoding.ON_THE_WAY} on the way each",
        "echo_many": "the echo, so many",
        "kernel_many": "inside the kernels, so many streams",
    }
    table = _table("Decode over TCP, beside a bidirectional echo of as many bytes", *map(str, SHAPES))
    for name, text in names.items():
        table.add_row(text, *(_us(getattr(decoded[shape.name], name)) for shape in SHAPES))
    table.add_row("× echo and kernels", *(f"{decoded[shape.name].p50_over_echo:.2f}" for shape in SHAPES))
    throughput = (f"{decoded[shape.name].throughput_over_echo:.2f}" for shape in SHAPES)
    table.add_row("throughput over theirs", *throughput)
    console.print(table)


def _print_batching(console: Console, batched: Batching) -> None:
    table = _table(f"{STREAMS} streams of {SHAPES[0]}", "rondel", "echo")
    table.add_row("as many unary calls at once", _us(batched.calls), _us(batched.echo_calls))
    table.add_row("one Step", _us(batched.step), _us(batched.echo_step))
    table.add_row("times faster", f"{batched.gain:.1f}", f"{batched.echo_gain:.1f}")
    console.print(table)


def _print_added(console: Console, microseconds: dict[str, dict[int, float]]) -> None:
    table = _table("µs of a batch beyond its kernels", *(f"{count} streams" for count in added.COUNTS))
    for name, row in microseconds.items():
        table.add_row(name, *(f"{row[count]:,.0f}" for count in added.COUNTS))
    console.print(table)


def _table(title: str, *columns: str) -> Table:
    table = Table("", title=title, title_justify="left", title_style="bold")
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _us(timing: Timing) -> str:
    return f"{timing.us:,.0f} µs"


def _summary(found: Found) -> dict[str, Any]:
    decoded = found.decoding.values()
    return {
        "decode_p50_over_echo": round(max(each.p50_over_echo for each in decoded), 3),
        "decode_throughput_over_echo": round(min(each.throughput_over_echo for each in decoded), 3),
        "step64_over_echo_ratio": round(found.batching.over_echo, 3),
        "added_us": found.added,
        "decode": {
            name: {"p50": round(each.p50_over_echo, 3), "throughput": round(each.throughput_over_echo, 3)}
            for name, each in found.decoding.items()
        },
    }


if __name__ == "__main__":
    sys.exit(main())
