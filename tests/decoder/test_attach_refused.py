"""What an arena in a file refuses, and what leaves no trace in it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from deeds import Streams, carry_out
from families import SPECS
from found import BUDGET, again, fill
from survivors import same

from rondel.decoder.attach import attach
from rondel.decoder.cache.arena import Arena, ArenaStats
from rondel.decoder.errors import (
    ArenaFileError,
    BudgetExceeded,
    InvalidRequest,
    InvalidSpec,
    SessionBusy,
)
from rondel.decoder.session import DecoderSession


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "arena"


def test_streams_are_handed_out_once_and_verify_is_checked(path: Path) -> None:
    arena = Arena(BUDGET, path=path)
    fill(DecoderSession(SPECS["ring"], arena, tag=b"s"), 300)
    arena, streams = again(arena, path)
    assert len(streams) == 1
    assert attach(arena) == []
    with pytest.raises(InvalidSpec, match="full, tail"):
        attach(arena, verify="most")
    assert attach(Arena(BUDGET)) == []


def test_an_arena_is_closed_only_between_calls(path: Path) -> None:
    arena = Arena(BUDGET, path=path)
    session = DecoderSession(SPECS["ring"], arena)
    with session._turn, pytest.raises(SessionBusy):
        arena.close()
    fill(session, 1)
    arena.close()
    arena.close()


@pytest.mark.parametrize("tag", [b"x" * 1025, "text"])
def test_tags_are_a_kibibyte_of_bytes(path: Path, tag: bytes) -> None:
    arena = Arena(BUDGET, path=path)
    with pytest.raises(InvalidRequest, match="tag must be"):
        DecoderSession(SPECS["ring"], arena, tag=tag)
    session = DecoderSession(SPECS["ring"], arena, tag=b"x" * 1024)
    with pytest.raises(InvalidRequest, match="tag must be"):
        session.fork(tag=tag)
    session.close()
    assert arena.stats() == ArenaStats(BUDGET, 0, 0)


def test_a_stream_is_refused_when_the_table_is_full(path: Path) -> None:
    arena = Arena(BUDGET, path=path)
    file = arena.file
    assert file is not None
    file._slots = file._slots[-1:]
    first = DecoderSession(SPECS["no sinks"], arena)
    before = arena.stats()
    with pytest.raises(BudgetExceeded, match="room for"):
        DecoderSession(SPECS["no sinks"], arena)
    assert arena.stats() == before
    first.close()
    DecoderSession(SPECS["no sinks"], arena)


def test_a_call_that_failed_leaves_nothing_in_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a short one nor one in pieces on a wrapped ring."""
    arena = Arena(BUDGET, path=path)
    streams: Streams = {"s": fill(DecoderSession(SPECS["ring"], arena, tag=b"s"), 700)}
    finish = "rondel.decoder.call.LayerCall.finish"
    for count in (4, 600):
        with monkeypatch.context() as patch:
            patch.setattr(finish, lambda call: (_ for _ in ()).throw(MemoryError))
            with pytest.raises(MemoryError):
                carry_out({"do": "all", "number": 3, "new": "", "on": "s", "tokens": count}, streams, arena)
        arena, streams = again(arena, path)
        assert same(streams["s"], fill(DecoderSession(SPECS["ring"], Arena(BUDGET)), 700))


def test_after_close_the_file_is_not_written_to(path: Path) -> None:
    arena = Arena(BUDGET, path=path)
    fill(DecoderSession(SPECS["ring"], arena, tag=b"s"), 300)
    arena.close()
    arena = Arena(BUDGET, path=path)
    found = arena.found
    arena.close()
    before = path.read_bytes()
    assert found[0].pages.release() == 0
    with pytest.raises(ArenaFileError, match="not ours"):
        DecoderSession(SPECS["ring"], arena)
    assert path.read_bytes() == before


FORKED = """
import os, signal, sys
import numpy as np
from rondel import Arena, DecoderSession, StreamSpec
from rondel.decoder.errors import RondelError
spec = StreamSpec.uniform(layers=1, query_heads=1, kv_heads=1, head_dim=8, max_length=500)
arena = Arena(8 << 20, path=sys.argv[1])
session = DecoderSession(spec, arena)
k = np.ones((3, 1, 8), np.float32)
session.append(0, k, k)
child = os.fork()
if child == 0:
    refused = 0
    for act in (lambda: session.append(0, k, k), lambda: session.truncate(1), session.seal, session.fork,
                lambda: DecoderSession(spec, arena)):
        try:
            act()
        except RondelError as error:
            refused += 1
    session.close()
    print(refused, flush=True)
    signal.pause()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_forked_process_neither_writes_to_the_file_nor_keeps_it(path: Path) -> None:
    """It has the mapping and a copy of the lock's descriptor; its parent is dead."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", FORKED, str(path)]
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as parent:
        assert parent.stdout is not None
        try:
            assert parent.stdout.readline() == "5\n"
            parent.wait()
            (stream,) = attach(Arena(8 << 20, path=path))
            assert stream.session is not None
            assert stream.session.length == 3
        finally:
            os.killpg(parent.pid, signal.SIGKILL)
