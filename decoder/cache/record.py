"""What an arena's file says about one stream: a page of its own, and the slot that leads to it.

- head, 64 bytes: magic (8 bytes) · version uint32 · bytes of the specification, of the promises, of the tag
  and of the lent flags, uint32 each · words uint32 · identity of the file uint64 · offset of this page uint64
  · slot uint64 · CRC-32 of all of the head before it and of what follows it, uint32
- specification: the canonical JSON of ``snapshot_header.py``, of a stream without tokens
- promises: canonical JSON; how many pages of which size were promised, and the most tokens of a fork
- tag: what the stream's owner wants to know it by
- lent flags: a bit per entry of the page tables: whether the page there when the stream was forked was none
  that it had promised room for
- from the next multiple of 64 on, words (``words.py``): generation · sealed · begun (a length plus 1: a
  change is being made that shows before it is complete) · cut (which place has the last truncate, 1 or 2; 0 =
  there was none) · length of each layer · claim of each layer · the page tables, group by group, row by row:
  offset plus 1, 0 for none. A stream with a ring that can wrap has as many words again, from the claims on:
  what to go back to from a change that overwrites it (``saved.py``), claims plus 1, and 0 for nothing
- from the next multiple of 64 on, two places for the last truncate (``cuts.py``)

All but words and places is written before the stream is in the table and does not change after.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from rondel.decoder.cache import crash
from rondel.decoder.cache.cuts import PLACE_BYTES, PLACES
from rondel.decoder.cache.layout import FORMAT_VERSION, RingLayout, round_up
from rondel.decoder.cache.reservation import Reservation
from rondel.decoder.cache.words import WORD_BYTES, Words
from rondel.decoder.errors import BudgetExceeded, ForkedProcess, InvalidRequest
from rondel.decoder.snapshot_header import SnapshotHeader
from rondel.decoder.spec import StreamSpec

if TYPE_CHECKING:
    from rondel.decoder.cache.arena import Arena
    from rondel.decoder.cache.arena_file import ArenaFile

MAGIC: Final = b"RNDLSTRM"
VERSION: Final = 2
MAX_TAG: Final = 1024
GENERATION: Final = 0
SEALED: Final = 1
BEGUN: Final = 2
CUT: Final = 3
LENGTHS: Final = 4
_HEAD: Final = struct.Struct("=8sIIIIIIQQQ")
_CHECKSUM: Final = struct.Struct("=I")
HEAD_BYTES: Final = 64
_LEAST: Final = 4096


def checked_tag(tag: bytes) -> bytes:
    """``tag`` if it is bytes, at most MAX_TAG of them. Raises InvalidRequest."""
    if not isinstance(tag, bytes) or len(tag) > MAX_TAG:
        got = f"{len(tag)} bytes" if isinstance(tag, bytes) else type(tag).__name__
        raise InvalidRequest(f"tag must be at most {MAX_TAG} bytes, got {got}", field="tag")
    return tag


@dataclass(frozen=True, slots=True)
class Shape:
    """How many words there are, and where. ``entries`` are those of each group's page tables; ``wraps`` says
    whether claims and entries are there twice."""

    layers: int
    entries: tuple[int, ...]
    wraps: bool

    @classmethod
    def of(cls, spec: StreamSpec, layouts: Sequence[RingLayout]) -> Self:
        """For a stream with such rings."""
        entries = tuple(len(each.group.layers) * (1 + each.ring_pages) for each in layouts)
        return cls(spec.layers, entries, spec.max_chunk is not None)

    @property
    def claims(self) -> int:
        """Index of the first layer's claim."""
        return LENGTHS + self.layers

    def table(self, group: int) -> int:
        """Index of a group's first entry."""
        return LENGTHS + 2 * self.layers + sum(self.entries[:group])

    @property
    def saved(self) -> int:
        """Index of the first word of what to go back to: claims and entries, in the order of the others."""
        return self.table(len(self.entries))

    @property
    def to_saved(self) -> int:
        """From a claim or an entry to the word for what it was."""
        return self.saved - self.claims

    @property
    def words(self) -> int:
        """All words."""
        return self.saved + (self.to_saved if self.wraps else 0)

    @property
    def lent_bytes(self) -> int:
        """Bytes of a bit per entry."""
        return -(-sum(self.entries) // 8)


def empty_header(spec: StreamSpec) -> bytes:
    """A stream's specification, as snapshots write it."""
    nothing = (0,) * spec.layers
    return SnapshotHeader(
        spec=spec,
        page_format=FORMAT_VERSION,
        lengths=nothing,
        claimed=nothing,
        high_water=0,
        generation=0,
        sealed=False,
    ).encode()


def words_offset(spec: int, promises: int, tag: int, lent: int) -> int:
    """Where the words begin in a page with sections of so many bytes."""
    return HEAD_BYTES + round_up(spec + promises + tag + lent, 64)


def places_offset(start: int, shape: Shape) -> int:
    """Where the places for truncates begin in a page whose words begin at ``start``."""
    return round_up(start + WORD_BYTES * shape.words, 64)


def record_bytes(start: int, shape: Shape) -> int:
    """Bytes of all of a page whose words begin at ``start``."""
    return places_offset(start, shape) + PLACES * PLACE_BYTES


class Slot:
    """A stream's place in the stream table, and the page that its record has."""

    def __init__(self, file: ArenaFile, slot: int, pages: Reservation, *, published: bool) -> None:
        self.pages: Final = pages
        """Promise and page of the record itself; no fork shares it."""
        self.slot: Final = slot
        self.published = published
        self._file = file

    def check_ours(self) -> None:
        """Raises ForkedProcess in a process that was forked from the one that has the file."""
        if not self._file.held:
            raise ForkedProcess(f"{self._file.path} belongs to the process that this one was forked from")

    def withdraw(self) -> None:
        """Have the stream in the table no more. Under the arena's lock; once."""
        if self.published:
            self._file.streams.put(self.slot, 0)
        self._file.free_slot(self.slot)


class StreamRecord(Slot):
    """A stream's record in the making, and later the words of it that change."""

    def __init__(
        self,
        file: ArenaFile,
        slot: int,
        pages: Reservation,
        page: slice,
        shape: Shape,
        start: int,
        *,
        published: bool = False,
    ) -> None:
        """``start``: where the words begin in the page."""
        super().__init__(file, slot, pages, published=published)
        memory, places = file.bytes.data[page], places_offset(start, shape)
        self.shape: Final = shape
        self.words: Final = Words(memory[start : start + WORD_BYTES * shape.words], "record")
        self.places: Final = [
            memory[places + i * PLACE_BYTES : places + (i + 1) * PLACE_BYTES] for i in range(PLACES)
        ]
        self._page = page
        self._sections: tuple[bytes, bytes, bytes] = (b"", b"", b"")

    @classmethod
    def reserve(
        cls,
        arena: Arena,
        file: ArenaFile,
        spec: StreamSpec,
        layouts: Sequence[RingLayout],
        demand: Mapping[int, int],
        *,
        quota: int | None = None,
    ) -> Self:
        """Room for a record, and a slot. Raises BudgetExceeded."""
        header, shape = empty_header(spec), Shape.of(spec, layouts)
        plain = {"demand": {str(size): pages for size, pages in demand.items()}, "quota": quota}
        promises = json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()
        start = words_offset(len(header), len(promises), MAX_TAG, shape.lent_bytes)
        size = 1 << (max(_LEAST, record_bytes(start, shape)) - 1).bit_length()
        pages = arena.reserve({size: 1})
        try:
            offset = pages.take(size)  # before the slot, which nothing would give back
            with arena._lock:
                slot = file.take_slot()
            if slot is None:
                raise BudgetExceeded(
                    f"the arena's file has room for {len(file.streams)} streams, and as many",
                    requested=1,
                    available=0,
                )
        except BaseException:
            pages.release()
            raise
        record = cls(file, slot, pages, slice(offset, offset + size), shape, start)
        record.words.clear()
        record._sections = (header, promises, bytes(shape.lent_bytes))
        return record

    def forget_saved(self) -> None:
        """Have nothing to go back to any more. Only while no change is being made that needs it."""
        for index, _ in self.words.used(self.shape.saved):
            self.words.put(index, 0)

    def lend(self, flags: bytes) -> None:
        """Say which entries of the page tables name pages that others have promised room for."""
        self._sections = (*self._sections[:2], flags)

    def publish(self, tag: bytes) -> None:
        """Have the stream in the table, under a tag: from now on it is there after a kill. Once."""
        self.check_ours()
        header, promises, lent = self._sections
        self._write(header, promises, tag, lent)
        self._enter()
        self.published = True
        self._sections = (b"", b"", b"")

    def _write(self, header: bytes, promises: bytes, tag: bytes, lent: bytes) -> None:
        page = self._file.bytes.data[self._page]
        sections = (header, promises, tag, lent)
        head = _HEAD.pack(
            MAGIC,
            VERSION,
            *map(len, sections),
            len(self.words),
            self._file.superblock.identity,
            self._page.start,
            self.slot,
        )
        body = b"".join(sections)
        page[HEAD_BYTES : HEAD_BYTES + len(body)] = body
        crash.crash_point("record body")
        page[: _HEAD.size] = head
        checksum = zlib.crc32(body, zlib.crc32(head))
        page[_HEAD.size : _HEAD.size + _CHECKSUM.size] = _CHECKSUM.pack(checksum)
        crash.crash_point("record head")

    def _enter(self) -> None:
        self._file.streams.put(self.slot, self._page.start + 1)
