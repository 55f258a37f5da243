"""Exports and imports by both clients: streams move, and go on to the bit."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from remotestreams import LARGE, RAW, SPEC, exported, snapshot, tokens

from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import (
    InvalidRequest,
    StreamNotFound,
)
from rondel.decoder.session import DecoderSession


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


def test_a_stream_that_is_left_open(connect: Callable[..., Any], address: str) -> None:
    first, second = connect(address), connect(address)
    stream = first.import_stream(io.BytesIO(RAW))
    stream.leave_open()
    first.close()
    file = io.BytesIO()
    assert second.export_stream(stream.handle, file) == len(RAW)
