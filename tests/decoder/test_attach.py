"""Streams in an arena's file go on in the next arena on it, to the bit."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from deeds import Streams, carry_out, tokens
from families import SPECS
from survivors import same

from rondel.decoder.attach import attach
from rondel.decoder.cache.arena import Arena, ArenaStats
from rondel.decoder.errors import (
    ArenaFileError,
    BudgetExceeded,
    InvalidRequest,
    InvalidSpec,
    QuotaExceeded,
    SessionBusy,
    StreamClosed,
    StreamSealed,
)
from rondel.decoder.session import DecoderSession

BUDGET = 32 << 20


def fill(session: DecoderSession, count: int, seed: int = 0) -> DecoderSession:
    """So many tokens more in every layer."""
    rng = np.random.default_rng(seed)
    for part in session.chunks(count):
        for layer in range(session.spec.layers):
            _, k, v = tokens(rng, session, layer, part.stop - part.start)
            session.append(layer, k, v)
    return session


def attached(arena: Arena, **options: str) -> Streams:
    """The sessions in a file, by tag; none was set aside."""
    found = attach(arena, **options)
    assert [each.reason for each in found] == [""] * len(found)
    return {each.tag.decode(): each.session for each in found if each.session is not None}


def again(arena: Arena, path: Path) -> tuple[Arena, Streams]:
    """Close an arena, open the file again and attach."""
    arena.close()
    arena = Arena(BUDGET, path=path)
    return arena, attached(arena)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "arena"


def test_all_kinds_of_streams_go_on(path: Path) -> None:
    """As twins in anonymous memory do, with the same room taken."""
    memory, arena = Arena(BUDGET), Arena(BUDGET, path=path)
    twins: Streams = {}
    for name, spec in SPECS.items():
        fill(DecoderSession(spec, arena, tag=name.encode()), 500)
        twins[name] = fill(DecoderSession(spec, memory), 500)
    before = arena.stats()
    for round_ in range(3):
        arena, streams = again(arena, path)
        assert arena.stats() == before if round_ == 0 else True
        assert set(streams) == set(twins)
        for name, session in streams.items():
            assert same(session, twins[name])
            assert session.generation == round_ + 1
            assert session.min_length == twins[name].min_length
            fill(session, 100, round_)
            fill(twins[name], 100, round_)
    for session in streams.values():
        session.close()
    assert arena.stats() == ArenaStats(BUDGET, 0, 0)
    assert again(arena, path)[1] == {}


def test_forks_share_their_pages_again(path: Path) -> None:
    arena = Arena(BUDGET, path=path)
    root = fill(DecoderSession(SPECS["endless"], arena, tag=b"root"), 400)
    family = {"root": root, "fork": fill(root.fork(tag=b"fork"), 3)}
    family["bounded"] = root.fork(tag=b"bounded", max_new_tokens=5)
    before, shared = arena.stats(), {name: each.stats().bytes_shared for name, each in family.items()}
    assert before.shared
    arena, streams = again(arena, path)
    assert arena.stats() == before
    assert {name: each.stats().bytes_shared for name, each in streams.items()} == shared
    twin = fill(fill(DecoderSession(SPECS["endless"], Arena(BUDGET)), 400), 3)
    assert same(streams["fork"], twin)
    fill(streams["bounded"], 5, 1)
    with pytest.raises(QuotaExceeded):
        fill(streams["bounded"], 1, 1)
    for name in ("root", "fork", "bounded"):  # each takes the charge over from the one before
        if name == "bounded":
            streams[name].truncate(400)
            assert same(streams[name], fill(DecoderSession(SPECS["endless"], Arena(BUDGET)), 400))
        streams[name].close()
    assert arena.stats() == ArenaStats(BUDGET, 0, 0)
    assert not arena._pools
    assert not arena._shares._of


def test_a_fork_whose_origin_was_closed_pays_for_its_pages(path: Path) -> None:
    arena = Arena(BUDGET, path=path)
    root = fill(DecoderSession(SPECS["endless"], arena, tag=b"root"), 400)
    root.fork(tag=b"reader", max_new_tokens=0)
    root.close()
    before = arena.stats()
    arena, streams = again(arena, path)
    assert arena.stats() == before
    assert streams["reader"].length == 400
    streams["reader"].close()
    assert arena.stats() == ArenaStats(BUDGET, 0, 0)


def test_layers_are_rolled_back_to_what_all_have(path: Path) -> None:
    arena = Arena(BUDGET, path=path)
    session = fill(DecoderSession(SPECS["ring"], arena, tag=b"s"), 700)
    _, k, v = tokens(np.random.default_rng(1), session, 0, 9)
    session.append(0, k, v)
    _, streams = again(arena, path)
    assert [streams["s"].layer_length(layer) for layer in range(2)] == [700, 700]
    assert same(streams["s"], fill(DecoderSession(SPECS["ring"], Arena(BUDGET)), 700))
    fill(streams["s"], 300, 2)
    twin = fill(fill(DecoderSession(SPECS["ring"], Arena(BUDGET)), 700), 300, 2)
    assert same(streams["s"], twin)


def test_truncates_seals_and_snapshots_are_kept(path: Path) -> None:
    arena = Arena(BUDGET, path=path)
    fill(DecoderSession(SPECS["endless"], arena, tag=b"cut"), 300).truncate(200)
    sealed = fill(DecoderSession(SPECS["endless"], arena, tag=b"sealed"), 200)
    sealed.seal()
    sealed.fork(tag=b"reader")
    snapshot = BytesIO()
    fill(DecoderSession(SPECS["ring"], Arena(BUDGET)), 555).snapshot(snapshot)
    snapshot.seek(0)
    DecoderSession.restore(snapshot, arena, tag=b"restored")
    _, streams = again(arena, path)
    assert (streams["cut"].length, streams["cut"].generation) == (200, 2)
    for name in ("sealed", "reader"):
        with pytest.raises(StreamSealed):
            fill(streams[name], 1)
    assert same(streams["restored"], fill(DecoderSession(SPECS["ring"], Arena(BUDGET)), 555))


def test_what_was_closed_or_never_published_is_gone(path: Path) -> None:
    arena = Arena(BUDGET, path=path)
    spec = SPECS["ring"]
    DecoderSession(spec, arena, tag=b"closed").close()
    hidden = fill(DecoderSession(spec, arena, tag=None), 20)
    late = DecoderSession(spec, arena, tag=None)
    late.publish(b"late")
    with pytest.raises(InvalidRequest, match="published already"):
        late.publish(b"twice")
    fill(DecoderSession(spec, arena, tag=b"dropped"), 20)
    fill(DecoderSession(spec, arena, tag=None), 20)
    gc.collect()
    used = arena.stats().resident
    fill(DecoderSession(spec, arena, tag=None), 20)
    gc.collect()
    assert arena.stats().resident == used, "what nobody can find again is given back"
    arena, streams = again(arena, path)
    assert set(streams) == {"late", "dropped"}
    assert hidden.closed
    with pytest.raises(StreamClosed):
        fill(late, 1)
    for session in streams.values():
        session.close()
    assert arena.stats() == ArenaStats(BUDGET, 0, 0)


def test_streams_that_nobody_attached_to_stay(path: Path) -> None:
    arena = Arena(BUDGET, path=path)
    fill(DecoderSession(SPECS["ring"], arena, tag=b"s"), 300)
    arena.close()
    other = Arena(BUDGET, path=path)
    fill(DecoderSession(SPECS["ring"], other, tag=b"t"), 300, 1)
    _, streams = again(other, path)
    assert set(streams) == {"s", "t"}
    assert same(streams["s"], fill(DecoderSession(SPECS["ring"], Arena(BUDGET)), 300))


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
