"""A small wheel with a made-up model in it, and real servers on free ports."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import os
import socket
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import tinygguf
from transports import Transport, to

from rondel.client import (
    AsyncAttentionClient,
    AsyncGenerationClient,
    AsyncStream,
    AttentionClient,
    GenerationClient,
)
from rondel.client.cli.launch import server
from rondel.decoder.lm.registry import KnownModel

# `make test-traced` has the same tests with every call traced.
TRACED = ["--tracing"] if os.environ.get("RONDEL_TEST_TRACED") == "1" else []

GGUF_BYTES = 5 << 20
"""More than a few blocks, so that a kill can fall between two."""


@pytest.fixture
def model_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder that is in force; the folder that models go to."""
    monkeypatch.setenv("RONDEL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


@pytest.fixture
def make_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., KnownModel]:
    """Makes a wheel that pip finds without any index, and the model that pins it."""
    shelf = tmp_path / "wheels"
    shelf.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")

    def make(content: bytes = bytes(range(256)) * (GGUF_BYTES // 256)) -> KnownModel:
        info = "tiny_model-1.0.dist-info"
        files = {
            "tiny_model/tiny.gguf": content,
            f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n",
            f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any",
        }
        files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"]).encode()
        path = shelf / "tiny_model-1.0-py3-none-any.whl"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in files.items():
                archive.writestr(name, data)
        return KnownModel(
            name="tiny",
            title="Tiny",
            licence="Apache-2.0",
            package="tiny-model",
            version="1.0",
            wheel_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
            wheel_bytes=path.stat().st_size,
            gguf_sha256=hashlib.sha256(content).hexdigest(),
            gguf_bytes=len(content),
            gguf_member="tiny_model/tiny.gguf",
        )

    return make


@pytest.fixture
def book(tmp_path: Path) -> Path:
    """A text for the tools that read one."""
    path = tmp_path / "book.txt"
    path.write_bytes("The other thing,\r\nthe naïve one. ".encode() * 20)
    return path


@pytest.fixture(scope="module")
def address(transport: Transport) -> Iterator[str]:
    """A server without a model, as a process of its own, for all tests of a file."""
    with server("--budget-bytes=67108864", "--max-streams=64", *TRACED, *transport.flags()) as running:
        yield running.address


@pytest.fixture(params=["sync", "aio"])
def connect(request: pytest.FixtureRequest, transport: Transport) -> Iterator[Callable[..., Any]]:
    """Makes clients (of ``kind``): each test that uses it runs with both twins."""
    with ExitStack() as stack:
        if request.param == "sync":

            def wait(target: str, kind: type[Any] = AttentionClient, **options: Any) -> Any:
                return stack.enter_context(kind(target, **{**to(target), **options}))

            yield wait
        else:
            runner = stack.enter_context(asyncio.Runner())

            def make(target: str, kind: type = AttentionClient, **options: Any) -> Any:
                client = Blocking(TWINS[kind](target, **{**to(target), **options}), runner)
                stack.callback(client.close)
                return client

            yield make


@pytest.fixture(autouse=True)
def environment(transport: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    """What commands need to reach a server."""
    for name, value in transport.environment().items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def client(connect: Callable[..., Any], address: str) -> Any:
    return connect(address)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model of a few kilobytes, with a context that no test fills."""
    return tinygguf.write(tmp_path_factory.mktemp("model") / "tiny.gguf", context=100_000)


@pytest.fixture(scope="module")
def running(tiny_model: Path, transport: Transport) -> Iterator[str]:
    """A server with the tiny model."""
    with server(f"--model={tiny_model}", *TRACED, *transport.flags()) as process:
        yield process.address


class Blocking:
    """An asyncio client or stream with the look of its waiting twin."""

    def __init__(self, twin: Any, runner: asyncio.Runner) -> None:
        self._twin = twin
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._twin, name)
        if name == "decode":
            return lambda: Blocking(value(), self._runner)
        if name == "generate":
            return lambda *args, **options: Blocking(
                self._runner.run(_call(value, args, options)), self._runner
            )
        if not inspect.iscoroutinefunction(value):
            return value

        def call(*args: Any, **options: Any) -> Any:
            plain = [_twins(arg) for arg in args]
            result = self._runner.run(value(*plain, **options))
            return Blocking(result, self._runner) if isinstance(result, AsyncStream) else result

        return call

    def __iter__(self) -> Iterator[Any]:
        events = aiter(self._twin)
        with suppress(StopAsyncIteration):
            while True:
                yield self._runner.run(_call(anext, (events,), {}))

    def text(self) -> Iterator[str]:
        return iter(Blocking(self._twin.text(), self._runner))

    def __enter__(self) -> Blocking:
        return self

    def __exit__(self, *error: object) -> None:
        self._runner.run(self._twin.__aexit__(*error))


async def _call(function: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Call within the running loop, which grpc.aio looks for."""
    result = function(*args, **options)
    return await result if inspect.isawaitable(result) else result


TWINS: dict[type, type] = {AttentionClient: AsyncAttentionClient, GenerationClient: AsyncGenerationClient}


def _twins(value: Any) -> Any:
    if isinstance(value, Blocking):
        return value._twin
    return type(value)(map(_twins, value)) if isinstance(value, list | tuple) else value


class Proxy:
    """Passes bytes between a client and a server until told to keep the server's answers to itself."""

    def __init__(self, target: str) -> None:
        self._target = target
        self.delay = 0.0
        """Seconds that answers take on their way."""
        self._muted = threading.Event()
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def mute(self) -> None:
        """From now on answers are swallowed."""
        self._muted.set()

    def cut(self) -> None:
        """Break all connections, and let new ones speak again."""
        for end in self._open:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._muted.clear()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(10)
        for end in self._open:
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = self._connected()
            self._open += [near, far]
            for source, sink, answers in ((near, far, False), (far, near, True)):
                thread = threading.Thread(target=self._pass, args=(source, sink, answers))
                self._threads.append(thread)
                thread.start()

    def _connected(self) -> socket.socket:
        scheme, _, path = self._target.partition(":")
        if scheme == "unix":
            far = socket.socket(socket.AF_UNIX)
            far.connect(path)
            return far
        host, _, port = self._target.rpartition(":")
        return socket.create_connection((host, int(port)))

    def _pass(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if answers:
                    time.sleep(self.delay)
                if not (answers and self._muted.is_set()):
                    sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy(address: str) -> Iterator[Proxy]:
    between = Proxy(address)
    yield between
    between.close()
