"""What comes of a run: figures, whether they mean anything, and whether they are good enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

from rondel.client.load.check import Findings
from rondel.client.load.histogram import Histogram
from rondel.client.load.job import Done, Ready
from rondel.client.load.plan import Plan
from rondel.client.load.recorder import ALL, OK, Totals

MAX_BUSY: Final = 0.9
"""Share of the time that a worker's sending thread may be at work: one without a pause measures itself."""

EXIT_OK: Final = 0
EXIT_MISSED: Final = 1
EXIT_INVALID: Final = 3


@dataclass(slots=True)
class Inflicted:
    """Faults that were carried out."""

    cancels: int = 0
    reconnects: int = 0
    stalls: int = 0
    kills: int = 0
    left_open: int = 0
    """Streams of killed processes that were still open at the end of the run, and were closed then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """A run's figures. Times are in milliseconds: ``count``, ``p50`` … ``p99.9`` and ``max``."""

    plan: Plan
    server: Mapping[str, object]
    offered: int
    """Operations that were due after the warm-up."""
    completed: int
    """Of them, those that were answered without an error."""
    in_time: int
    """Of those, the ones that were answered before the time was over: the throughput."""
    seconds: float
    """In which they were due."""
    tokens: int
    """Stored in time."""
    statuses: Mapping[str, int]
    latency: Mapping[str, Mapping[str, float]]
    """From the time an operation was due to its answer, by kind; ``all`` is without ``disturbed``."""
    service: Mapping[str, Mapping[str, float]]
    """From the time it was sent."""
    lag: Mapping[str, float]
    """What the generator itself was late by."""
    busy: float
    findings: Findings
    exact: bool
    """Whether answers were compared to the bit."""
    faults: Inflicted
    invalid: str | None
    """Why the figures mean nothing; None = they do."""
    missed: tuple[str, ...] = field(default=())
    """What was promised and not kept, one sentence each."""

    @classmethod
    def of(
        cls,
        plan: Plan,
        ready: Ready,
        done: Sequence[Done],
        lost: Sequence[str],
        faults: Inflicted,
        victims: Sequence[Findings] = (),
    ) -> LoadResult:
        """Join what the workers have measured. ``lost`` names those that did not come to their end.

        ``victims``: answers to processes that do not measure are right or wrong all the same.
        """
        totals = Totals([part.tallies for part in done])
        busy = max((part.busy for part in done), default=0.0)
        faults.cancels = sum(part.cancelled for part in done)
        faults.reconnects = sum(part.reconnected for part in done)
        return cls(
            plan=plan,
            server={
                "version": ready.server.version,
                "tier": ready.server.tier,
                "threads": ready.server.threads,
            },
            offered=sum(totals.statuses.values()),
            completed=totals.statuses.get(OK, 0),
            in_time=totals.in_time,
            seconds=plan.duration - plan.warmup,
            tokens=totals.tokens,
            statuses=dict(sorted(totals.statuses.items())),
            latency=_summaries(totals.latency),
            service=_summaries(totals.service),
            lag=totals.lag.summary(),
            busy=busy,
            findings=Findings.joined([*(part.findings for part in done), *victims]),
            exact=ready.exact,
            faults=faults,
            invalid=_invalid(plan, totals, busy, lost),
            missed=tuple(_missed(plan, totals)),
        )

    @property
    def exit_code(self) -> int:
        """0 = good, 1 = wrong answers or an SLO missed, 3 = the run says nothing about the server.

        A wrong answer is wrong however late it was asked for.
        """
        if self.findings.wrong:
            return EXIT_MISSED
        if self.invalid is not None:
            return EXIT_INVALID
        return EXIT_MISSED if self.missed else EXIT_OK

    def document(self) -> dict[str, object]:
        """All of it as plain values, for JSON."""
        return {
            **self.plan.document(),
            "server": dict(self.server),
            "offered": self.offered,
            "completed": self.completed,
            "offered_per_s": self.offered / self.seconds,
            "operations_per_s": self.in_time / self.seconds,
            "tokens_per_s": self.tokens / self.seconds,
            "status": dict(self.statuses),
            "latency_ms": dict(self.latency),
            "service_ms": dict(self.service),
            "lag_ms": dict(self.lag),
            "busy": self.busy,
            "answers": {**asdict(self.findings), "exact": self.exact},
            "inflicted": asdict(self.faults),
            "slo": {**asdict(self.plan.slo), "missed": list(self.missed)},
            "valid": self.invalid is None,
            "reason": self.invalid,
            "exit_code": self.exit_code,
        }


def _summaries(histograms: Mapping[str, Histogram]) -> dict[str, dict[str, float]]:
    return {name: histogram.summary() for name, histogram in histograms.items()}


def _invalid(plan: Plan, totals: Totals, busy: float, lost: Sequence[str]) -> str | None:
    lag = totals.lag.milliseconds(99.0)
    if lost:
        return f"{', '.join(lost)} did not come to an end"
    if not totals.lag.count:
        return "no operation was due after the warm-up"
    if lag > plan.max_lag_ms:
        return (
            f"the generator fell behind: it was late by {lag:.3g} ms (p99), {plan.max_lag_ms:g} ms are "
            "allowed; use more processes or a lower rate"
        )
    if busy > MAX_BUSY:
        return (
            f"the generator was at work {100 * busy:.0f}% of the time, {100 * MAX_BUSY:.0f}% are allowed; "
            "use more processes or a lower rate"
        )
    return None


def _missed(plan: Plan, totals: Totals) -> list[str]:
    missed = []
    p99, errors = plan.slo.p99_ms, plan.slo.errors
    if p99 is not None and (got := totals.latency[ALL].milliseconds(99.0)) > p99:
        missed.append(f"p99 of the latency is {got:.3f} ms, {p99:g} ms were promised")
    offered = sum(totals.statuses.values())
    if errors is not None and offered:
        share = (offered - totals.statuses.get(OK, 0)) / offered
        if share > errors:
            missed.append(f"{100 * share:.3g}% of the operations failed, {100 * errors:.3g}% were promised")
    return missed
