"""Which slabs an arena's file has."""

from __future__ import annotations

from dataclasses import dataclass, field

from rondel.decoder.cache.arena_file import ArenaFile
from rondel.decoder.cache.slabs import UNIT, units_of

Page = tuple[int, int]
"""Size and offset."""


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
