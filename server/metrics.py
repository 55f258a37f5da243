"""What the server does, counted for Prometheus. docs/operations.md has the same table for operators.

All series are bounded: tenants are those of the configuration (any other counts as ``other``), reasons those
of the code. Counters may be moved on any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from rondel.server.observer import Observer

NOBODY: Final = "default"
"""What the one tenant is called where nobody is told apart."""
OTHER: Final = "other"
_SECONDS: Final = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    10,
)
_SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Metrics:
    """The counters, in a registry of their own. ``tenants`` gives the names that are configured now."""

    def __init__(self, *, version: str, tier: str, tenants: Callable[[], Collection[str]] = tuple) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self._tenants = tenants

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"rondel_{name}", text, labels, registry=self.registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"rondel_{name}", text, labels, registry=self.registry, buckets=buckets)

        self.stored = counter(
            "tokens_stored_total", "Tokens stored, times the layers they were for.", "tenant"
        )
        self.repeated = counter(
            "duplicates_total", "Requests and items that were repetitions, and answered again.", "tenant"
        )
        self.gaps = counter(
            "gaps_total", "Requests and items that named a position that does not come next.", "tenant"
        )
        self.refused = counter("refused_total", "Calls that were not let in.", "reason", "tenant")
        self.errors = counter(
            "errors_total", "Calls and items that ended in an error, by its reason.", "reason"
        )
        self.expired = counter(
            "operations_expired_total", "Operations left out: their deadline had passed.", "tenant"
        )
        self.cancelled = counter(
            "operations_cancelled_total", "Operations left out: their caller had left.", "tenant"
        )
        self.lapsed = counter(
            "streams_expired_total", "Streams closed because nobody had named them for long."
        )
        self.waited = histogram(
            "queue_wait_seconds",
            "Seconds that operations waited for their worker.",
            _SECONDS,
            "worker",
            "tenant",
        )
        self.kernel = histogram(
            "kernel_seconds",
            "Seconds that a worker was inside operations that it carried out as one.",
            _SECONDS,
            "worker",
        )
        self.batch = histogram("batch_operations", "Operations carried out as one.", _SIZES, "worker")
        self.items = histogram("step_items", "Items of a Step call.", _SIZES)
        self.reload_ok = Gauge(
            "rondel_reload_success",
            "Whether the last reading of the configuration went well.",
            registry=self.registry,
        )
        self.reload_time = Gauge(
            "rondel_reload_timestamp_seconds",
            "When the configuration in force was read.",
            registry=self.registry,
        )
        info = Gauge(
            "rondel_build_info", "Always 1: what is running.", ("version", "tier"), registry=self.registry
        )
        info.labels(version, tier).set(1)
        self.reloaded(True)

    def tenant(self, name: str) -> str:
        """The label of a tenant."""
        if not name:
            return NOBODY
        return name if name in self._tenants() else OTHER

    def labels(self) -> list[str]:
        """The labels that there are in any case."""
        return list(self._tenants()) or [NOBODY]

    def reloaded(self, good: bool) -> None:
        """The configuration was read again."""
        self.reload_ok.set(good)
        if good:
            self.reload_time.set_to_current_time()

    def worker(self, name: str) -> WorkerMetrics:
        """Who counts what a worker of this name does."""
        return WorkerMetrics(self, name)


class _ByTenant:
    """The children of a metric whose last label is the tenant: looking one up costs more than moving it."""

    def __init__(self, metrics: Metrics, metric: Any, *labels: str) -> None:
        self._metrics = metrics
        self._metric = metric
        self._labels = labels
        self._children: dict[str, Any] = {}
        for label in metrics.labels():  # there from the start, so that rates begin at zero
            self._child(label)

    def __call__(self, tenant: str) -> Any:
        return self._child(self._metrics.tenant(tenant))

    def _child(self, label: str) -> Any:
        child = self._children.get(label)
        if child is None:
            child = self._children[label] = self._metric.labels(*self._labels, label)
        return child


class WorkerMetrics(Observer):
    """Counts what one scheduler and its worker tell."""

    def __init__(self, metrics: Metrics, worker: str) -> None:
        self._metrics = metrics
        self._waited = _ByTenant(metrics, metrics.waited, worker)
        self._kernel = metrics.kernel.labels(worker)
        self._batch = metrics.batch.labels(worker)
        self._stored = _ByTenant(metrics, metrics.stored)
        self._repeated = _ByTenant(metrics, metrics.repeated)
        self._gaps = _ByTenant(metrics, metrics.gaps)
        self._expired = _ByTenant(metrics, metrics.expired)
        self._cancelled = _ByTenant(metrics, metrics.cancelled)

    def refused(self, reason: str, tenant: str) -> None:
        self._metrics.refused.labels(reason, self._metrics.tenant(tenant)).inc()

    def waited(self, seconds: float, tenant: str) -> None:
        self._waited(tenant).observe(seconds)

    def expired(self, tenant: str) -> None:
        self._expired(tenant).inc()

    def cancelled(self, tenant: str) -> None:
        self._cancelled(tenant).inc()

    def carried_out(self, operations: int, seconds: float) -> None:
        self._batch.observe(operations)
        self._kernel.observe(seconds)

    def stored(self, tokens: int, tenant: str) -> None:
        self._stored(tenant).inc(tokens)

    def repeated(self, tenant: str) -> None:
        self._repeated(tenant).inc()

    def gap(self, tenant: str) -> None:
        self._gaps(tenant).inc()

    def failed(self, reason: str) -> None:
        self._metrics.errors.labels(reason).inc()

    def stepped(self, items: int) -> None:
        self._metrics.items.observe(items)

    def lapsed(self, streams: int) -> None:
        self._metrics.lapsed.inc(streams)
