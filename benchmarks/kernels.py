"""`make bench-kernels`: one decode step, ours and everybody's, in the same rounds, every answer checked.

Tables on standard output, then one JSON object on the last line; a plot of time against context in
benchmarks/out/. benchmarks/README.md says how to read them.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

import claims
import peers
import report
from checking import WrongAnswer
from measure import Result, measure
from ours import all_threads
from progress import Steps
from rondel.decoder import kernels
from shapes import CONTEXT, SHAPES, Shape, draw, parse_shape

OUT = Path(__file__).resolve().parent / "out"


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="benchmarks/kernels.py", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--shapes", default=",".join(SHAPES), help="letters or QUERYxKVxDIMxKEYS, by commas")
    parser.add_argument("--peers", default=",".join(peers.MODULES), help="which, by commas; empty = none")
    parser.add_argument("--rounds", type=int, default=None, help="samples per contestant (15; --quick: 3)")
    parser.add_argument("--threads", type=int, default=1, help="for everybody (1)")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="few rounds, the tier in force, context up to 8,192, no claims",
    )
    parser.add_argument(
        "--json", type=Path, default=None, metavar="FILE", help="everything, samples included"
    )
    options = parser.parse_args(argv)
    try:
        options.shapes = [parse_shape(name) for name in options.shapes.split(",") if name]
    except ValueError as error:
        parser.error(str(error))
    options.context = [keys for keys in CONTEXT if keys <= 8_192 or not options.quick]
    options.peers = [name for name in options.peers.split(",") if name]
    if unknown := set(options.peers) - set(peers.MODULES):
        parser.error(f"peers are {', '.join(peers.MODULES)}, got {', '.join(sorted(unknown))}")
    options.rounds = options.rounds or (3 if options.quick else 15)
    if not 1 <= options.threads <= all_threads():
        parser.error(f"threads must be from 1 to {all_threads()}, got {options.threads}")
    return options


def context(options: argparse.Namespace, steps: Steps, kv_heads: int, names: Sequence[str]) -> list[Result]:
    """Time against the number of keys, at G = 4."""
    rounds = max(3, options.rounds // 2)
    found = []
    for keys in options.context:
        shape = Shape(f"{kv_heads} kv heads, {keys:,} keys", 4 * kv_heads, kv_heads, 128, keys)
        steps.begin(shape.name)
        found.append(
            measure(draw(shape), peers=names, rounds=rounds, threads=options.threads, progress=steps.show)
        )
        steps.end()
    return found


def promised(options: argparse.Namespace, steps: Steps) -> report.Claims:
    """What is measured besides the shapes."""
    rounds, threads = options.rounds, options.threads
    steps.begin("prefill")
    prefill = claims.prefill(max(3, rounds // 3), threads)
    steps.begin("append, threads, streams")
    found = report.Claims(
        prefill_ratio=prefill.ratio,
        prefill_extra_mib=prefill.extra_bytes / (1 << 20),
        append_share=claims.append_share(rounds, threads),
        threads2_ratio=claims.two_threads(rounds),
        batch_rate_ratio=claims.many_streams(rounds, threads),
        worst_doubling=claims.worst_doubling(rounds, threads),
    )
    steps.end()
    return found


def main() -> int:
    options, console = arguments(), Console(width=118)
    tiers = [] if options.quick else list(kernels.available())
    about = f"{_processor()}, tier {kernels.TIER}, {options.threads} thread(s), {options.rounds} rounds"
    results: dict[str, Result] = {}
    try:
        with Steps(len(options.shapes) + 2 * len(options.context) + 1) as steps:
            for shape in options.shapes:
                steps.begin(str(shape))
                results[shape.name] = measure(
                    draw(shape),
                    peers=options.peers,
                    rounds=options.rounds,
                    threads=options.threads,
                    tiers=tiers,
                    progress=steps.show,
                )
                steps.end()
            curves = [context(options, steps, 8, options.peers), context(options, steps, 1, ())]
            found = report.Claims() if options.quick else promised(options, steps)
    except WrongAnswer as error:
        print(f"wrong answer: {error}", file=sys.stderr)
        return 1
    summary = report.summarise(results, found)
    console.print(about)
    for result in results.values():
        console.print(report.shape_table(result))
        for name, reason in result.missing.items():
            console.print(f"not measured: {name}: {reason}", style="yellow", markup=False)
    console.print(report.claims_table(results, found))
    _plot(console, curves, about)
    if options.json:
        everything = [*results.values(), *(result for curve in curves for result in curve)]
        data = {"about": about, "summary": summary, "details": report.details(everything)}
        options.json.write_text(json.dumps(data, indent=1))
    print(json.dumps(summary))
    return 0


def _plot(console: Console, curves: Sequence[Sequence[Result]], about: str) -> None:
    try:
        import plot
    except ImportError as error:
        console.print(f"no plot: {error}", style="yellow")
        return
    plot.write_context(curves[0], curves[1], OUT / "context.html", about)
    console.print(f"plot: {OUT / 'context.html'}")


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]} ({all_threads()} usable)" if names else platform.machine()


if __name__ == "__main__":
    sys.exit(main())
