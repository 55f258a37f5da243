"""Traces on their way out of a process: to a collector, to one that is not there; and none at all."""

import http.server
import signal
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from processes import Serve
from rawclient import Client

from rondel.decoder.errors import InvalidSpec
from rondel.server.app import Server
from rondel.server.config import ServerConfig

Connect = Callable[[str], Client]


class Collector(http.server.HTTPServer):
    """Takes OTLP over HTTP."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, ExportTraceServiceRequest]] = []
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append((self.path, ExportTraceServiceRequest.FromString(body)))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    running = Collector()
    thread = threading.Thread(target=running.serve_forever, args=(0.05,))
    thread.start()
    yield running
    running.shutdown()
    running.server_close()
    thread.join()


async def test_the_last_spans_arrive_when_a_server_stops(
    serve: Serve, connect: Connect, collector: Collector
) -> None:
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_port}",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment=test",
        "OTEL_BSP_SCHEDULE_DELAY": "600000",
    }
    process = serve("--tracing", "--drain-seconds=1", environment=environment)
    client = connect(process.address)
    await client.info()
    code, _, log = await process.end(signal.SIGTERM)
    assert code == 0
    ((path, request),) = collector.requests
    assert path == "/v1/traces"
    (of_resource,) = request.resource_spans
    resource = {each.key: each.value.string_value for each in of_resource.resource.attributes}
    assert resource["service.name"] == "rondel"
    assert resource["deployment.environment"] == "test"
    names = [span.name for scope in of_resource.scope_spans for span in scope.spans]
    assert sorted(names) == ["kernel", "queue", "rondel.v1.AttentionService/GetServerInfo"]
    assert "Traceback" not in log


async def test_a_collector_that_is_not_there_holds_up_no_stop(serve: Serve, connect: Connect) -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    process = serve("--tracing", "--drain-seconds=1", environment=environment)
    client = connect(process.address)
    await client.info()
    code, seconds, _ = await process.end(signal.SIGTERM)
    assert code == 0
    assert seconds < 15


async def test_without_opentelemetry_only_tracing_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, "rondel.server.tracing", raising=False)
    with pytest.raises(InvalidSpec, match=r"install rondel\[otel\]") as caught:
        await Server.start(ServerConfig(port=0, budget_bytes=4 << 20, tracing=True))
    assert caught.value.field == "tracing"
    server = await Server.start(ServerConfig(port=0, budget_bytes=4 << 20))
    await server.stop()
