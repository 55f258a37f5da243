"""Exports and imports that go wrong: one try more where that helps, and nothing left behind."""

from __future__ import annotations

import asyncio
import io
import tempfile
import threading
from collections.abc import Callable
from typing import Any

import pytest
from remotestreams import LARGE, RAW, exported, snapshot, tokens
from transports import flags, to

from rondel.client import AsyncAttentionClient, AttentionClient
from rondel.client.cli.launch import ServerProcess
from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import (
    BudgetExceeded,
    CorruptSnapshot,
    DeadlineExpired,
    InvalidRequest,
    InvalidSpec,
    ProjectionNotFound,
    RondelError,
    ServerUnavailable,
    SessionBusy,
    StreamClosed,
)
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (b"", CorruptSnapshot),
        (b"x" * 5_000_000, CorruptSnapshot),
        (RAW[:-3], CorruptSnapshot),
        (RAW + b"0", CorruptSnapshot),
        (snapshot(StreamSpec.uniform(layers=2, query_heads=8, kv_heads=8, head_dim=128, window=15000), 1),
         BudgetExceeded),
    ],
    ids=["empty", "garbage", "cut", "longer", "large"],
)  # fmt: skip
def test_snapshots_that_are_refused(client: Any, raw: bytes, error: type[RondelError]) -> None:
    before = client.info()
    with pytest.raises(error):
        client.import_stream(io.BytesIO(raw))
    after = client.info()
    assert (after.streams, after.reserved) == (before.streams, before.reserved)


def test_arguments_that_are_refused(client: Any) -> None:
    for options, error in (
        ({"projections": "none such"}, ProjectionNotFound),
        ({"projections": 5}, InvalidRequest),
        ({"timeout": 0}, InvalidSpec),
    ):
        with pytest.raises(error):
            client.import_stream(io.BytesIO(RAW), **options)
    with pytest.raises(InvalidRequest, match="binary file, got str"):
        client.import_stream(io.StringIO("text"))


class Failing(io.BytesIO):
    """A file whose disk gives up."""

    def read(self, size: int | None = -1, /) -> bytes:
        if self.tell() > 20_000:
            raise OSError(5, "Input/output error")
        return super().read(min(size or 0, 10_000))

    def write(self, data: Any, /) -> int:
        if self.tell() > 20_000:
            raise OSError(28, "No space left on device")
        return super().write(data)


def test_files_that_fail(client: Any) -> None:
    before = client.info()
    with pytest.raises(OSError, match="Input/output"):
        client.import_stream(Failing(RAW))
    with client.open(LARGE) as stream:
        q, k, v = tokens(LARGE, 1500)
        stream.append_all(k, v)
        with pytest.raises(OSError, match="No space"):
            stream.export(Failing())
        while True:  # the server learns of it a moment later
            try:
                stream.step(0, q[0, :1], k[0, :1], v[0, :1])
                break
            except SessionBusy:
                client.info()
    assert client.info().streams == before.streams


def test_a_timeout(client: Any) -> None:
    stop = threading.Event()

    class Slow(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell():
                stop.wait(1.0)
            return super().read(1000)

    with pytest.raises(DeadlineExpired):
        client.import_stream(Slow(RAW), timeout=0.5)


def test_a_closed_stream_and_a_closed_client(client: Any) -> None:
    stream = client.import_stream(io.BytesIO(RAW))
    stream.close()
    with pytest.raises(StreamClosed):
        stream.export(io.BytesIO())
    client.close()
    for call in (
        lambda: client.import_stream(io.BytesIO(RAW)),
        lambda: client.export_stream("x", io.BytesIO()),
    ):
        with pytest.raises(ServerUnavailable, match="closed"):
            call()


def test_one_caller_at_a_time(client: Any) -> None:
    stream = client.import_stream(io.BytesIO(RAW))

    class Nosy(io.BytesIO):
        def write(self, data: Any, /) -> int:
            with pytest.raises(SessionBusy), getattr(stream, "_twin", stream).alone():
                raise AssertionError("somebody else was let in")
            return super().write(data)

    assert stream.export(Nosy()) == len(RAW)


# --- lost connections -----------------------------------------------------------------------------


class Muting(io.BytesIO):
    """At its end the server's answers are swallowed, until it has a stream more; then the connection breaks.
    Only the first time."""

    def __init__(self, proxy: Any, address: str) -> None:
        super().__init__(RAW)
        self.tries = 0
        self._proxy = proxy
        self._address = address
        with AttentionClient(address, **to(address)) as client:
            self._wanted = client.info().streams + 1

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        if not data:
            self.tries += 1
            if self.tries == 1:
                self._proxy.mute()
                threading.Thread(target=self._cut).start()
        return data

    def _cut(self) -> None:
        with AttentionClient(self._address, **to(self._address)) as client:
            while client.info().streams < self._wanted:
                pass
        self._proxy.cut()


def test_an_import_whose_answer_was_lost_happens_once(
    proxy: Any, client: Any, connect: Callable[..., Any], address: str
) -> None:
    streams = client.info().streams
    source = Muting(proxy, address)
    stream = connect(proxy.address).import_stream(source)
    assert source.tries == 2
    assert client.info().streams == streams + 1
    assert exported(stream) == RAW


def test_a_source_that_cannot_be_read_again_is_sent_once(
    proxy: Any, connect: Callable[..., Any], address: str
) -> None:
    class Once(Muting):
        def seekable(self) -> bool:
            return False

    source = Once(proxy, address)
    with pytest.raises(ServerUnavailable):
        connect(proxy.address).import_stream(source)
    assert source.tries == 1


def test_a_server_that_ends_during_an_export(connect: Callable[..., Any]) -> None:
    with tempfile.TemporaryFile() as log:
        running = ServerProcess(["--budget-bytes=67108864", *flags()], log)
        try:
            stream = connect(running.address).open(LARGE)
            stream.append_all(*tokens(LARGE, 2000)[1:])

            class Ending(io.BytesIO):
                def write(self, data: Any, /) -> int:
                    running.stop(hurry=True)
                    return super().write(data)

            file = Ending()
            with pytest.raises(ServerUnavailable):
                stream.export(file)
            with pytest.raises(CorruptSnapshot):
                DecoderSession.restore(io.BytesIO(file.getvalue()), Arena(budget=64 << 20))
        finally:
            running.stop(hurry=True)


# --- asyncio --------------------------------------------------------------------------------------


class Held(io.BytesIO):
    """A file that is slow until told otherwise."""

    def __init__(self, raw: bytes) -> None:
        super().__init__(raw)
        self.reached, self.leave = threading.Event(), threading.Event()

    def _hold(self) -> None:
        self.reached.set()
        assert self.leave.wait(20)

    def write(self, data: Any, /) -> int:
        self._hold()
        return super().write(data)

    def read(self, size: int | None = -1, /) -> bytes:
        self._hold()
        return super().read(size)


async def test_cancelled_tasks_let_go(address: str) -> None:
    async with AsyncAttentionClient(address, **to(address)) as client, await client.open(LARGE) as stream:
        _, k, v = tokens(LARGE, 2000)
        await stream.append_all(k, v)
        for work in (
            lambda file: stream.export(file),
            lambda file: client.import_stream(file),
        ):
            file = Held(RAW)
            task = asyncio.create_task(work(file))
            assert await asyncio.to_thread(file.reached.wait, 20)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            file.leave.set()
        while True:
            try:
                assert await stream.append(0, k[0, :1], v[0, :1]) == 2001
                break
            except SessionBusy:
                await client.info()
        assert (await client.info()).streams >= 1
