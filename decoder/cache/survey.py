"""What an arena's file holds, read without changing it: each stream's record, and whether it can be so.

Nothing read here is trusted. What is wrong with a stream is a reason not to go on with it, never an error:
one stream must not keep the others from being found.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rondel.decoder.cache.arena_file import ArenaFile
from rondel.decoder.cache.extent import Marks
from rondel.decoder.cache.layout import FORMAT_VERSION, RingLayout
from rondel.decoder.cache.record import (
    _CHECKSUM,
    _HEAD,
    BEGUN,
    GENERATION,
    HEAD_BYTES,
    LENGTHS,
    MAGIC,
    MAX_TAG,
    SEALED,
    VERSION,
    Shape,
    words_offset,
)
from rondel.decoder.cache.slabs import UNIT, units_of
from rondel.decoder.cache.words import WORD_BYTES, Words
from rondel.decoder.errors import RondelError
from rondel.decoder.snapshot_header import SnapshotHeader
from rondel.decoder.spec import StreamSpec

Page = tuple[int, int]
"""Size and offset."""


class Unsound(Exception):
    """A record that no stream can have; the text says why."""


@dataclass(slots=True)
class SlabMap:
    """Which slabs there are. ``damaged`` are units whose word is none, or whose slab cannot be."""

    sizes: dict[int, int] = field(default_factory=dict)
    damaged: list[int] = field(default_factory=list)
    _starts: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, file: ArenaFile) -> SlabMap:
        """The slabs of a file."""
        found = cls()
        for unit, size in file.slabs.used():
            units = range(unit, unit + units_of(size)) if size and not size % 64 else range(0)
            if not units or units.stop > len(file.slabs) or any(each in found._starts for each in units):
                found.damaged.append(unit)
                continue
            found.sizes[unit] = size or 0
            found._starts.update(dict.fromkeys(units, unit))
        return found

    @property
    def units(self) -> int:
        """Units of all slabs."""
        return len(self._starts)

    def holds(self, page: Page) -> bool:
        """Whether there is such a page in a slab of its size."""
        size, offset = page
        start = self._starts.get(offset // UNIT)
        if start is None or self.sizes[start] != size:
            return False
        place = offset - start * UNIT
        return place % size == 0 and place + size <= units_of(size) * UNIT

    def size_at(self, offset: int) -> int:
        """Size of the page that begins with this offset; 0 = none does."""
        size = self.sizes.get(self._starts.get(offset // UNIT, -1), 0)
        return size if size and self.holds((size, offset)) else 0


@dataclass(slots=True)
class Draft:
    """A stream as its record has it. With a ``reason`` only what could be read; it is not gone on with."""

    slot: int
    reason: str = ""
    tag: bytes = b""
    record: Page | None = None
    spec: StreamSpec | None = None
    shape: Shape | None = None
    words: Words | None = None
    layouts: list[RingLayout] = field(default_factory=list)
    demand: dict[int, int] = field(default_factory=dict)
    quota: int | None = None
    marks: Marks = field(default_factory=lambda: ([], [], 0, 0))
    generation: int = 0
    sealed: bool = False
    begun: int | None = None
    """The length before a change that was being made."""
    tables: list[NDArray[np.int64]] = field(default_factory=list)
    """Per group: offsets, -1 for none, -2 for an entry that cannot be read."""
    lent: list[NDArray[np.bool_]] = field(default_factory=list)

    def pages(self) -> Iterator[tuple[Page, bool]]:
        """The pages that the tables name, and whether each was lent."""
        for layout, table, lent in zip(self.layouts, self.tables, self.lent, strict=True):
            sink = layout.sink_page.page_bytes if layout.sink_page else 0
            for row, column in np.argwhere(table >= 0).tolist():
                size = layout.page.page_bytes if column else sink
                yield (size, int(table[row, column])), bool(lent[row, column])


def survey(file: ArenaFile, slabs: SlabMap) -> list[Draft]:
    """The streams in a file, by slot."""
    drafts = [_draft(file, slabs, slot, value) for slot, value in file.streams.used()]
    _refuse_strangers(drafts)
    return drafts


def _draft(file: ArenaFile, slabs: SlabMap, slot: int, value: int | None) -> Draft:
    draft = Draft(slot)
    try:
        if not value:
            raise Unsound("its entry in the stream table is damaged")
        _read(draft, file, slabs, value - 1)
        _check(draft, slabs)
    except Unsound as error:
        draft.reason = str(error)
    return draft


def _read(draft: Draft, file: ArenaFile, slabs: SlabMap, offset: int) -> None:
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
        draft.spec = SnapshotHeader.decode(spec, page_format=FORMAT_VERSION).spec
        plain = json.loads(promises)
        draft.demand = {int(name): int(pages) for name, pages in plain["demand"].items()}
        draft.quota = plain["quota"]
    except (RondelError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise Unsound(f"its record describes no stream: {error}") from error
    draft.layouts = [RingLayout.of(group, draft.spec.length_limit) for group in draft.spec.groups]
    draft.shape = shape = Shape.of(draft.spec, draft.layouts)
    start = words_offset(len(spec), len(promises), MAX_TAG, len(lent))
    if shape.words != words or shape.lent_bytes != len(lent) or start + WORD_BYTES * words > size:
        raise Unsound("its record is not of the size that such a stream's must be")
    draft.words = Words(page[start : start + WORD_BYTES * words], "record")
    _read_tables(draft, shape, draft.words, np.frombuffer(lent, np.uint8))
    _read_numbers(draft, shape, draft.words)


def _cut(body: bytes, sizes: Sequence[int]) -> Iterator[bytes]:
    start = 0
    for size in sizes:
        yield body[start : start + size]
        start += size


def _read_tables(draft: Draft, shape: Shape, words: Words, lent: NDArray[np.uint8]) -> None:
    flags = np.unpackbits(lent).astype(np.bool_)
    for group, layout in enumerate(draft.layouts):
        first, stop = shape.table(group), shape.table(group) + shape.entries[group]
        values = [words.get(index) for index in range(first, stop)]
        offsets = [-2 if value is None else value - 1 for value in values]
        table = np.array(offsets, dtype=np.int64).reshape(len(layout.group.layers), -1)
        begin = first - shape.table(0)
        draft.tables.append(table)
        draft.lent.append(flags[begin : begin + table.size].reshape(table.shape))


def _read_numbers(draft: Draft, shape: Shape, words: Words) -> None:
    numbers = [words.get(index) for index in range(shape.table(0))]
    known = [number for number in numbers if number is not None]
    if len(known) < len(numbers):
        raise Unsound("a number in its record is damaged")
    lengths, claimed = known[LENGTHS : shape.claims], known[shape.claims :]
    draft.marks = (lengths, claimed, min(lengths), max(claimed))
    draft.generation, draft.sealed = known[GENERATION], bool(known[SEALED])
    draft.begun = known[BEGUN] - 1 if known[BEGUN] else None


def _check(draft: Draft, slabs: SlabMap) -> None:
    lengths, claimed, _, high_water = draft.marks
    if draft.spec is None:
        raise Unsound("it has no specification")
    try:
        SnapshotHeader(
            spec=draft.spec,
            page_format=FORMAT_VERSION,
            lengths=tuple(lengths),
            claimed=tuple(claimed),
            high_water=high_water,
            generation=draft.generation,
            sealed=draft.sealed,
        )
    except RondelError as error:
        raise Unsound(f"its lengths cannot be: {error}") from error
    if any((table < -1).any() for table in draft.tables):
        raise Unsound("an entry of its page tables is damaged")
    seen: set[Page] = {draft.record} if draft.record else set()
    for page, _ in draft.pages():
        if not slabs.holds(page):
            raise Unsound(f"its page of {page[0]} bytes at {page[1]} is in no slab")
        if page in seen:
            raise Unsound(f"its page tables name the page at {page[1]} twice")
        seen.add(page)
    for layout, table in zip(draft.layouts, draft.tables, strict=True):
        for row, layer in zip(table, layout.group.layers, strict=True):
            needed = _columns(layout, draft.marks[2], claimed[layer])
            if (row[needed] < 0).any():
                raise Unsound(f"layer {layer} lacks a page that its {draft.marks[2]} tokens need")


def _columns(layout: RingLayout, length: int, claimed: int) -> list[int]:
    """Columns of the page table that hold what can be read of a layer with such a length and claim."""
    oldest = layout.oldest_whole(claimed)
    ring = layout.columns(max(oldest, layout.group.sinks), length) if oldest < length else []
    return sorted({*ring, *layout.columns(0, min(length, layout.group.sinks))})


def _refuse_strangers(drafts: list[Draft]) -> None:
    """Streams that were forked name a page in the same place of their tables. Whoever names another's
    elsewhere is wrong."""
    owners: dict[Page, tuple[object, ...]] = {}
    for draft in drafts:
        if draft.record in owners:
            draft.record, draft.reason = None, draft.reason or "its record is another stream's"
        elif draft.record:
            owners[draft.record] = (draft.slot,)
    for draft in drafts:
        if draft.reason:
            continue
        mine: dict[Page, tuple[object, ...]] = {}
        for group, table in enumerate(draft.tables):
            layout = draft.layouts[group]
            sink = layout.sink_page.page_bytes if layout.sink_page else 0
            for row, line in enumerate(table.tolist()):
                for column, offset in enumerate(line):
                    if offset >= 0:
                        size = layout.page.page_bytes if column else sink
                        mine[size, offset] = (draft.spec, group, row, column)
        wrong = [page for page, place in mine.items() if owners.get(page, place) != place]
        if wrong:
            draft.reason = f"its page at {wrong[0][1]} is another stream's"
        else:
            owners.update(mine)
