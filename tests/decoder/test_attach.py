"""Streams in an arena's file go on in the next arena on it, to the bit."""

from __future__ import annotations

import gc
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from deeds import Streams, tokens
from families import SPECS
from found import BUDGET, again, fill
from survivors import same

from rondel.decoder.cache.arena import Arena, ArenaStats
from rondel.decoder.errors import (
    InvalidRequest,
    QuotaExceeded,
    StreamClosed,
    StreamSealed,
)
from rondel.decoder.session import DecoderSession


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
