"""Snapshots that are damaged or foreign, or hold impossible pages: always an error, and nothing is left."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from deeds import tokens
from families import SPECS
from mirror import Mirror, small
from scenes import grown
from snapshot_parts import Parts, written
from snapshot_refusals import ARENA, TINY, arena_is_as_before, refused, tiny

from rondel.decoder.cache.arena import Arena
from rondel.decoder.cache.layout import RingLayout
from rondel.decoder.errors import BudgetExceeded, CorruptSnapshot, InvalidShape, UnsupportedSnapshot
from rondel.decoder.projection import Projection, Projections
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec


def test_every_byte_flipped() -> None:
    raw = tiny()
    header = struct.unpack_from("<I", raw, 12)[0]
    for at in range(len(raw)):
        damaged = bytearray(raw)
        damaged[at] ^= 0xFF if at % 2 else 1 << (at // 2 % 8)
        part = (
            "preamble"
            if at < 24
            else "header"
            if at < 24 + header
            else "trailer"
            if at >= len(raw) - 32
            else "page"
        )
        assert refused(damaged).facts["part"] == part, at


def test_every_truncation() -> None:
    raw = tiny()
    for end in range(len(raw)):
        assert refused(raw[:end], "end").facts["offset"] == end


@pytest.mark.parametrize(
    "times", [40, pytest.param(2000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
@pytest.mark.parametrize("name", ["ring centred", "ring float32", "several"])
def test_bytes_anywhere_in_a_stream_that_has_wrapped(name: str, times: int, rng: np.random.Generator) -> None:
    """Flipped, or the last that there are; layers are not level and some tokens were undone."""
    arena = Arena(budget=32 << 20)
    session = grown(DecoderSession(SPECS[name], arena), 700)
    session.truncate(session.length - 5)
    grown(session, 2, 1)
    session.append(0, *tokens(rng, session, 0, 3)[1:])
    raw = written(session)
    with arena_is_as_before(arena):
        for at in rng.integers(0, len(raw), times).tolist():
            damaged = bytearray(raw)
            damaged[at] ^= 1 << int(rng.integers(8))
            for content in (damaged, raw[:at]):
                with pytest.raises(CorruptSnapshot):
                    DecoderSession.restore(io.BytesIO(content), arena)
    DecoderSession.restore(io.BytesIO(raw), arena)


@pytest.mark.parametrize("more", [b"\0", b"\n", b"x" * 3_000_000])
def test_bytes_after_the_end(more: bytes) -> None:
    refused(tiny() + more, "end")


@pytest.mark.parametrize(
    "raw", [b"", b"\0" * 100, b"GGUF" * 100, b"\x89RNDL\n\x1a" + b"\0" * 50, bytes(range(256)) * 5000]
)
def test_what_is_no_snapshot(raw: bytes) -> None:
    refused(raw)


def test_pages_in_another_order_left_out_or_twice() -> None:
    spec = small()
    parts = Parts.of(written(Mirror(spec).grow(300).session), spec)
    pages = parts.pages
    assert len(pages) == 6
    for wrong in (pages[::-1], pages[:-1], [*pages, pages[-1]], [pages[0], *pages], [*pages[:2], *pages[3:]]):
        refused(Parts(parts.header, wrong).join())
    # Of two layers the pages are alike: only their places tell them apart.
    swapped = [
        (other[0], other[1], page[2])
        for page, other in zip(pages, [pages[1], pages[0], *pages[2:]], strict=True)
    ]
    refused(Parts(parts.header, swapped).join())


def test_a_page_for_another_position() -> None:
    spec = small()
    parts = Parts.of(written(Mirror(spec).grow(300).session), spec)
    (first, index, one), (second, _, other) = parts.pages[2], parts.pages[4]
    assert (first, second) == (0, 0)
    parts.pages[2], parts.pages[4] = (first, index, other), (second, index + 1, one)
    refused(parts.join(), "page")


def test_another_version() -> None:
    parts = Parts.of(tiny(), TINY)
    for version in (0, 2, 2**32 - 1):
        error = refused(Parts(parts.header, parts.pages, version).join(), error=UnsupportedSnapshot)
        assert isinstance(error, UnsupportedSnapshot)
        assert (error.version, error.supported) == (version, 1)
    parts.header["page_format"] = 2
    assert "format 2" in refused(parts.join(), error=UnsupportedSnapshot).message


def test_an_arena_that_is_too_small() -> None:
    raw = written(
        Mirror(StreamSpec.uniform(layers=4, query_heads=8, kv_heads=8, head_dim=128, window=900))
        .grow(300)
        .session
    )
    arena = Arena(budget=4 << 20)
    with arena_is_as_before(arena), pytest.raises(BudgetExceeded):
        DecoderSession.restore(io.BytesIO(raw), arena)


def test_projections_that_do_not_fit() -> None:
    ones = np.ones((4, 4), np.float32)
    with arena_is_as_before(), pytest.raises(InvalidShape):
        DecoderSession.restore(
            io.BytesIO(tiny()), ARENA, projections=Projections({0: Projection(ones, ones, ones)})
        )


def test_a_file_that_fails() -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell() > 3000:
                raise OSError(5, "Input/output error")
            return super().read(1000)

    with arena_is_as_before(), pytest.raises(OSError, match="Input/output"):
        DecoderSession.restore(Broken(tiny()), ARENA)


# --- pages that no kernel can have written --------------------------------------------------------


def put(page: bytearray, at: int, form: str, value: float) -> None:
    struct.pack_into(form, page, at, value)


RING = RingLayout.of(small().groups[0], 1 << 40).page
CODES = RING.slots * (RING.key_pad + RING.value_pad)
MEANS = CODES + 4 * RING.slots
TAIL = RING.tail_offset + 4 * RING.slots


@pytest.mark.parametrize(
    ("at", "form", "value"),
    [
        (0, "b", -128),
        (RING.run_bytes + 5000, "b", -128),
        (CODES, "<H", 0x7F80),  # an infinite scale
        (CODES + 2, "<H", 0x7FC0),  # NaN
        (CODES + 4, "<H", 0x8001),  # negative
        (CODES + 6, "<H", 0x7000),  # 1e29
        (MEANS, "<H", 0x3F80),  # a mean in a page that is not centred
        (MEANS + 2 * RING.key_pad, "b", 1),
        (TAIL, "<I", 0x47505253),
        (TAIL + 4, "<H", 2),
        (TAIL + 6, "b", 1),
        (TAIL + 7, "b", 1),
        (TAIL + 8, "<q", 131),
        (TAIL + 8, "<q", -(2**63)),
    ],
)
def test_impossible_int8_pages(at: int, form: str, value: int) -> None:
    parts = Parts.of(tiny(sinks=0), small(sinks=0))
    put(parts.pages[0][2], at, form, value)
    refused(parts.join(), "page")


@pytest.mark.parametrize(
    ("at", "form", "value"),
    [
        (MEANS, "<H", 0x7F80),
        (MEANS, "<H", 0xFFFF),
        (MEANS + 2 * RING.key_pad, "b", 21),
        (MEANS + 2 * RING.key_pad, "b", -1),
    ],
)
def test_impossible_centres(at: int, form: str, value: int) -> None:
    parts = Parts.of(tiny(sinks=0, centring=True), small(sinks=0, centring=True))
    put(parts.pages[0][2], at, form, value)
    refused(parts.join(), "page")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e17])
def test_impossible_float32_pages(value: float) -> None:
    spec = small(sinks=0, storage="float32")
    parts = Parts.of(tiny(sinks=0, storage="float32"), spec)
    put(parts.pages[1][2], 400, "<f", value)
    refused(parts.join(), "page")
