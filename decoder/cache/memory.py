"""The memory under an arena: a mapping, and where it comes from."""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rondel.decoder.cache.slabs import UNIT
from rondel.decoder.errors import InvalidSpec

if TYPE_CHECKING:
    from rondel.decoder.cache.arena_file import ArenaFile


class Memory:
    """Anonymous memory for ``units`` units. What was never used is zero and takes no room."""

    bytes: NDArray[np.uint8]
    """[units * UNIT]; offsets of pages are relative to its first byte."""

    def __init__(self, units: int) -> None:
        try:
            self._map = mmap.mmap(-1, (units + 1) * UNIT, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError, ValueError) as error:
            raise InvalidSpec(
                f"the system refuses to map {units * UNIT} bytes: {error}", field="budget"
            ) from error
        # Reading a cache walks more memory than the TLB covers in 4 KiB pages. Advice only: a kernel built
        # without huge pages refuses it, and nothing but speed is lost.
        with suppress(OSError):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        everything = np.frombuffer(self._map, dtype=np.uint8)
        # The mapping has one unit to spare: slabs start on a multiple of 2 MiB, as huge pages need.
        self._lead = -everything.ctypes.data % UNIT
        self.bytes = everything[self._lead : self._lead + units * UNIT]

    @property
    def file(self) -> ArenaFile | None:
        """This memory, if it is a file."""
        return None

    @property
    def held(self) -> bool:
        """Whether it may be written to."""
        return True

    def claim(self, unit: int, page_bytes: int) -> None:
        """Note that a slab begins with this unit."""

    def give_back(self, unit: int, units: int, *, used: bool) -> None:
        """Give a slab's memory back to the system, if any of it was used; it is zero afterwards."""
        if used:
            self._map.madvise(mmap.MADV_DONTNEED, self._lead + unit * UNIT, units * UNIT)
