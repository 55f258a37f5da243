"""Where a page is named."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Place:
    """An entry of a page table, and the size of the page that it names."""

    table: NDArray[np.int64]
    column: int
    page_bytes: int

    @property
    def offset(self) -> int:
        """The page."""
        return int(self.table[self.column])

    def save(self, offset: int) -> None:
        """Note, where the table is written down, that another page holds what this one did."""

    def name(self, offset: int) -> None:
        """Have the entry name another page."""
        self.table[self.column] = offset
