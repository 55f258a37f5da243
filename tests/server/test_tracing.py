"""Traces of every kind of call, on every transport, in OpenTelemetry's in-memory exporter."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from held import Held
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode
from rawclient import Client, Tokens, ask, item
from rawdecode import Decode, part
from transports import Transport, listening

from rondel.decoder.errors import InvalidSpec
from rondel.server import tracing
from rondel.server.app import Server
from rondel.server.config import ServerConfig
from rondel.server.tracing import Tracing
from rondel.v1 import attention_pb2 as pb
from rondel.v1 import generation_pb2

Connect = Callable[[str], Client]
ATTENTION = "rondel.v1.AttentionService"
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Traced:
    """A server, and the spans that it has ended."""

    def __init__(self, server: Server, exporter: InMemorySpanExporter) -> None:
        self.server = server
        self._exporter = exporter

    def spans(self, name: str) -> list[ReadableSpan]:
        """Those of a name, in the order of their ends."""
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    async def span(self, name: str) -> ReadableSpan:
        """The only one of a name, once it is there: a client may have its answer before."""
        while not (found := self.spans(name)):
            await asyncio.sleep(0.002)
        assert len(found) == 1
        return found[0]

    def children(self, parent: ReadableSpan) -> dict[str, ReadableSpan]:
        return {
            span.name: span
            for span in self._exporter.get_finished_spans()
            if span.parent is not None and span.parent.span_id == parent.context.span_id
        }


def provider(exporter: InMemorySpanExporter) -> TracerProvider:
    made = TracerProvider(shutdown_on_exit=False)
    made.add_span_processor(SimpleSpanProcessor(exporter))
    return made


@pytest_asyncio.fixture
async def traced(model_path: Path, transport: Transport) -> AsyncIterator[Traced]:
    exporter = InMemorySpanExporter()
    config = ServerConfig(port=0, budget_bytes=32 << 20, model=str(model_path))
    server = await Server.start(transport.applied(config), tracing=Tracing(provider(exporter)))
    yield Traced(server, exporter)
    await server.stop()


@pytest.fixture
def client(traced: Traced, connect: Connect) -> Client:
    return connect(traced.server.address)


@pytest.mark.every_transport
async def test_a_unary_call_with_its_wait_and_its_work(
    traced: Traced, client: Client, tokens: Tokens
) -> None:
    stream = await client.open()
    async with Held(traced.server) as held:
        call = await held.queued(client.step(0, item(stream, 0, *tokens.qkv(3))), 100)
        await asyncio.sleep(0.05)
    await call
    span = await traced.span(f"{ATTENTION}/Step")
    assert (span.kind, span.status.status_code) == (SpanKind.SERVER, StatusCode.UNSET)
    assert span.attributes["rpc.system"] == "grpc"
    assert span.attributes["rpc.service"] == ATTENTION
    assert span.attributes["rpc.method"] == "Step"
    assert span.attributes["rpc.grpc.status_code"] == 0
    assert span.attributes["rondel.bytes_received"] > 100
    parts = traced.children(span)
    assert set(parts) == {"queue", "kernel"}
    queue, kernel = parts["queue"], parts["kernel"]
    assert queue.end_time - queue.start_time > 50e6
    slack = 1_000_000  # of two clocks, and of microseconds in floats
    assert span.start_time - slack <= queue.start_time <= queue.end_time == kernel.start_time
    assert kernel.end_time <= span.end_time + slack


async def test_the_callers_trace_goes_on(traced: Traced, client: Client) -> None:
    metadata = [("traceparent", f"00-{TRACE}-{PARENT}-01"), ("other-bin", b"\xff")]
    await client.attention.GetServerInfo(pb.GetServerInfoRequest(), metadata=metadata)
    span = await traced.span(f"{ATTENTION}/GetServerInfo")
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == PARENT
    assert span.parent.is_remote


@pytest.mark.parametrize("traceparent", ["nonsense", "00-0-0-01", f"00-{TRACE}-{PARENT}", "", "x" * 5000])
async def test_a_traceparent_that_is_none_begins_a_trace(
    traced: Traced, client: Client, traceparent: str
) -> None:
    metadata = [("traceparent", traceparent)]
    await client.attention.GetServerInfo(pb.GetServerInfoRequest(), metadata=metadata)
    span = await traced.span(f"{ATTENTION}/GetServerInfo")
    assert span.parent is None
    assert span.context.trace_id


async def test_a_caller_that_does_not_record_is_not_recorded(traced: Traced, client: Client) -> None:
    metadata = [("traceparent", f"00-{TRACE}-{PARENT}-00")]
    await client.attention.GetServerInfo(pb.GetServerInfoRequest(), metadata=metadata)
    await client.info()
    span = await traced.span(f"{ATTENTION}/GetServerInfo")
    assert f"{span.context.trace_id:032x}" != TRACE


@pytest.mark.every_transport
async def test_streams_both_ways(traced: Traced, client: Client, tokens: Tokens) -> None:
    stream = await client.open()
    await client.append(stream, 0, *tokens.kv(20))
    exported = client.attention.ExportStream(pb.ExportStreamRequest(stream=stream, max_data_bytes=1000))
    requests = [pb.ImportStreamRequest(data=piece.data) async for piece in exported]
    export = await traced.span(f"{ATTENTION}/ExportStream")
    assert export.attributes["rondel.messages_sent"] == len(requests) > 2
    await client.attention.ImportStream(iter(requests))
    imported = await traced.span(f"{ATTENTION}/ImportStream")
    assert imported.attributes["rondel.messages_received"] == len(requests)
    assert imported.attributes["rpc.grpc.status_code"] == 0
    for span in (export, imported):  # within a second: told once, in a trace of its own
        assert traced.children(span) == {}
        (batch,) = traced.spans(f"{span.name} batch")
        assert [link.context.span_id for link in batch.links] == [span.context.span_id]
        assert batch.context.trace_id != span.context.trace_id
        assert set(traced.children(batch)) == {"queue", "kernel"}


async def test_a_long_stream_is_told_of_while_it_lasts(
    traced: Traced, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "_BATCH_SECONDS", 0.0)
    answer = await ask(client, generation_pb2.GenerateRequest(text="hello", max_tokens=5))
    span = await traced.span("rondel.v1.GenerationService/Generate")
    assert span.attributes["rondel.messages_sent"] == len(answer.tokens) + 2
    batches = traced.spans("rondel.v1.GenerationService/Generate batch")
    assert len(batches) == span.attributes["rondel.operations"] >= 5
    assert all(batch.end_time <= span.end_time for batch in batches)


@pytest.mark.every_transport
async def test_both_directions_at_once(
    traced: Traced, client: Client, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "_BATCH_SECONDS", 0.0)
    async with Decode(client) as call:
        await call.open(1)
        for position in range(5):
            await call.step(0, part(1, position, *tokens.qkv(1)))
        assert len(traced.spans(f"{ATTENTION}/Decode batch")) == 6  # while the call goes on
        await call.call.done_writing()
        await call.ended()
    span = await traced.span(f"{ATTENTION}/Decode")
    assert span.attributes["rondel.messages_received"] == 6
    assert span.attributes["rondel.messages_sent"] == 7  # with the hello
    assert span.attributes["rpc.grpc.status_code"] == 0
    for batch in traced.spans(f"{ATTENTION}/Decode batch"):
        assert [link.context.span_id for link in batch.links] == [span.context.span_id]
        assert set(traced.children(batch)) == {"queue", "kernel"}


async def test_failures_carry_code_and_reason(traced: Traced, client: Client) -> None:
    with pytest.raises(grpc.aio.AioRpcError):
        await client.get(pb.StreamRef(handle="nobody"))
    span = await traced.span(f"{ATTENTION}/GetStream")
    assert span.attributes["rpc.grpc.status_code"] == grpc.StatusCode.NOT_FOUND.value[0]
    assert span.attributes["rondel.reason"] == "STREAM_NOT_FOUND"
    assert span.status.status_code == StatusCode.UNSET  # the caller's fault, not the server's
    traced.server._door.shut()
    with pytest.raises(grpc.aio.AioRpcError):
        await client.info()
    draining = await traced.span(f"{ATTENTION}/GetServerInfo")
    assert draining.status.status_code == StatusCode.ERROR
    assert draining.attributes["rondel.reason"] == "DRAINING"


@pytest.mark.every_transport
async def test_a_stream_that_is_cancelled_ends_its_span(
    traced: Traced, client: Client, tokens: Tokens
) -> None:
    call = client.attention.ImportStream()
    await call.write(pb.ImportStreamRequest(data=b""))
    while not traced.server._door.inside:
        await asyncio.sleep(0.002)
    call.cancel()
    span = await traced.span(f"{ATTENTION}/ImportStream")
    assert span.attributes["rpc.grpc.status_code"] == grpc.StatusCode.CANCELLED.value[0]


async def test_what_is_not_sampled_is_not_recorded(connect: Connect, tokens: Tokens) -> None:
    exporter = InMemorySpanExporter()
    silent = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    silent.add_span_processor(SimpleSpanProcessor(exporter))
    config = ServerConfig(port=0, budget_bytes=4 << 20)
    server = await Server.start(listening(config), tracing=Tracing(silent))
    client = connect(server.address)
    stream = await client.open()
    await client.step(0, item(stream, 0, *tokens.qkv(1)))
    await server.stop()
    assert exporter.get_finished_spans() == ()


def test_the_environment_says_where_to_and_how() -> None:
    Tracing.from_environment({"OTEL_TRACES_EXPORTER": "none"}).close(5)
    with pytest.raises(InvalidSpec, match="no exporter of traces is installed by the name 'pigeon'"):
        Tracing.from_environment({"OTEL_TRACES_EXPORTER": "pigeon"})
    made = Tracing.from_environment({"OTEL_TRACES_EXPORTER": "otlp"})
    assert made._provider.resource.attributes["service.name"] == "rondel"
    made.close(5)
