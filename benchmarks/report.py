"""Tables for people, one JSON object for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from measure import Result
from ours import FLOAT32, INT8
from shapes import GROUPED
from timing import Measure, cpu, geomean, ratio, wall, worst


@dataclass(frozen=True, slots=True)
class Claims:
    """What is measured apart from the decode shapes; None = not measured in this run."""

    prefill_ratio: float | None = None
    prefill_extra_mib: float | None = None
    append_share: float | None = None
    threads2_ratio: float | None = None
    batch_rate_ratio: float | None = None
    worst_doubling: float | None = None


def shape_table(result: Result) -> Table:
    """Everybody on one shape, fastest first."""
    table = Table(title=f"{result.shape.name} · {result.shape}", title_justify="left", title_style="bold")
    table.add_column("", no_wrap=True)
    for column in ("median µs", "CPU ms", "spread", "× ours", "GB/s of int8 cache", "error"):
        table.add_column(column, justify="right")
    ours = result.timings[INT8].us
    for name, timing in sorted(result.timings.items(), key=lambda item: item[1].us):
        table.add_row(
            name,
            f"{timing.us:,.0f}",
            f"{timing.cpu_us / 1e3:.2f}",
            f"{timing.spread:.2f}",
            f"{timing.us / ours:.2f}",
            f"{result.bytes_read['int8'] / timing.us / 1e3:.1f}",
            f"{result.errors[name]:.0e}",
            style="bold" if name == INT8 else "",
        )
    for storage, loops in result.reads.items():
        name, timing = min(loops.items(), key=lambda item: item[1].us)
        rate = result.bytes_read[storage] / timing.us / 1e3
        table.add_row(
            f"reading {storage}, {rate:.1f} GB/s ({name})",
            f"{timing.us:,.0f}",
            f"{timing.cpu_us / 1e3:.2f}",
            f"{timing.spread:.2f}",
            f"{timing.us / ours:.2f}",
            "",
            "",
            style="dim",
        )
    return table


def claims_table(results: Mapping[str, Result], claims: Claims) -> Table:
    """What is promised and what was found."""
    by_wall, by_cpu = decode_numbers(results, wall), decode_numbers(results, cpu)
    rows: Sequence[tuple[str, float | None, float | None, str]] = (
        *(
            (name, by_wall[key], by_cpu[key], target)
            for name, key, target in (
                ("fastest peer / ours, worst of a b c e f", "worst", "≥ 3.5"),
                ("  geometric mean of a b c e f", "geomean", "≥ 6"),
                ("  d (no groups)", "ratio d", "≥ 1.6"),
                ("part of the read bandwidth, d", "share d", "≥ 0.90"),
                ("  b", "share b", "≥ 0.80"),
                ("  f", "share f", "≥ 0.65"),
                ("  float32 on b", "share b float32", "≥ 0.80"),
                ("float32 / int8, time on b", "float32 b", "≥ 2.5"),
            )
        ),
        ("two threads, 8/1×128 over 65,536", claims.threads2_ratio, None, "≥ 1.7"),
        ("64 streams of 2,048: rate per byte of one stream", claims.batch_rate_ratio, None, "≥ 0.90"),
        ("prefill of 512 on 4,096: PyTorch float32 / ours", claims.prefill_ratio, None, "≥ 1.5"),
        ("  memory beyond its output, MiB", claims.prefill_extra_mib, None, "< 8"),
        ("append of a token / attending, 32 layers", claims.append_share, None, "< 0.10"),
        ("doubling the context costs at most", claims.worst_doubling, None, "≤ 2.6"),
    )
    table = Table("", title="promised and found", title_justify="left", title_style="bold")
    for column in ("found", "by CPU time", "target"):
        table.add_column(column, justify="right")
    for name, found, found_cpu, target in rows:
        numbers = ["–" if number is None else f"{number:.2f}" for number in (found, found_cpu)]
        table.add_row(name, *numbers, target, style=_style(found, target))
    return table


def decode_numbers(results: Mapping[str, Result], by: Measure) -> dict[str, float | None]:
    """The ratios that the decode shapes give, by one way to take time; None = not measured in this run."""
    measured = {name: result.ratio(by) for name, result in results.items()}
    ratios = {name: times for name, times in measured.items() if times is not None}
    grouped = [ratios[name] for name in GROUPED if name in ratios]
    found = {
        "worst": worst(grouped),
        "geomean": geomean(grouped),
        "ratio d": ratios.get("d"),
        **{f"share {x}": results[x].share(by=by) if x in results else None for x in ("b", "d", "f")},
        "share b float32": None,
        "float32 b": None,
    }
    if "b" in results and FLOAT32 in results["b"].timings:
        timings = results["b"].timings
        found["share b float32"] = results["b"].share("float32", by)
        found["float32 b"] = ratio(timings[FLOAT32], timings[INT8], by)
    return found


def _style(found: float | None, target: str) -> str:
    if found is None:
        return "dim"
    sign, _, limit = target.partition(" ")
    met = {"≥": found >= float(limit), "≤": found <= float(limit), "<": found < float(limit)}[sign]
    return "green" if met else "red"


def summarise(results: Mapping[str, Result], claims: Claims) -> dict[str, Any]:
    """The last line of ``make bench-kernels``; null = not measured in this run.

    A run ends with an error rather than this line when an answer was wrong.
    """
    numbers = decode_numbers(results, wall)
    return {
        "worst_ratio": _short(numbers["worst"]),
        "d_ratio": _short(numbers["ratio d"]),
        "geomean_gqa": _short(numbers["geomean"]),
        "bandwidth": {name: _short(numbers[f"share {name}"]) for name in ("b", "d", "f")},
        "per_shape": {
            name: {
                "ours_us": _short(result.timings[INT8].us),
                "peers_us": {peer: _short(timing.us) for peer, timing in result.peers.items()},
                "read_us": _short(result.read_us()),
                "gb_s": _short(result.bytes_read["int8"] / result.timings[INT8].us / 1e3),
            }
            for name, result in results.items()
        },
        "f32_bandwidth_b": _short(numbers["share b float32"]),
        "threads2_ratio": _short(claims.threads2_ratio),
        "batch_rate_ratio": _short(claims.batch_rate_ratio),
        "prefill_ratio": _short(claims.prefill_ratio),
        "checked": True,
    }


def details(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Every row of every shape, samples included."""
    return [
        {
            "shape": str(result.shape),
            "keys": result.shape.keys,
            "kv_heads": result.shape.kv_heads,
            "rows": {
                name: {"us": timing.us, "cpu_us": timing.cpu_us, "samples_s": timing.wall}
                for name, timing in result.timings.items()
            },
            "errors": result.errors,
            "reads_us": {
                storage: {name: timing.us for name, timing in loops.items()}
                for storage, loops in result.reads.items()
            },
            "bytes_read": result.bytes_read,
            "missing": result.missing,
        }
        for result in results
    ]


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
