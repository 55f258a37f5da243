"""Snapshots that must be refused, in an arena that must be as it was."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from mirror import Mirror, small
from snapshot_parts import written

from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import (
    CorruptSnapshot,
    RondelError,
)
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec

ARENA = Arena(budget=16 << 20)
TINY = StreamSpec.uniform(layers=1, query_heads=1, kv_heads=1, head_dim=3, window=5, sinks=2)
KEPT = Mirror(TINY, arena=ARENA).grow(10).session
"""Never closed: its slabs stay, so thousands of small streams come and go without new memory."""


def tiny(**changes: Any) -> bytes:
    return written(Mirror(small(**changes)).grow(10).session if changes else KEPT)


@contextmanager
def arena_is_as_before(arena: Arena = ARENA) -> Iterator[None]:
    before = arena.stats()
    yield
    assert arena.stats() == before


def refused(raw: bytes, part: str | None = None, error: type[RondelError] = CorruptSnapshot) -> RondelError:
    with arena_is_as_before(), pytest.raises(error) as caught:
        DecoderSession.restore(io.BytesIO(raw), ARENA)
    assert type(caught.value) is error
    if part is not None:
        assert caught.value.facts["part"] == part, caught.value
    return caught.value
