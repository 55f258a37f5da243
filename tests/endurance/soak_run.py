"""``make soak``: 500 streams under load, faults and bad messages; is all answered right, and given back?"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

from rich.console import Console
from rich.live import Live
from rich.table import Table
from soak import Course, Outcome, Settings, soak

LEAST_RATE = 500.0
"""Answers per second: 300,000 in ten minutes."""
MOST_SLOPE = 8192.0
"""Bytes per second. Some hundred calls are made in each: a leak of 100 bytes per call would be more."""
WARM_SECONDS = 240.0
"""Shorter runs are not held to it: pools and bounded tables fill up first, and streams come and go."""
TELL_SECONDS = 20.0
err = Console(stderr=True, highlight=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--duration", type=float, default=600.0, help="seconds")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--processes", type=int, default=2, help="that send and measure")
    parser.add_argument("--arena-file", default=None, help="keep the streams in this file, not in memory")
    parser.add_argument("--most-slope", type=float, default=MOST_SLOPE, help="bytes of memory per second")
    arguments = parser.parse_args()
    settings = Settings(
        duration=arguments.duration,
        seed=int.from_bytes(os.urandom(4)) if arguments.seed is None else arguments.seed,
        streams=arguments.streams,
        processes=arguments.processes,
        arena_file=arguments.arena_file,
    )
    err.print(f"seed {settings.seed}")
    with Live(console=err, auto_refresh=False, transient=True) as screen:
        outcome = soak(settings, Teller(settings, screen).tell)
    report(outcome)
    numbers = outcome.numbers()
    failed = failures(numbers, settings.duration, arguments.most_slope)
    for failure in failed:
        err.print(f"FAILED: {failure}", style="bold red")
    sys.stdout.write(json.dumps(numbers) + "\n")
    return int(bool(failed))


def failures(numbers: dict[str, float], duration: float, most_slope: float) -> list[str]:
    """What is not as it should be."""
    found = [f"{name}: {numbers[name]:g}" for name in ("wrong", "unexpected_errors") if numbers[name]]
    found += [f"{name}: {numbers[name]:g}" for name in ("fd_delta", "tasks_delta") if numbers[name] > 0]
    if numbers["budget_delta"]:
        found.append(f"budget_delta: {numbers['budget_delta']:g}")
    if numbers["answers"] < LEAST_RATE * duration:
        found.append(f"{numbers['answers']:g} answers, {LEAST_RATE * duration:g} were wanted")
    if duration >= WARM_SECONDS and numbers["rss_slope_bytes_per_s"] > most_slope:
        found.append(f"memory grows by {numbers['rss_slope_bytes_per_s']:g} bytes per second")
    return found


class Teller:
    """Shows how it goes: a table on a terminal, else a line now and then."""

    def __init__(self, settings: Settings, screen: Live) -> None:
        self._settings = settings
        self._screen = screen
        self._told = time.monotonic()

    def tell(self, course: Course) -> None:
        if course.view is None:
            return
        if err.is_terminal:
            self._screen.update(self._table(course), refresh=True)
        elif time.monotonic() - self._told >= TELL_SECONDS:
            self._told = time.monotonic()
            err.print(", ".join(f"{name} {value}" for name, value in rows(course, self._settings.duration)))

    def _table(self, course: Course) -> Table:
        table = Table(title="soak", title_justify="left", show_header=False)
        for name, value in rows(course, self._settings.duration):
            table.add_row(name, value)
        return table


def rows(course: Course, duration: float) -> list[tuple[str, str]]:
    """How it goes, in words."""
    view, now, start = course.view, course.now, course.start
    if view is None or view.elapsed < 0:
        return [("time", "opening streams")]
    findings, progress = view.progress.findings, view.progress
    return [
        ("time", f"{view.elapsed:.0f} of {duration:g} s"),
        ("answers", f"{findings.checked} compared, {findings.wrong} wrong"),
        ("operations", f"{progress.done} done, {progress.failed} failed, {progress.waiting} waiting"),
        ("latency", f"p50 {progress.p50:.1f} ms, p99 {progress.p99:.1f} ms"),
        ("memory", f"{now.rss / 2**20:.1f} MiB, at the start {start.rss / 2**20:.1f}"),
        ("streams", f"{now.streams}, {now.reserved / 2**20:.0f} MiB reserved"),
        ("descriptors", f"{now.fds}, tasks {now.tasks}, threads {now.threads}"),
    ]


def report(outcome: Outcome) -> None:
    """What came of it, as a table."""
    load, start, end = outcome.load, outcome.start, outcome.end
    table = Table(title="soak", title_justify="left", show_header=False)
    faults = load.faults
    for name, value in (
        ("answers", f"{load.findings.checked} compared to the bit, {load.findings.wrong} wrong"),
        ("operations", ", ".join(f"{status} {count}" for status, count in load.statuses.items())),
        (
            "inflicted",
            f"{faults.cancels} cancels, {faults.reconnects} reconnects, {faults.stalls} stalls, "
            f"{faults.kills} kills",
        ),
        ("bad messages", ", ".join(f"{name} {count}" for name, count in outcome.vandals.items())),
        ("memory", f"{start.rss / 2**20:.1f} to {end.rss / 2**20:.1f} MiB, {outcome.slope:.0f} bytes/s"),
        ("descriptors", f"{start.fds} to {end.fds}"),
        ("tasks", f"{start.tasks} to {end.tasks}"),
        ("reserved", f"{start.reserved} to {end.reserved} bytes"),
        ("streams", f"{start.streams} to {end.streams}"),
        ("processor", f"{end.cpu_seconds - start.cpu_seconds:.0f} s of the server"),
    ):
        table.add_row(name, value)
    err.print(table)
    for line in [load.findings.first_wrong, *dict.fromkeys(outcome.complaints)][:30]:
        if line is not None:
            err.print(line, markup=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
