"""Writing snapshots: in pieces, to files that fail or take a part, and only what a stream still needs."""

from __future__ import annotations

import gc
import io
from typing import Any

import pytest
from mirror import Mirror, small
from oracle import STORAGES
from snapshot_parts import assert_equal, written

from rondel.decoder.cache.account import Account
from rondel.decoder.cache.arena import Arena, ArenaStats
from rondel.decoder.errors import (
    BudgetExceeded,
    InvalidRequest,
    QuotaExceeded,
    SessionBusy,
    StreamClosed,
)
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec


@pytest.mark.parametrize("size", [1, 7, 1000, 4096, 1 << 20])
def test_pieces_are_the_snapshot(size: int) -> None:
    session = Mirror(small()).grow(20).session
    pieces = session.snapshot_pieces(at_most=size)
    parts = list(pieces)
    assert all(len(part) == size for part in parts[:-1])
    assert 0 < len(parts[-1]) <= size
    assert b"".join(parts) == written(session)
    assert pieces.total_bytes == len(written(session))


def test_pieces_are_at_most_a_mebibyte_however_large_a_page_is() -> None:
    spec = StreamSpec.uniform(
        layers=1, query_heads=8, kv_heads=8, head_dim=1024, storage="float32", max_length=128
    )
    mirror = Mirror(spec).grow(10)
    sizes: list[int] = []
    raw = bytearray()

    class File:
        def write(self, data: bytes) -> None:
            sizes.append(len(data))
            raw.extend(data)

    class Source(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            assert size == 1 << 20
            return super().read(size)

    mirror.session.snapshot(File())
    assert max(sizes) == 1 << 20
    other = DecoderSession.restore(Source(raw), Arena(budget=64 << 20))
    assert_equal(mirror.session, other)


@pytest.mark.parametrize("change", ["append", "truncate", "seal"])
def test_pieces_end_when_the_stream_changes(change: str) -> None:
    mirror = Mirror(small()).grow(300)
    session, pieces = mirror.session, mirror.session.snapshot_pieces(at_most=5000)
    assert len(next(pieces)) == 5000
    mirror.check_attend(0, 3, 290)
    assert len(next(pieces)) == 5000
    {"append": lambda: mirror.grow(301), "truncate": lambda: mirror.truncate(300), "seal": session.seal}[
        change
    ]()
    for _ in range(2):
        with pytest.raises(SessionBusy, match="changed"):
            next(pieces)


@pytest.mark.parametrize("storage", STORAGES)
def test_pieces_apart_are_the_stream_as_it_was(storage: str) -> None:
    """Through every change, and its end; what is held for them goes back when they end, or are dropped."""
    arena = Arena(budget=64 << 20)
    mirror = Mirror(small(storage=storage), arena=arena).grow(300)
    before, pages = written(mirror.session), arena.stats().resident
    pieces = [mirror.session.snapshot_pieces(at_most=5000, apart=True) for _ in range(3)]
    raw = next(pieces[0])
    mirror.grow(900)
    mirror.truncate(mirror.min_length)
    mirror.grow(910)
    mirror.check_stored()
    raw += next(pieces[0])
    assert arena.stats().resident > pages
    assert mirror.session.close() > 0
    assert raw + b"".join(pieces[0]) == before
    assert list(pieces[0]) == []
    next(pieces[1])
    pieces[1].close()
    pieces[1].close()
    with pytest.raises(StreamClosed):
        next(pieces[1])
    assert b"".join(pieces[2]) == before
    assert arena.stats() == ArenaStats(64 << 20, 0, 0)
    Mirror(small(storage=storage), arena=arena).session.snapshot_pieces(apart=True)
    gc.collect()
    assert arena.stats() == ArenaStats(64 << 20, 0, 0)


def test_pieces_apart_need_room_for_copies() -> None:
    spec, roomy = small(window=2000, kv_heads=4, head_dim=128, value_dim=128), Arena(budget=64 << 20)
    with DecoderSession(spec, roomy):
        arena = Arena(budget=roomy.stats().reserved)
    mirror = Mirror(spec, arena=arena).grow(1990)
    before = arena.stats()
    with pytest.raises(BudgetExceeded):
        mirror.session.snapshot_pieces(apart=True)
    assert arena.stats() == before
    assert b"".join(mirror.session.snapshot_pieces()) == written(mirror.session)
    mirror.session.seal()  # what nothing changes needs no copies
    assert b"".join(mirror.session.snapshot_pieces(apart=True)) == written(mirror.session)


def test_pieces_apart_are_on_their_streams_account() -> None:
    arena, account = Arena(budget=64 << 20), Account()
    session = DecoderSession(small(), arena, account=account)
    mirror = Mirror(small())
    mirror.session = session
    mirror.grow(300)
    before = account.reserved, account.resident, account.shared
    pieces = session.snapshot_pieces(apart=True)
    assert (account.reserved, account.shared) == (before[0] + before[1], before[1])
    assert b"".join(pieces) == written(session)
    assert (account.reserved, account.resident, account.shared) == before
    account.limit = account.reserved
    with pytest.raises(QuotaExceeded):
        session.snapshot_pieces(apart=True)
    assert (account.reserved, account.resident, account.shared) == before


def test_closed_streams() -> None:
    session = Mirror(small()).grow(300).session
    pieces = session.snapshot_pieces(at_most=100)
    next(pieces)
    session.close()
    for call in (lambda: next(pieces), lambda: session.snapshot(io.BytesIO()), session.snapshot_pieces):
        with pytest.raises(StreamClosed):
            call()


def test_a_file_that_fails_leaves_the_stream_as_it_is() -> None:
    mirror = Mirror(small()).grow(300)
    before = mirror.state()

    class Full:
        def write(self, data: bytes) -> int:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        mirror.session.snapshot(Full())
    assert mirror.state() == before


def test_files_that_take_a_part_of_what_they_are_given() -> None:
    session = Mirror(small()).grow(300).session
    raw = bytearray()

    class Narrow:
        def write(self, data: bytes) -> int:
            raw.extend(data[:1009])
            return min(1009, len(data))

    class Full(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> None:
            return None

    session.snapshot(Narrow())
    assert raw == written(session)
    with pytest.raises(BlockingIOError):
        session.snapshot(Full())


@pytest.mark.parametrize("taken", [0, -1, 10**9])
def test_a_file_that_never_takes_anything_is_not_asked_for_ever(taken: int) -> None:
    class Wrong:
        def write(self, data: bytes) -> int:
            return taken

    with pytest.raises(InvalidRequest, match=f"got {taken}"):
        Mirror(small()).grow(300).session.snapshot(Wrong())


def test_what_is_no_binary_file() -> None:
    with pytest.raises(InvalidRequest, match="binary file, got str"):
        DecoderSession.restore(io.StringIO("text"), Arena(budget=2 << 20))  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="at_most"):
        Mirror(small()).session.snapshot_pieces(at_most=0)


@pytest.mark.parametrize("storage", STORAGES)
def test_only_pages_with_tokens_are_written(storage: str) -> None:
    mirror = Mirror(small(storage=storage))
    empty = len(written(mirror.session))
    assert empty < 1000
    page = mirror.session._rings[0].layout.page.page_bytes
    sinks = mirror.session._rings[0].layout.sink_page
    assert sinks is not None
    sizes = {}
    for length in (3, 4, 131, 132, 2000):
        mirror.grow(length)
        sizes[length] = (len(written(mirror.session)) - empty) / 2
    pages = {3: 0, 4: 1, 131: 1, 132: 2, 2000: 2}
    assert sizes == {n: pytest.approx(sinks.page_bytes + pages[n] * page, abs=60) for n in sizes}
