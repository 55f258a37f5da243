"""The rings of one layer group: page tables that fill as the stream grows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rondel.decoder.cache.layout import RingLayout
from rondel.decoder.cache.place import Place
from rondel.decoder.cache.reservation import Reservation
from rondel.decoder.spec import PAGE_SLOTS, LayerGroup


class GroupRings:
    """Page tables of all layers of a group. Placement only: no arithmetic on what is stored."""

    def __init__(self, layout: RingLayout) -> None:
        self.group: Final[LayerGroup] = layout.group
        self.layout: Final = layout
        self.words: Final[NDArray[np.int64]] = self.layout.words()
        self._row_of = {layer: row for row, layer in enumerate(self.group.layers)}
        # [layers of the group, 1 + ring pages]: sink page, then ring pages; -1 = not taken
        self._tables: Final = np.full(
            (len(self.group.layers), 1 + self.layout.ring_pages), -1, dtype=np.int64
        )
        self._sink_taken = False
        self._pages_taken = 0
        self._page_bytes = layout.page.page_bytes
        self._sink_bytes = layout.sink_page.page_bytes if layout.sink_page else 0

    @property
    def pages_taken(self) -> int:
        """Ring and sink pages in use, over all layers."""
        return int(np.count_nonzero(self._tables >= 0))

    @property
    def tables(self) -> NDArray[np.int64]:
        """The page tables of all layers: byte offsets [layers of the group, 1 + ring pages]."""
        return self._tables

    def table(self, layer: int) -> NDArray[np.int64]:
        """The page table of one layer: byte offsets [1 + ring pages], sink page first."""
        row: NDArray[np.int64] = self._tables[self._row_of[layer]]
        return row

    @property
    def columns(self) -> int:
        """Columns of the page tables that are in use, for :meth:`shrink`: each is a page of every layer."""
        return int(self._sink_taken) + self._pages_taken

    @property
    def columns_of_table(self) -> range:
        """Columns of the page tables that can ever be in use."""
        return range(0 if self._sink_bytes else 1, 1 + self.layout.ring_pages)

    def page_bytes(self, column: int) -> int:
        """Size of the pages in a column of the page tables."""
        return self._page_bytes if column else self._sink_bytes

    def pages(self, column: int, layer: int | None = None) -> list[int]:
        """Offsets of the taken pages in a column of the page tables: of all layers, or of one."""
        pages: NDArray[np.int64] = (self._tables if layer is None else self.table(layer)[None])[:, column]
        return [offset for offset in pages.tolist() if offset >= 0]

    def places(self, layer: int, start: int, stop: int) -> list[Place]:
        """Where the pages that hold positions start to stop - 1 of a layer are named, as far as they are
        taken."""
        table = self.table(layer)
        return [
            self._place(layer, column) for column in self.layout.columns(start, stop) if table[column] >= 0
        ]

    def taken(self, layer: int, pages: Sequence[int]) -> list[Place]:
        """Where those of a layer's ring pages are named that are taken."""
        table = self.table(layer)
        return [self._place(layer, 1 + page) for page in pages if table[1 + page] >= 0]

    def _place(self, layer: int, column: int) -> Place:
        return Place(self.table(layer), column, self.page_bytes(column))

    def _name(self, row: int, column: int, offset: int) -> None:
        """Write a page into the table, or -1 for none."""
        self._tables[row, column] = offset

    def fork(self) -> GroupRings:
        """The same page tables once more: they name the same pages."""
        fork = GroupRings(self.layout)
        fork._tables[:] = self._tables
        fork._sink_taken, fork._pages_taken = self._sink_taken, self._pages_taken
        return fork

    def reaches(self, length: int) -> bool:
        """Whether :meth:`grow` would have nothing to do."""
        if self.layout.sink_page and length and not self._sink_taken:
            return False
        return self._pages_taken * PAGE_SLOTS >= min(length - self.group.sinks, self.layout.capacity)

    def grow(self, length: int, pages: Reservation) -> None:
        """Take the pages that a stream of ``length`` tokens needs, for all layers at once."""
        # Counted before they are taken: an error in between leaves a column that shrink() gives back.
        if self.layout.sink_page and length and not self._sink_taken:
            self._sink_taken = True
            for row in range(len(self._tables)):
                self._name(row, 0, pages.take(self.layout.sink_page.page_bytes))
        tokens = min(max(0, length - self.group.sinks), self.layout.capacity)
        while self._pages_taken * PAGE_SLOTS < tokens:
            self._pages_taken += 1
            for row in range(len(self._tables)):
                self._name(row, self._pages_taken, pages.take(self.layout.page.page_bytes))

    def shrink(self, columns: int, pages: Reservation) -> None:
        """Give back all but the first ``columns`` that were taken."""
        while self.columns > columns:
            # The sink page is the first to be taken, so the last to go.
            page = self.layout.page if self._pages_taken else self.layout.sink_page
            for row, offset in enumerate(self._tables[:, self._pages_taken].tolist()):
                if page is not None and offset >= 0:
                    # In this order: once it is back, it may be another stream's before we have forgotten it.
                    self._name(row, self._pages_taken, -1)
                    pages.give_back(page.page_bytes, offset)
            if self._pages_taken:
                self._pages_taken -= 1
            else:
                self._sink_taken = False
