"""Exports and imports by both clients: whole files, one try more, and nothing left behind."""

from __future__ import annotations

import asyncio
import io
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rondel.client import AsyncAttentionClient
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
    StreamNotFound,
)
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec

SPEC = StreamSpec.uniform(layers=2, query_heads=4, kv_heads=2, head_dim=32, window=100, sinks=4, reserve=8)
LARGE = StreamSpec.uniform(
    layers=2, query_heads=2, kv_heads=2, head_dim=256, storage="float32", max_length=3000
)
"""24 MiB when full: more than a connection takes before anything is read."""


def tokens(spec: StreamSpec, count: int, seed: int = 0) -> tuple[Any, Any, Any]:
    group, rng = spec.groups[0], np.random.default_rng(seed)
    return tuple(
        rng.standard_normal((spec.layers, count, heads, group.key_dim), np.float32)
        for heads in (group.query_heads, group.kv_heads, group.kv_heads)
    )


def snapshot(spec: StreamSpec = SPEC, count: int = 500) -> bytes:
    file = io.BytesIO()
    with DecoderSession(spec, Arena(budget=256 << 20)) as session:
        _, k, v = tokens(spec, count)
        session.append_all(k, v)
        session.snapshot(file)
    return file.getvalue()


RAW = snapshot()


def exported(stream: Any) -> bytes:
    file = io.BytesIO()
    assert stream.export(file) == len(file.getvalue())
    return file.getvalue()


def test_there_and_back(client: Any) -> None:
    with client.open(SPEC) as stream, DecoderSession(SPEC, Arena(budget=64 << 20)) as local:
        _, k, v = tokens(SPEC, 500)
        stream.append_all(k, v)
        assert exported(stream) == RAW
        other = client.import_stream(io.BytesIO(RAW))
        assert other.handle != stream.handle
        assert (other.length, other.generation, other.layer_length(1)) == (500, 0, 500)
        local.append_all(k, v)
        q, k, v = tokens(SPEC, 150, 1)
        want = local.step_all(q, k, v)
        for each in (stream, other):
            assert each.step_all(q, k, v).tobytes() == want.tobytes()
        assert exported(stream) == exported(other)


def test_a_session_of_this_process_moves_to_a_server_and_back(client: Any) -> None:
    arena = Arena(budget=64 << 20)
    q, k, v = tokens(SPEC, 40, 2)
    with DecoderSession(SPEC, arena) as kept, DecoderSession.restore(io.BytesIO(RAW), arena) as local:
        kept.append_all(*tokens(SPEC, 500)[1:])
        kept.truncate(497)
        local.truncate(497)
        file = io.BytesIO()
        local.snapshot(file)
        file.seek(0)
        remote = client.import_stream(file)
        assert (remote.length, remote.generation) == (497, 1)
        assert (
            remote.step_all(q[:, :20], k[:, :20], v[:, :20]).tobytes()
            == kept.step_all(q[:, :20], k[:, :20], v[:, :20]).tobytes()
        )
        with DecoderSession.restore(io.BytesIO(exported(remote)), arena) as back:
            rest = [x[:, 20:] for x in (q, k, v)]
            assert back.step_all(*rest).tobytes() == kept.step_all(*rest).tobytes()


def test_uneven_layers_go_on_where_they_are(client: Any) -> None:
    with client.open(SPEC) as stream:
        q, k, v = tokens(SPEC, 3)
        stream.append(0, k[0], v[0])
        other = client.import_stream(io.BytesIO(exported(stream)))
        assert (other.length, other.layer_length(0), other.layer_length(1)) == (0, 3, 0)
        assert other.step(1, q[1], k[1], v[1]).tobytes() == stream.step(1, q[1], k[1], v[1]).tobytes()
        assert other.length == 3


def test_a_stream_by_its_handle(client: Any, connect: Callable[..., Any], address: str) -> None:
    stream = client.import_stream(io.BytesIO(RAW))
    file = io.BytesIO()
    assert connect(address).export_stream(stream.handle, file) == len(RAW)
    assert file.getvalue() == RAW
    with pytest.raises(StreamNotFound):
        client.export_stream("none such", file)
    for wrong in (5, "\ud800"):
        with pytest.raises(InvalidRequest):
            client.export_stream(wrong, file)


