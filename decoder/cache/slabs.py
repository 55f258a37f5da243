"""Slabs: runs of units that serve pages of one size."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from rondel.decoder.cache.layout import round_up

UNIT: Final = 2 << 20
"""Bytes: a slab is a whole number of them, and begins on a multiple."""


def units_of(page_bytes: int) -> int:
    """Units of a slab with pages of this size."""
    return round_up(page_bytes, UNIT) // UNIT


def offsets_of(unit: int, page_bytes: int) -> list[int]:
    """The pages of the slab that begins with this unit."""
    count = units_of(page_bytes) * UNIT // page_bytes
    return [unit * UNIT + i * page_bytes for i in range(count)]


@dataclass(slots=True)
class Slab:
    """Pages that nobody has: those never used before, which are zero, and the others."""

    unit: int
    fresh: list[int]
    used_before: list[int] = field(default_factory=list)
    in_use: int = 0

    @property
    def free(self) -> int:
        return len(self.fresh) + len(self.used_before)


@dataclass(slots=True)
class Pool:
    """All slabs of one page size."""

    page_bytes: int
    promised: int = 0
    slabs: dict[int, Slab] = field(default_factory=dict)
    filling: Slab | None = None

    @property
    def units(self) -> int:
        return units_of(self.page_bytes)

    @property
    def pages_per_slab(self) -> int:
        return self.units * UNIT // self.page_bytes

    @property
    def wanted(self) -> int:
        """Slabs that are there, or that promises need."""
        return max(len(self.slabs), self.slabs_for(self.promised))

    @property
    def free(self) -> int:
        """Pages of the slabs that nobody has."""
        return sum(slab.free for slab in self.slabs.values())

    def slabs_for(self, pages: int) -> int:
        return -(-pages // self.pages_per_slab)

    def more_for(self, pages: int) -> int:
        """Slabs that so many promises more need, beyond those that are there."""
        return max(0, self.slabs_for(self.promised + pages) - len(self.slabs))
