"""A server under mixed load, with everything happening to it that can, for as long as one likes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from fuzz_run import victim
from watched import Vitals, Watched

from rondel.client.load.faults import Faults
from rondel.client.load.plan import Plan
from rondel.client.load.recorder import OK
from rondel.client.load.result import LoadResult
from rondel.client.load.runner import View, run_load
from rondel.client.load.schedule import Closed
from rondel.client.load.workload import Workload

REFUSALS: Final = {"BUDGET_EXCEEDED", "OVERLOADED"}
"""What a server may say to an operation, which is then tried again: those who send bad messages also open
streams as large as they can."""
SAMPLE_SECONDS: Final = 1.0
VANDAL_RATE: Final = 20.0
"""Bad messages per second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a soak is to be."""

    duration: float
    seed: int
    streams: int = 500
    batch: int = 20
    processes: int = 2
    under_way: int = 8
    """Operations, each of them on a batch of streams."""
    lease: float = 30.0
    """Seconds; what killed clients leave is given back after so long."""
    arena_file: str | None = None

    def plan(self, target: str) -> Plan:
        """The load."""
        workload = Workload(
            layers=2,
            query_heads=4,
            kv_heads=2,
            head_dim=32,
            window=64,
            prompt=32,
            batch=self.batch,
            attends=0.05,
            truncates=0.05,
            forks=0.02,
            moves=0.01,
            operations=120,
            seed=self.seed,
        )
        faults = Faults(
            cancels=0.2,
            reconnects=self._times(10.0),
            kills=self._times(20.0),
            stalls=self._times(15.0),
            stall_seconds=min(2.0, self.duration / 5),
        )
        return Plan(
            target=target,
            schedule=Closed(concurrency=self.under_way),
            workload=workload,
            streams=self.streams,
            processes=self.processes,
            duration=self.duration,
            drain=60.0,
            timeout=60.0,
            faults=faults,
        )

    def _times(self, every: float) -> int:
        """How often something happens that comes about every so many seconds."""
        return max(1, round(self.duration / every))


@dataclass(slots=True)
class Course:
    """How a soak goes, or has gone."""

    start: Vitals
    now: Vitals
    view: View | None = None
    samples: list[tuple[float, int]] = field(default_factory=list)
    """Seconds of load, and the server's resident bytes."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a soak."""

    load: LoadResult
    vandals: dict[str, int]
    start: Vitals
    end: Vitals
    slope: float
    complaints: tuple[str, ...]

    def numbers(self) -> dict[str, float]:
        """For the last line."""
        return {
            "answers": self.load.findings.checked,
            "wrong": self.load.findings.wrong + self.vandals.get("changed", 0),
            "rss_slope_bytes_per_s": round(self.slope, 1),
            "fd_delta": self.end.fds - self.start.fds,
            "tasks_delta": self.end.tasks - self.start.tasks,
            "budget_delta": self.end.reserved - self.start.reserved,
            "unexpected_errors": len(self.complaints),
        }


def slope(samples: list[tuple[float, int]]) -> float:
    """Bytes per second over the second half of the samples, by least squares through the least of each tenth
    of it: what is in use for a moment comes and goes, and what leaks stays. 0 if there are too few."""
    half = samples[len(samples) // 2 :]
    if len(half) < 3:
        return 0.0
    parts = np.array_split(np.array(half, np.float64), min(10, len(half)))
    seconds, sizes = np.array([part[part[:, 1].argmin()] for part in parts]).T
    return float(np.polyfit(seconds - seconds[0], sizes, 1)[0])


def soak(settings: Settings, show: Callable[[Course], None] = lambda course: None) -> Outcome:
    """Carry it out. ``show`` is told how it goes, some times per second."""
    options = {} if settings.arena_file is None else {"arena_file": settings.arena_file}
    with (
        tempfile.TemporaryDirectory() as folder,
        victim(Path(folder), budget_bytes=1 << 30, idle_lease_seconds=settings.lease, **options) as server,
    ):
        course = Course(server.vitals(), server.vitals())
        vandals = Vandals(server.address, settings)

        def seen(view: View) -> None:
            course.view = view
            if view.elapsed >= 0:
                vandals.begin()
                if view.elapsed >= len(course.samples) * SAMPLE_SECONDS:
                    course.now = server.vitals()
                    course.samples.append((view.elapsed, course.now.rss))
            show(course)

        try:
            load = run_load(settings.plan(server.address), seen)
            found = vandals.end()
        finally:
            vandals.kill()
        end = server.settled(course.start, 2 * settings.lease + 10)
        complaints = [*_of_load(load), *_of_vandals(found, vandals.told), *_of_server(server)]
    return Outcome(load, found, course.start, end, slope(course.samples), tuple(complaints))


class Vandals:
    """A process that sends bad messages."""

    def __init__(self, target: str, settings: Settings) -> None:
        self._command = [sys.executable, str(Path(__file__).with_name("fuzz_run.py")), "--attackers=2"]
        self._command += [f"--target={target}", f"--rate={VANDAL_RATE:g}", f"--seed={settings.seed}"]
        self._command += [f"--duration={settings.duration:g}"]
        self._process: subprocess.Popen[str] | None = None
        self.told = ""
        """What they have said of their faults, and how to see them again."""

    def begin(self) -> None:
        """Once; again it does nothing."""
        if self._process is None:
            self._process = subprocess.Popen(
                self._command,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )

    def end(self) -> dict[str, int]:
        """What they have found; with ``hangs`` above 0 if they found no end themselves."""
        numbers = {"hangs": 1}
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired, ValueError, IndexError):
                said, self.told = self._process.communicate(timeout=120)
                numbers = json.loads(said.splitlines()[-1])
        return numbers

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


def _of_load(load: LoadResult) -> list[str]:
    found = [
        f"{count} operations ended as {status}"
        for status, count in load.statuses.items()
        if status not in {OK, *REFUSALS}
        for _ in range(count)
    ]
    if load.findings.unchecked:
        found.append(f"{load.findings.unchecked} answers were not compared")
    if load.invalid is not None and "come to an end" in load.invalid:
        found.append(load.invalid)
    return found


def _of_vandals(numbers: dict[str, int], told: str) -> list[str]:
    kinds = ("crashes", "hangs", "changed", "undocumented")
    said = [line for line in told.splitlines() if line.startswith(tuple(f"{kind}: " for kind in kinds))]
    unsaid = sum(numbers.get(kind, 0) for kind in kinds) - len(said)
    return [*said, *["bad messages: a fault of which nothing was said"] * max(0, unsaid)]


def _of_server(server: Watched) -> list[str]:
    code = server.stop()
    return ([] if code == 0 else [f"the server ended with exit code {code}"]) + server.complaints()
