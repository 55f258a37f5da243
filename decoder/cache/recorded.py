"""A stream whose every change goes into its record as well, in the order that lets a kill come anywhere.

Between any two stores the record must say what the stream was before a call or what it is after it:

- new tokens: the claim, pages in the tables, data, and last the layer's length. What lies above ``length``,
  the least layer length, is dropped when the file is attached to; rings are made so that this can always be.
- a call that is committed in pieces, or that is undone: ``begun`` first, the length to go back to. Where the
  pieces overwrite what the stream needs for that, copies of it before that (``saved.py``).
- truncate: its place, then ``cut``, which decides: what is missing from then on is done when the file is
  attached to. Then the lengths, last the generation: a cut ahead of it is one that was not completed.
- fork: a record that is complete before the stream table names it. Closing: the table first.
- a page's copy: its data before the entry that names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rondel.decoder.cache.cuts import PLACES, Cut, write_cut
from rondel.decoder.cache.extent import Marks, StreamExtent
from rondel.decoder.cache.layout import RingLayout
from rondel.decoder.cache.place import Place
from rondel.decoder.cache.record import BEGUN, CUT, GENERATION, LENGTHS, SEALED, StreamRecord
from rondel.decoder.cache.reservation import Reservation
from rondel.decoder.cache.ring import GroupRings
from rondel.decoder.errors import BudgetExceeded
from rondel.decoder.spec import StreamSpec

if TYPE_CHECKING:
    from rondel.decoder.cache.arena import Arena

Parts = tuple[StreamExtent, list[GroupRings], Reservation]


class RecordedExtent(StreamExtent):
    """An extent that is written down. Begins as what its record says, or as empty with an empty one."""

    def __init__(self, spec: StreamSpec, layouts: Sequence[RingLayout], record: StreamRecord) -> None:
        super().__init__(spec, layouts)
        self._words = record.words
        self._claims = record.shape.claims
        self._record = record
        self._begun = False
        self._cut = record.words.get(CUT) or 0

    def _check_open(self) -> None:
        self._record.check_ours()
        super()._check_open()

    def claim(self, layer: int, length: int) -> None:
        super().claim(layer, length)
        self._words.put(self._claims + layer, self._claimed[layer])

    def advance(self, layer: int, length: int) -> None:
        super().advance(layer, length)
        self._words.put(LENGTHS + layer, length)

    def reset(self, marks: Marks) -> None:
        super().reset(marks)
        self._write_lengths()
        for layer, claimed in enumerate(self._claimed):
            self._words.put(self._claims + layer, claimed)
        self.end()

    def resume(self, marks: Marks, *, generation: int, sealed: bool) -> None:
        super().resume(marks, generation=generation, sealed=sealed)
        self._words.put(GENERATION, generation)
        self._words.put(SEALED, int(sealed))

    def begin(self, length: int) -> None:
        self._begun = True
        self._words.put(BEGUN, length + 1)

    def end(self) -> None:
        if self._begun:
            self._words.put(BEGUN, 0)
            self._begun = False

    def seal(self) -> None:
        self._record.check_ours()
        super().seal()
        self._words.put(SEALED, 1)

    def truncate(self, length: int, note: bytes = b"") -> None:
        super().truncate(length, note)
        self._cut = self._cut % PLACES + 1
        if self.cut is not None:
            write_cut(self._record.places[self._cut - 1], self.cut)
        self._words.put(CUT, self._cut)
        self._write_lengths()
        self._words.put(GENERATION, self.generation)

    def _write_lengths(self) -> None:
        for layer, length in enumerate(self._lengths):
            self._words.put(LENGTHS + layer, length)

    def load(
        self, marks: Marks, *, generation: int, sealed: bool, quota: int | None, cut: Cut | None = None
    ) -> None:
        """Be what the record says already."""
        StreamExtent.reset(self, marks)
        self.generation, self.sealed, self._quota, self.cut = generation, sealed, quota, cut

    def attach(self, length: int) -> None:
        """Set every layer to a length that no layer is below, and begin a generation."""
        self._lengths = [length] * self._spec.layers
        self.length, self.generation = length, self.generation + 1
        self._begun = True
        self.reset(self.marks())
        self._words.put(GENERATION, self.generation)
        self._record.forget_saved()


class RecordedRings(GroupRings):
    """Page tables that are written down, from word ``first`` of the record on."""

    def __init__(self, layout: RingLayout, record: StreamRecord, first: int) -> None:
        super().__init__(layout)
        self._words = record.words
        self._first = first
        self._to_saved = record.shape.to_saved

    def _name(self, row: int, column: int, offset: int) -> None:
        self._words.put(self._word(row, column), offset + 1)
        self._tables[row, column] = offset

    def _save(self, row: int, column: int, offset: int) -> None:
        self._words.put(self._word(row, column) + self._to_saved, offset + 1)

    def _word(self, row: int, column: int) -> int:
        return self._first + row * self._tables.shape[1] + column

    def _place(self, layer: int, column: int) -> Place:
        table, size = self.table(layer), self.page_bytes(column)
        return _RecordedPlace(table, column, size, self, self._row_of[layer])

    def write(self, tables: NDArray[np.int64]) -> None:
        """Have these tables, for a stream that nobody knows of yet."""
        for (row, column), offset in np.ndenumerate(tables):
            if offset >= 0:
                self._name(row, column, int(offset))
        self._count()

    def load(self, tables: NDArray[np.int64], pages: Reservation, *, saved: bool) -> None:
        """Have the tables that the record has, or had (``saved``), as far as every layer has them; what only
        some have is given back."""
        self._tables[:] = tables
        for row, column in np.argwhere(self._tables >= 0).tolist() if saved else ():
            self._name(row, column, int(self._tables[row, column]))
        self._count()
        for row, column in np.argwhere(self._tables >= 0).tolist():
            if column > self._pages_taken or (column == 0 and not self._sink_taken):
                offset = int(self._tables[row, column])
                self._name(row, column, -1)
                pages.give_back(self.page_bytes(column), offset)

    def _count(self) -> None:
        taken = [all(offset >= 0 for offset in column) for column in self._tables.T.tolist()]
        self._sink_taken = taken[0]
        self._pages_taken = [*taken[1:], False].index(False)


@dataclass(frozen=True, slots=True)
class _RecordedPlace(Place):
    rings: RecordedRings
    row: int

    def save(self, offset: int) -> None:
        self.rings._save(self.row, self.column, offset)

    def name(self, offset: int) -> None:
        self.rings._name(self.row, self.column, offset)


def opened(spec: StreamSpec, layouts: Sequence[RingLayout], arena: Arena, pages: Reservation) -> Parts:
    """An empty stream in a file, not in its table yet. Raises BudgetExceeded; the pages are given back."""
    try:
        record = _reserved(arena, spec, layouts, pages, None)
        return RecordedExtent(spec, layouts, record), list(rings_of(layouts, record)), pages
    except BaseException:
        pages.release()
        raise


def forked(spec: StreamSpec, parts: Parts, arena: Arena) -> Parts:
    """A stream that was forked, in a file; not in its table yet. Raises BudgetExceeded; the pages are given
    back."""
    plain, tables, pages = parts
    try:
        layouts, quota = [each.layout for each in tables], plain.quota
        record = _reserved(arena, spec, layouts, pages, quota)
        extent = RecordedExtent(spec, layouts, record)
        extent.load(plain.marks(), generation=0, sealed=plain.sealed, quota=quota)
        extent.resume(plain.marks(), generation=0, sealed=plain.sealed)
        rings = list(rings_of(layouts, record))
        lent = []
        for each, copy in zip(rings, tables, strict=True):
            each.write(copy._tables)
            lent.append(pages.borrowed(copy._tables))
        record.lend(np.packbits(np.concatenate([flags.ravel() for flags in lent])).tobytes())
        return extent, list[GroupRings](rings), pages
    except BaseException:
        pages.release()
        raise


def rings_of(layouts: Sequence[RingLayout], record: StreamRecord) -> list[RecordedRings]:
    """The empty rings of a stream with such a record."""
    return [RecordedRings(each, record, record.shape.table(i)) for i, each in enumerate(layouts)]


def _reserved(
    arena: Arena,
    spec: StreamSpec,
    layouts: Sequence[RingLayout],
    pages: Reservation,
    quota: int | None,
) -> StreamRecord:
    file = arena.file
    if file is None:
        raise TypeError("only a stream in a file has a record")
    try:
        record = StreamRecord.reserve(arena, file, spec, layouts, pages.demand, quota=quota)
    except BudgetExceeded as error:
        raise pages.account.told(error) from None
    pages.record = record
    return record
