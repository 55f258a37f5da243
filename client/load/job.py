"""What a process of a load generator is to do, and what it tells the one that has started it."""

from __future__ import annotations

from dataclasses import dataclass, field

from rondel.client.access import AccessOptions
from rondel.client.load.check import Findings
from rondel.client.load.recorder import Tallies
from rondel.client.load.schedule import Schedule
from rondel.client.load.workload import Workload
from rondel.client.values import ServerInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one process is to do."""

    name: str
    target: str
    schedule: Schedule
    streams: tuple[int, ...]
    """The numbers of its streams."""
    workload: Workload
    duration: float
    warmup: float
    drain: float
    """Seconds for what is under way when the time is over."""
    timeout: float
    check: float
    """Share of the streams' lives whose answers are compared."""
    cancels: float = 0.0
    reconnects: tuple[float, ...] = ()
    """Seconds from the start."""
    access: AccessOptions = field(default_factory=AccessOptions, repr=False)
    victim: bool = False
    """Whether it is there to be stopped or killed; then it tells the handles of its streams."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The streams are open."""

    server: ServerInfo
    exact: bool


@dataclass(frozen=True, slots=True)
class Opened:
    """A victim's stream."""

    handle: str


@dataclass(frozen=True, slots=True)
class Progress:
    """How it goes."""

    done: int
    failed: int
    waiting: int
    findings: Findings
    p50: float
    """Of the latency since the last time, in milliseconds."""
    p99: float


@dataclass(frozen=True, slots=True)
class Done:
    """All that was measured."""

    tallies: Tallies
    findings: Findings
    cancelled: int
    reconnected: int
    busy: float
    """Share of the time that the thread which sends was at work."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Why a worker could not go on."""

    reason: str
    message: str
    facts: dict[str, str | int] = field(default_factory=dict)


Message = Ready | Opened | Progress | Done | Failed
