"""Restoring piece by piece, as a server does: any cut will do, and an error gives everything back at once."""

from __future__ import annotations

import io
import struct
import zlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mirror import Mirror, small

from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import CorruptSnapshot
from rondel.decoder.restore import Restoring
from rondel.decoder.session import DecoderSession

ARENA = Arena(budget=16 << 20)
KEPT = Mirror(small(centring=True), arena=ARENA).grow(700).session


def written(session: DecoderSession) -> bytes:
    file = io.BytesIO()
    session.snapshot(file)
    return file.getvalue()


RAW = written(KEPT)


def restoring() -> Restoring[DecoderSession]:
    return Restoring(lambda spec: DecoderSession(spec, ARENA))


@given(st.lists(st.integers(0, len(RAW)), max_size=30))
def test_any_cut_will_do(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(RAW)]
    incoming = restoring()
    for start, end in pairwise(places):
        incoming.feed(RAW[start:end])
    with incoming.finish() as session:
        assert written(session) == RAW


@pytest.mark.parametrize("at", [3, 30, 5000, len(RAW) - 40, len(RAW) - 2])
def test_an_error_gives_everything_back_at_once(at: int) -> None:
    before = ARENA.stats()
    incoming = restoring()
    with pytest.raises(CorruptSnapshot):
        incoming.feed(RAW[:at] + bytes([RAW[at] ^ 1]) + RAW[at + 1 :])
    assert ARENA.stats() == before
    with pytest.raises(CorruptSnapshot):
        incoming.feed(b"more")
    with pytest.raises(CorruptSnapshot):
        incoming.finish()


def test_an_end_that_comes_too_early_gives_everything_back() -> None:
    before = ARENA.stats()
    for end in (0, 24, 5000, len(RAW) - 1):
        incoming = restoring()
        incoming.feed(RAW[:end])
        with pytest.raises(CorruptSnapshot, match="ends after"):
            incoming.finish()
        assert ARENA.stats() == before


def test_closing() -> None:
    before = ARENA.stats()
    incoming = restoring()
    incoming.feed(RAW)
    incoming.close()
    incoming.close()
    assert ARENA.stats() == before
    incoming = restoring()
    incoming.feed(RAW)
    session = incoming.finish()
    incoming.close()  # the stream is no longer its own
    assert session.length == 700
    session.close()


@pytest.mark.parametrize(
    ("at", "form", "value"), [(0, "<Q", 0), (8, "<Q", 5), (16, "<Q", len(RAW) + 1), (24, "<I", 0)]
)
def test_trailers_of_other_snapshots(at: int, form: str, value: int) -> None:
    end = bytearray(RAW[-32:-4])
    struct.pack_into(form, end, at, value)
    before = ARENA.stats()
    with pytest.raises(CorruptSnapshot, match="trailer"):
        restoring().feed(RAW[:-32] + end + struct.pack("<I", zlib.crc32(end)))
    assert ARENA.stats() == before
