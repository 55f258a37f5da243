"""Calls counted, under the names that go-grpc-prometheus gave such numbers and dashboards know them by."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from prometheus_client import CollectorRegistry, Counter, Histogram

from rondel.server.account import Account

_LABELS: Final = ("grpc_type", "grpc_service", "grpc_method")
_KINDS: Final = {
    (False, False): "unary",
    (True, False): "client_stream",
    (False, True): "server_stream",
    (True, True): "bidi_stream",
}
_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60, 600)


class _Method:
    """The counters of one method; told of its calls' messages."""

    def __init__(self, metrics: RpcMetrics, method: MethodDescriptor) -> None:
        kind = _KINDS[method.client_streaming, method.server_streaming]
        labels = (kind, method.containing_service.full_name, method.name)
        self._labels = labels
        self._handled = metrics.handled
        self._codes: dict[grpc.StatusCode, Counter] = {}
        self.started = metrics.started.labels(*labels)
        self.seconds = metrics.seconds.labels(*labels)
        self.received = metrics.received.labels(*labels).inc
        self.sent = metrics.sent.labels(*labels).inc
        self.handled(grpc.StatusCode.OK)  # there from the start, so that rates begin at zero

    def handled(self, code: grpc.StatusCode) -> Counter:
        """The counter of calls that ended so."""
        found = self._codes.get(code)
        if found is None:
            found = self._codes[code] = self._handled.labels(*self._labels, code_name(code))
        return found

    def worked(self, arrived: float, began: float, ended: float) -> None:
        """The scheduler counts that."""


class RpcMetrics:
    """A watcher that counts calls."""

    def __init__(self, registry: CollectorRegistry, services: Iterable[ServiceDescriptor]) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, (*_LABELS, *labels), registry=registry)

        self.started = counter("grpc_server_started_total", "Calls started.")
        self.handled = counter("grpc_server_handled_total", "Calls ended, by status code.", "grpc_code")
        self.received = counter("grpc_server_msg_received_total", "Messages received.")
        self.sent = counter("grpc_server_msg_sent_total", "Messages sent.")
        self.seconds = Histogram(
            "grpc_server_handling_seconds",
            "Seconds from a call's start to its end.",
            _LABELS,
            registry=registry,
            buckets=_SECONDS,
        )
        self._methods = {
            (method.containing_service.full_name, method.name): _Method(self, method)
            for service in services
            for method in service.methods
        }

    def begin(self, method: MethodDescriptor, account: Account, metadata: Callable[[], Any]) -> _Method:
        found = self._methods[account.service, account.method]
        found.started.inc()
        return found

    def answered(self, account: Account, request: Any, response: Any) -> None:
        """The bytes were counted already."""

    def end(self, account: Account, listener: Any) -> None:
        listener.handled(account.code).inc()
        listener.seconds.observe(time.monotonic() - account.began)


def code_name(code: grpc.StatusCode) -> str:
    """NOT_FOUND as NotFound: Go's spelling, which is that of these metrics everywhere."""
    if code is grpc.StatusCode.OK:
        return "OK"
    if code is grpc.StatusCode.CANCELLED:
        return "Canceled"
    return code.name.title().replace("_", "")