def test_clients_with_small_messages(connect: Callable[..., Any], address: str) -> None:
    client = connect(address, max_message_bytes=2000)
    stream = client.import_stream(io.BytesIO(RAW))
    assert exported(stream) == RAW


def test_progress(client: Any) -> None:
    raw = snapshot(LARGE, 1500)
    seen: list[tuple[int, int]] = []
    stream = client.import_stream(io.BytesIO(raw), progress=lambda *numbers: seen.append(numbers))
    assert seen[-1] == (len(raw), len(raw))
    assert seen == sorted(seen)
    seen.clear()
    stream.export(io.BytesIO(), progress=lambda *numbers: seen.append(numbers))
    assert seen[-1] == (len(raw), len(raw))
    assert len(seen) > 10


def test_real_files_and_pipes(client: Any, tmp_path: Path) -> None:
    stream = client.import_stream(io.BytesIO(RAW))
    for buffering in (-1, 0):
        with open(tmp_path / "stream", "wb", buffering=buffering) as file:
            assert stream.export(file) == len(RAW)
        with open(tmp_path / "stream", "rb", buffering=buffering) as file:
            assert client.import_stream(file).length == 500
    seen: list[tuple[int, int]] = []

    class Pipe:
        def __init__(self) -> None:
            self.left = RAW

        def read(self, size: int) -> bytes:
            data, self.left = self.left[:1000], self.left[1000:]
            return data

    assert client.import_stream(Pipe(), progress=lambda *numbers: seen.append(numbers)).length == 500
    assert seen[-1] == (len(RAW), 0)


# --- what goes wrong ------------------------------------------------------------------------------


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
        deadline = threading.Event()
        while True:  # the server learns of it a moment later
            try:
                stream.step(0, q[0, :1], k[0, :1], v[0, :1])
                break
            except SessionBusy:
                deadline.wait(0.01)
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


def test_an_import_whose_answer_was_lost_happens_once(
    proxy: Any, client: Any, connect: Callable[..., Any]
) -> None:
    through = connect(proxy.address)
    streams = client.info().streams

    class Cutting(io.BytesIO):
        """The server's answer to the first try is lost; the second try is let through."""

        tries = 0

        def read(self, size: int | None = -1, /) -> bytes:
            data = super().read(size)
            if not data:
                self.tries += 1
                if self.tries == 1:
                    proxy.mute()
                    threading.Timer(0.3, proxy.cut).start()
            return data

    source = Cutting(RAW)
    stream = through.import_stream(source)
    assert source.tries == 2
    assert client.info().streams == streams + 1
    assert exported(stream) == RAW


def test_a_source_that_cannot_be_read_again_is_sent_once(proxy: Any, connect: Callable[..., Any]) -> None:
    class Once(io.BytesIO):
        tries = 0

        def seekable(self) -> bool:
            return False

        def read(self, size: int | None = -1, /) -> bytes:
            data = super().read(size)
            if not data:
                self.tries += 1
                proxy.mute()
                threading.Timer(0.3, proxy.cut).start()
            return data

    source = Once(RAW)
    with pytest.raises(ServerUnavailable):
        connect(proxy.address).import_stream(source)
    assert source.tries == 1


def test_a_server_that_ends_during_an_export(connect: Callable[..., Any]) -> None:
    with tempfile.TemporaryFile() as log:
        running = ServerProcess(["--budget-bytes=67108864"], log)
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
    async with AsyncAttentionClient(address) as client, await client.open(LARGE) as stream:
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


def test_a_stream_that_is_left_open(connect: Callable[..., Any], address: str) -> None:
    first, second = connect(address), connect(address)
    stream = first.import_stream(io.BytesIO(RAW))
    stream.leave_open()
    first.close()
    file = io.BytesIO()
    assert second.export_stream(stream.handle, file) == len(RAW)
