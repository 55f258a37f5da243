"""An arena's file that is closed while a snapshot of it, or into it, is on its way: it is others' then."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from rondel.decoder.attach import attach
from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import ArenaFileError, StreamClosed
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec

SPEC = StreamSpec.uniform(layers=2, query_heads=1, kv_heads=1, head_dim=64, max_length=1024)
BUDGET = 8 << 20


def grown(arena: Arena) -> DecoderSession:
    session = DecoderSession(SPEC, arena)
    k = np.random.default_rng(0).standard_normal((2, 1000, 1, 64), np.float32)
    session.append_all(k, k)
    return session


class Closing(io.BytesIO):
    """Closes an arena before its third piece is read, and has another take the file and fill it."""

    def __init__(self, raw: bytes, arena: Arena, path: Path) -> None:
        super().__init__(raw)
        self._arena, self._path = arena, path
        self.other: DecoderSession | None = None
        self._left = 3

    def read(self, size: int | None = -1, /) -> bytes:
        self._left -= 1
        if not self._left:
            self._arena.close()
            self.other = grown(Arena(BUDGET, path=self._path))
        return super().read(50_000)


def test_a_restore_writes_nothing_after_its_arena_was_closed(tmp_path: Path) -> None:
    raw = io.BytesIO()
    grown(Arena(BUDGET)).snapshot(raw)
    path = tmp_path / "arena"
    arena = Arena(BUDGET, path=path)
    reader = Closing(raw.getvalue(), arena, path)
    with pytest.raises(StreamClosed):
        DecoderSession.restore(reader, arena)
    assert reader.other is not None
    reader.other._arena.close()
    (found,) = attach(Arena(BUDGET, path=path))
    assert found.reason == ""


def test_pieces_that_are_apart_end_with_their_arena(tmp_path: Path) -> None:
    path = tmp_path / "arena"
    arena = Arena(BUDGET, path=path)
    pieces = grown(arena).snapshot_pieces(at_most=1000, apart=True)
    next(pieces)
    arena.close()
    for _ in range(2):
        with pytest.raises(ArenaFileError):
            next(pieces)
    pieces.close()
