"""A stored byte that changes is found, whichever it is, and said to be where it is."""

from __future__ import annotations

import numpy as np
import pytest
from castagnoli import crc32c
from comparators import assert_same_bits
from oracle import ENGINES, TIERS, Case, Stream

from rondel.decoder import kernels

engines = pytest.mark.parametrize(("tier", "storage"), ENGINES)
centred_too = pytest.mark.parametrize(
    ("tier", "storage", "centring"),
    [(*engine, False) for engine in ENGINES] + [(tier, "int8", True) for tier in TIERS],
)


def small(tier: str, storage: str, **more: bool) -> Case:
    return Case(
        tier=tier, storage=storage, heads=(4, 2), dims=(6, 5), window=100, sinks=3, reserve=10, **more
    )


def damaged(stream: Stream, first: int, count: int) -> int:
    rings = stream.session._rings[0]
    kernel = kernels.load(stream.case.tier)
    return kernel.damaged(rings.words, stream.session._arena.base, rings.table(0), first, count)


def held(stream: Stream) -> range:
    """Positions that the ring has whole, behind the sinks."""
    session = stream.session
    oldest = session._rings[0].layout.oldest_whole(session.high_water)
    return range(max(oldest, stream.case.sinks), session.length)


@centred_too
def test_what_was_stored_is_sound(tier: str, storage: str, centring: bool) -> None:
    stream = Stream(small(tier, storage, centring=centring))
    for length in (1, 3, 4, 131, 132, 300, 900):
        stream.grow(length)
        assert damaged(stream, 0, min(3, length)) == -1
        assert damaged(stream, held(stream).start, len(held(stream))) == -1
    stream.session.truncate(895)
    stream.grow(930)
    assert damaged(stream, held(stream).start, len(held(stream))) == -1


@centred_too
def test_any_byte_that_changes_is_found_or_does_not_matter(tier: str, storage: str, centring: bool) -> None:
    stream = Stream(small(tier, storage, centring=centring)).grow(3 + 128 + 100)
    q = stream.queries(1)
    want = stream.session.attend(0, q)
    session, found, harmless = stream.session, 0, 0
    pages = session._rings[0].table(0)
    layout = session._rings[0].layout
    assert layout.sink_page is not None
    for number, page in ((0, layout.sink_page), (1, layout.page), (2, layout.page)):
        content = session._pages.contents(page.page_bytes, int(pages[number]))
        begin = 3 + 128 * (number - 1) if number else 0
        tokens = min(128, session.length - begin) if number else 3
        for at in range(0, page.page_bytes, 1 if tier == TIERS[-1] else 7):
            content[at] ^= 1 << at % 8
            position = damaged(stream, begin, tokens)
            if position == -1:
                assert_same_bits(stream.session.attend(0, q), want, f"page {number}, byte {at}")
                harmless += 1
            else:
                assert begin <= position < begin + tokens
                found += 1
            content[at] ^= 1 << at % 8
    assert damaged(stream, 0, 3) == damaged(stream, 3, 228) == -1
    assert found > harmless / 3, (found, harmless)  # the rest is padding and slots that are not in use


@engines
def test_the_damaged_token_is_the_one_that_is_named(tier: str, storage: str) -> None:
    stream = Stream(small(tier, storage)).grow(200)
    rings = stream.session._rings[0]
    page = stream.session._pages.contents(rings.layout.page.page_bytes, int(rings.table(0)[1]))
    for position in (3, 50, 130):
        # The first kv head's key, four bytes of which every tile of 16 tokens has in every 64.
        size = 1 if storage == "int8" else 4
        slot = position - 3
        at = slot // 16 * 16 * rings.layout.page.key_pad * size + 4 * (slot % 16)
        page[at] ^= 1
        assert damaged(stream, 3, 197) == position
        page[at] ^= 1


@engines
def test_an_old_lap_is_no_new_one(tier: str, storage: str) -> None:
    """A page whose bytes are of an earlier lap has sound tokens, but not those that are asked for."""
    stream = Stream(small(tier, storage)).grow(3 + 128)
    rings = stream.session._rings[0]
    page = stream.session._pages.contents(rings.layout.page.page_bytes, int(rings.table(0)[1]))
    before = page.copy()
    stream.grow(3 + 128 + rings.layout.capacity)
    assert damaged(stream, 3 + rings.layout.capacity, 128) == -1
    page[:] = before
    assert damaged(stream, 3 + rings.layout.capacity, 128) == 3 + rings.layout.capacity


def test_the_definition_that_others_are_held_to() -> None:
    """The check value that catalogues of CRCs give."""
    assert crc32c(np.frombuffer(b"123456789", np.uint8)[None])[0] == 0xE3069283
