"""What a load run is to be: one frozen description, checked once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Final

from rondel.client.access import AccessOptions
from rondel.client.load.faults import Faults, spread
from rondel.client.load.job import Job
from rondel.client.load.schedule import Closed, Constant, Poisson, Schedule
from rondel.client.load.workload import Workload
from rondel.decoder.errors import InvalidSpec

MAX_PROCESSES: Final = 256
VICTIM_BATCHES: Final = 4
_VICTIM_NUMBERS: Final = 1 << 40
"""Numbers of the victims' streams: none that others have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """What a server is held to. None = nothing is asked."""

    p99_ms: float | None = None
    """p99 of the latency of all operations, in milliseconds."""
    errors: float | None = None
    """Share of operations that may fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A run. Raises InvalidSpec."""

    target: str
    access: AccessOptions = field(default_factory=AccessOptions, repr=False)
    schedule: Schedule
    workload: Workload = field(default_factory=Workload)
    streams: int = 16
    processes: int = 1
    duration: float = 10.0
    """Seconds in which operations begin, warm-up included."""
    warmup: float = 0.0
    """Seconds at the start that are not counted."""
    drain: float = 10.0
    """Seconds that what is under way then may take; what takes longer counts as UNFINISHED."""
    timeout: float = 30.0
    """Seconds for a call, the client's own retries included."""
    check: float = 1.0
    """Share of the streams' lives whose answers are compared with ours."""
    faults: Faults = field(default_factory=Faults)
    max_lag_ms: float = 20.0
    """p99 of what the generator itself may be late by; beyond it the run is INVALID."""
    slo: Slo = field(default_factory=Slo)

    def __post_init__(self) -> None:
        if not 1 <= self.processes <= MAX_PROCESSES:
            raise InvalidSpec(
                f"processes must be from 1 to {MAX_PROCESSES}, got {self.processes}", field="processes"
            )
        least = self.processes
        if isinstance(self.schedule, Closed):
            least = self.schedule.concurrency
            if least < self.processes:
                raise InvalidSpec(
                    f"concurrency must be at least the number of processes, {self.processes}, got {least}",
                    field="concurrency",
                )
        least *= self.workload.batch
        if not least <= self.streams <= 1 << 20:
            raise InvalidSpec(
                f"streams must be from {least} (a batch for each process, and each operation under way) to "
                f"{1 << 20}, got {self.streams}",
                field="streams",
            )
        for name in ("duration", "timeout", "max_lag_ms"):
            _check_number(name, getattr(self, name), above=True)
        for name in ("warmup", "drain"):
            _check_number(name, getattr(self, name))
        if self.warmup >= self.duration:
            raise InvalidSpec(f"warmup must be shorter than duration, got {self.warmup:g} s", field="warmup")
        if not 0 <= self.check <= 1:
            raise InvalidSpec(f"check must be from 0 to 1, got {self.check!r}", field="check")
        for name in ("p99_ms", "errors"):
            if getattr(self.slo, name) is not None:
                _check_number(name, getattr(self.slo, name))

    def jobs(self) -> list[Job]:
        """One for each process that measures."""
        breaks = tuple(spread(self.faults.reconnects, self.duration))
        return [
            self._job(
                f"worker {index}",
                self.schedule.share(index, self.processes),
                tuple(range(index, self.streams, self.processes)),
                check=self.check,
                cancels=self.faults.cancels,
                reconnects=breaks,
            )
            for index in range(self.processes)
        ]

    def victim(self, number: int) -> Job:
        """For a process that is there to be stopped or killed: a little load whose times do not count."""
        streams = VICTIM_BATCHES * self.workload.batch
        first = _VICTIM_NUMBERS + number * streams
        return self._job(
            f"victim {number}",
            Closed(concurrency=VICTIM_BATCHES),
            tuple(range(first, first + streams)),
            check=self.check,
            victim=True,
        )

    def document(self) -> Mapping[str, object]:
        """The plan as plain values."""
        schedule = self.schedule
        loop = {Constant: "constant", Poisson: "poisson", Closed: "closed"}[type(schedule)]
        return {
            "target": self.target,
            "loop": loop,
            "rate": None if isinstance(schedule, Closed) else schedule.rate,
            "concurrency": schedule.concurrency if isinstance(schedule, Closed) else None,
            "streams": self.streams,
            "processes": self.processes,
            "duration_s": self.duration,
            "warmup_s": self.warmup,
            "check": self.check,
            "max_lag_ms": self.max_lag_ms,
            "workload": asdict(self.workload),
            "faults": asdict(self.faults),
        }

    def _job(
        self,
        name: str,
        schedule: Schedule,
        streams: tuple[int, ...],
        *,
        check: float = 0.0,
        cancels: float = 0.0,
        reconnects: tuple[float, ...] = (),
        victim: bool = False,
    ) -> Job:
        return Job(
            name=name,
            target=self.target,
            access=self.access,
            schedule=schedule,
            streams=streams,
            workload=self.workload,
            duration=self.duration,
            warmup=self.warmup,
            drain=self.drain,
            timeout=self.timeout,
            check=check,
            cancels=cancels,
            reconnects=reconnects,
            victim=victim,
        )


def _check_number(name: str, value: float, *, above: bool = False) -> None:
    if not (math.isfinite(value) and 0 <= value <= 1e6) or (above and value == 0):
        raise InvalidSpec(
            f"{name} must be {'above 0' if above else '0 or more'} and at most 1e6, got {value!r}", field=name
        )
