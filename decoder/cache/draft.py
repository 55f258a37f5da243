"""A stream as its record in an arena's file has it.

Nothing read here is trusted: what no stream can have is :class:`Unsound`.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from rondel.decoder.cache.arena_file import ArenaFile
from rondel.decoder.cache.cuts import PLACE_BYTES, PLACES, Cut, read_cut
from rondel.decoder.cache.extent import Marks
from rondel.decoder.cache.layout import FORMAT_VERSION, RingLayout
from rondel.decoder.cache.record import (
    _CHECKSUM,
    _HEAD,
    BEGUN,
    CUT,
    GENERATION,
    HEAD_BYTES,
    LENGTHS,
    MAGIC,
    MAX_TAG,
    SEALED,
    VERSION,
    Shape,
    places_offset,
    record_bytes,
    words_offset,
)
from rondel.decoder.cache.slab_map import Page, SlabMap
from rondel.decoder.cache.words import WORD_BYTES, Words
from rondel.decoder.errors import RondelError
from rondel.decoder.snapshot_header import SnapshotHeader
from rondel.decoder.spec import StreamSpec


class Unsound(Exception):
    """A record that no stream can have; the text says why."""


@dataclass(slots=True)
class Draft:
    """A stream as its record has it. With a ``reason`` only what could be read; it is not gone on with."""

    slot: int
    reason: str = ""
    tag: bytes = b""
    record: Page | None = None
    spec: StreamSpec | None = None
    shape: Shape | None = None
    start: int = 0
    """Where the words of the record begin in its page."""
    layouts: list[RingLayout] = field(default_factory=list)
    demand: dict[int, int] = field(default_factory=dict)
    quota: int | None = None
    marks: Marks = field(default_factory=lambda: ([], [], 0, 0))
    generation: int = 0
    sealed: bool = False
    cut: Cut | None = None
    """The last truncate. One that was not completed counts as carried out, here and in ``marks``."""
    saved: bool = False
    """Whether ``marks`` and ``tables`` are what was saved before a call that was not completed."""
    tables: list[NDArray[np.int64]] = field(default_factory=list)
    """Per group: offsets, -1 for none, -2 for an entry that cannot be read."""
    lent: list[NDArray[np.bool_]] = field(default_factory=list)

    def pages(self) -> Iterator[tuple[Page, bool]]:
        """The pages that the tables name, and whether each was lent."""
        for layout, table, lent in zip(self.layouts, self.tables, self.lent, strict=True):
            sink, size = layout.sink_page.page_bytes if layout.sink_page else 0, layout.page.page_bytes
            rows, columns = np.nonzero(table >= 0)
            named = zip(
                columns.tolist(), table[rows, columns].tolist(), lent[rows, columns].tolist(), strict=True
            )
            for column, offset, borrowed in named:
                yield (size if column else sink, offset), borrowed


def read(draft: Draft, file: ArenaFile, slabs: SlabMap, offset: int) -> None:
    size = slabs.size_at(offset)
    if size < HEAD_BYTES:
        raise Unsound(f"its record at {offset} is in no slab")
    draft.record = (size, offset)
    page = file.bytes.data[offset : offset + size]
    magic, version, *sizes, words, identity, place, slot = _HEAD.unpack_from(page)
    want = (MAGIC, file.superblock.identity, offset, draft.slot)
    if (magic, identity, place, slot) != want or sum(sizes) > size - HEAD_BYTES:
        raise Unsound(f"its record at {offset} is damaged")
    body = bytes(page[HEAD_BYTES : HEAD_BYTES + sum(sizes)])
    (checksum,) = _CHECKSUM.unpack_from(page, _HEAD.size)
    if zlib.crc32(body, zlib.crc32(page[: _HEAD.size])) != checksum:
        raise Unsound(f"its record at {offset} is damaged")
    if version != VERSION:
        raise Unsound(f"its record is of version {version}, this version of Rondel reads {VERSION}")
    spec, promises, tag, lent = _cut(body, sizes)
    draft.tag = tag
    try:
        draft.spec, draft.layouts, draft.shape = _described(spec)
        plain = json.loads(promises)
        draft.demand = {int(name): int(pages) for name, pages in plain["demand"].items()}
        draft.quota = plain["quota"]
    except (RondelError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise Unsound(f"its record describes no stream: {error}") from error
    shape = draft.shape
    draft.start = start = words_offset(len(spec), len(promises), MAX_TAG, len(lent))
    if shape.words != words or shape.lent_bytes != len(lent) or record_bytes(start, shape) > size:
        raise Unsound("its record is not of the size that such a stream's must be")
    held = Words(page[start : start + WORD_BYTES * words], "record")
    # What was saved counts only while a change is being made.
    saved = held.values(shape.saved, shape.saved + (shape.layers if shape.wraps else 0)).tolist()
    draft.saved = bool(held.get(BEGUN)) and any(saved)
    # First, so that whatever else is damaged the stream's pages are known for its own.
    _read_tables(draft, shape, held, np.frombuffer(lent, np.uint8))
    numbers = _read_numbers(draft, shape, held, saved)
    _finish_cut(draft, numbers[CUT], page[places_offset(start, shape) :])


@lru_cache(maxsize=64)  # a file has many streams of few kinds
def _described(raw: bytes) -> tuple[StreamSpec, list[RingLayout], Shape]:
    spec = SnapshotHeader.decode(raw, page_format=FORMAT_VERSION).spec
    layouts = [RingLayout.of(group, spec.length_limit) for group in spec.groups]
    return spec, layouts, Shape.of(spec, layouts)


def _cut(body: bytes, sizes: Sequence[int]) -> Iterator[bytes]:
    start = 0
    for size in sizes:
        yield body[start : start + size]
        start += size


def _read_numbers(draft: Draft, shape: Shape, words: Words, saved: Sequence[int]) -> list[int]:
    known: list[int] = words.values(0, shape.table(0)).tolist()
    before = [number - 1 for number in saved]
    if min(known) < 0 or (draft.saved and min(before) < 0):
        raise Unsound("a number in its record is damaged")
    draft.generation, draft.sealed = known[GENERATION], bool(known[SEALED])
    lengths, claimed = known[LENGTHS : shape.claims], known[shape.claims :]
    if known[BEGUN]:
        back, claimed = known[BEGUN] - 1, before if draft.saved else claimed
        # What was saved is whole, also where a layer had claimed more already than this would let it.
        if not draft.saved and min(lengths) > back and _overwrites(draft.layouts, claimed, back):
            raise Unsound("a change of it was not completed, and what it was before is gone")
        lengths = [min(length, back) for length in lengths]
    draft.marks = (lengths, claimed, min(lengths), max(claimed))
    return known


def _overwrites(layouts: Sequence[RingLayout], claimed: Sequence[int], length: int) -> bool:
    """Whether rings with such claims no longer hold what a stream of this length sees."""
    return any(
        layout.wraps_at(claimed[layer]) and claimed[layer] - layout.group.reserve > length
        for layout in layouts
        for layer in layout.group.layers
    )


def _read_tables(draft: Draft, shape: Shape, words: Words, lent: NDArray[np.uint8]) -> None:
    flags = np.unpackbits(lent).astype(np.bool_)
    for group, layout in enumerate(draft.layouts):
        first, stop = shape.table(group), shape.table(group) + shape.entries[group]
        values = words.values(first, stop)
        if draft.saved:
            before = words.values(first + shape.to_saved, stop + shape.to_saved)
            values = np.where(before == 0, values, before)
        table = (values - 1).reshape(len(layout.group.layers), -1)
        begin = first - shape.table(0)
        draft.tables.append(table)
        draft.lent.append(flags[begin : begin + table.size].reshape(table.shape))


def _finish_cut(draft: Draft, place: int, places: memoryview) -> None:
    """Read the last truncate; one that was begun counts as carried out."""
    if not place:
        return
    start = (place - 1) * PLACE_BYTES
    draft.cut = read_cut(places[start : start + PLACE_BYTES]) if place <= PLACES else None
    if draft.cut is None:
        raise Unsound("what its record says of the last truncate is damaged")
    if draft.cut.generation == draft.generation + 1:
        lengths, claimed, _, high_water = draft.marks
        lengths = [min(length, draft.cut.length) for length in lengths]
        draft.generation, draft.marks = draft.cut.generation, (lengths, claimed, min(lengths), high_water)
