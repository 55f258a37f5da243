"""OpenTelemetry traces of calls; only imported where they are wanted (``rondel[otel]``).

A unary call is a span, with a child for each time that its work waited in the queue and one for the worker's
time. A stream's span lasts as long as the stream does, hours perhaps, and would collect children without end;
so its work is told by traces of their own, at most one per second and stream, linked to the stream's. The
span of a caller comes with W3C's ``traceparent``; sampling, exporters and the rest are set by the
specification's OTEL_ variables.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, Final

import grpc
from google.protobuf.descriptor import MethodDescriptor
from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context

from rondel import __version__
from rondel.decoder.errors import InvalidSpec
from rondel.server.account import Account

_BATCH_SECONDS: Final = 1.0
_FAULTS: Final = {
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DATA_LOSS,
}
"""Codes that are a server's fault, by OpenTelemetry's conventions for servers."""


class Tracing:
    """A watcher that makes spans with a provider's tracer."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("rondel", __version__)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Tracing:
        """What the OTEL_ variables ask for; without any, OTLP over HTTP to this machine.

        Raises:
            InvalidSpec: an exporter is not installed.
        """
        named = "OTEL_SERVICE_NAME" in environment or SERVICE_NAME in environment.get(
            "OTEL_RESOURCE_ATTRIBUTES", ""
        )
        resource = Resource.create(
            {SERVICE_VERSION: __version__}
            if named
            else {SERVICE_VERSION: __version__, SERVICE_NAME: "rondel"}
        )
        # Its end is ours to wait for, with a bound; at the interpreter's exit there is none.
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        for name in environment.get("OTEL_TRACES_EXPORTER", "otlp").split(","):
            if name.strip() != "none":
                provider.add_span_processor(BatchSpanProcessor(_exporter(name.strip(), environment)))
        return cls(provider)

    def close(self, seconds: float) -> None:
        """Sends what is left, for at most so long."""
        # A thread of ours, since no thread of an executor may be left behind at the interpreter's end.
        sending = threading.Thread(target=self._provider.shutdown, name="rondel-traces", daemon=True)
        sending.start()
        sending.join(seconds)

    def begin(self, method: MethodDescriptor, account: Account, metadata: Callable[[], Any]) -> CallTrace:
        texts = {name: value for name, value in metadata() or () if isinstance(value, str)}
        name = f"{account.service}/{account.method}"
        attributes = {"rpc.system": "grpc", "rpc.service": account.service, "rpc.method": account.method}
        span = self._tracer.start_span(
            name, context=propagate.extract(texts, Context()), kind=SpanKind.SERVER, attributes=attributes
        )
        if span.is_recording():
            account.trace_id = f"{span.get_span_context().trace_id:032x}"
        streaming = method.client_streaming or method.server_streaming
        return CallTrace(self._tracer, span, name, streaming)

    def answered(self, account: Account, request: Any, response: Any) -> None:
        """Messages are not looked into."""

    def end(self, account: Account, listener: Any) -> None:
        listener.end(account)


class CallTrace:
    """The span of a call, and those of its work."""

    def __init__(self, tracer: Tracer, span: Span, name: str, streaming: bool) -> None:
        self._tracer = tracer
        self._span = span
        self._name = name
        self._streaming = streaming
        self._wall = time.time_ns() - time.monotonic_ns()
        """What makes a time of this call's clock one of the calendar."""
        self._told = -_BATCH_SECONDS
        self._since = 0

    def received(self) -> None:
        """Counted in the account."""

    def sent(self) -> None:
        """Counted in the account."""

    def worked(self, arrived: float, began: float, ended: float) -> None:
        if not self._span.is_recording():
            return
        if not self._streaming:
            self._work(self._span, arrived, began, ended)
            return
        self._since += 1
        if ended - self._told < _BATCH_SECONDS:
            return
        batch = self._tracer.start_span(
            f"{self._name} batch",
            context=Context(),
            attributes={"rondel.operations": self._since},
            links=[Link(self._span.get_span_context())],
            start_time=self._nanoseconds(arrived),
        )
        self._work(batch, arrived, began, ended)
        batch.end(self._nanoseconds(ended))
        self._told, self._since = ended, 0

    def end(self, account: Account) -> None:
        """Ends the span with what has become of the call."""
        span = self._span
        if span.is_recording():
            span.set_attributes(
                {
                    "rpc.grpc.status_code": int(account.code.value[0]),
                    "rondel.tenant": account.tenant,
                    "rondel.bytes_received": account.bytes_received,
                    "rondel.bytes_sent": account.bytes_sent,
                    "rondel.messages_received": account.messages_received,
                    "rondel.messages_sent": account.messages_sent,
                    "rondel.operations": account.operations,
                }
            )
            if account.reason:
                span.set_attribute("rondel.reason", account.reason)
            if account.code in _FAULTS:
                span.set_status(Status(StatusCode.ERROR, account.reason or account.code.name))
        span.end()

    def _work(self, parent: Span, arrived: float, began: float, ended: float) -> None:
        context = set_span_in_context(parent, Context())
        for name, start, end in (("queue", arrived, began), ("kernel", began, ended)):
            span = self._tracer.start_span(name, context=context, start_time=self._nanoseconds(start))
            span.end(self._nanoseconds(end))

    def _nanoseconds(self, seconds: float) -> int:
        return int(seconds * 1e9) + self._wall


def _exporter(name: str, environment: Mapping[str, str]) -> Any:
    """The exporter of a name that OTEL_TRACES_EXPORTER may have."""
    if name == "otlp":
        protocol = (
            environment.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
            or environment.get("OTEL_EXPORTER_OTLP_PROTOCOL")
            or "http/protobuf"
        )
        name = "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"
    found = list(entry_points(group="opentelemetry_traces_exporter", name=name))
    if not found:
        raise InvalidSpec(f"no exporter of traces is installed by the name {name!r}", field="tracing")
    return found[0].load()()
