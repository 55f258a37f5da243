"""Real servers on free ports."""

import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
import tinygguf
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from transports import Transport

from rondel.server.app import Server
from rondel.server.config import ServerConfig
from rondel.server.scheduler import Scheduler
from rondel.server.tracing import Tracing

sys.path.insert(0, str(Path(__file__).parent))

from held import Clock
from processes import Command, Process, Serve, Start
from rawclient import Client, Tokens

# `make test-traced` has the same tests with every call traced.
TRACED = os.environ.get("RONDEL_TEST_TRACED") == "1"

OPTIONS = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", 64 << 20)]


@pytest.fixture(autouse=TRACED)
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """All calls are traced."""
    make = Server.__init__

    def made(server: Server, config: ServerConfig, *, tracing: Tracing | None = None) -> None:
        if tracing is None:
            provider = TracerProvider(shutdown_on_exit=False)
            provider.add_span_processor(SimpleSpanProcessor(InMemorySpanExporter()))
            tracing = Tracing(provider)
        make(server, config, tracing=tracing)

    monkeypatch.setattr(Server, "__init__", made)


@pytest.fixture
def tokens(rng: np.random.Generator) -> Tokens:
    return Tokens(rng)


@pytest.fixture
def config() -> ServerConfig:
    return ServerConfig(port=0, budget_bytes=64 << 20, drain_seconds=5.0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest_asyncio.fixture
async def scheduler(clock: Clock) -> AsyncIterator[Scheduler]:
    running = Scheduler("test", queue_bytes=1000, clock=clock)
    yield running
    await running.stop()


@pytest_asyncio.fixture
async def server(config: ServerConfig, transport: Transport) -> AsyncIterator[Server]:
    running = await Server.start(transport.applied(config))
    yield running
    await running.stop(drain_seconds=0.5)


Connect = Callable[[str], Client]


@pytest_asyncio.fixture
async def connect(transport: Transport) -> AsyncIterator[Connect]:
    """Makes clients, each with a connection of its own."""
    async with AsyncExitStack() as stack:

        def make(address: str) -> Client:
            channel = transport.channel(address, OPTIONS)
            stack.push_async_callback(channel.close)
            return Client(channel)

        yield make


@pytest_asyncio.fixture
async def client(server: Server, connect: Connect) -> Client:
    return connect(server.address)


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a tiny language model."""
    return tinygguf.write(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture
def started() -> Iterator[list[Process]]:
    """Processes that do not outlive the test."""
    started: list[Process] = []
    yield started
    for process in started:
        if process.popen.poll() is None:
            process.popen.kill()
        process.popen.communicate()


@pytest.fixture
def start(started: list[Process], transport: Transport) -> Start:
    """Starts servers in processes of their own."""

    def run(**options: object) -> Process:
        started.append(Process(**{**transport.options(), **options}))
        return started[-1]

    return run


@pytest.fixture
def serve(started: list[Process], transport: Transport) -> Serve:
    """Starts servers by the command."""

    def run(*options: str, environment: Mapping[str, str] | None = None) -> Command:
        command = Command(*transport.flags(), *options, environment=environment)
        started.append(command)
        return command

    return run
