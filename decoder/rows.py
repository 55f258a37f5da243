"""Query rows on their way to the kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from rondel.decoder.arrays import Floats, empty_results
from rondel.decoder.cache.ring import GroupRings
from rondel.decoder.kernels import Query
from rondel.decoder.spec import LayerGroup


@dataclass(slots=True)
class QueryRows:
    """Query rows of one layer, checked, and where their answers go."""

    q: Floats  # [N, Hq, Dk]
    out: Floats  # [N, Hq, Dv]
    lse: Floats  # [N, Hq]
    q_sinks: Floats | None = None  # [N, Hq, Dk]: what the sinks are scored by, where that is not q

    @classmethod
    def of(cls, group: LayerGroup, q: Floats) -> Self:
        """Rows that are yet to be turned."""
        return cls(q, *empty_results(group, len(q)))

    @classmethod
    def at(cls, group: LayerGroup, first: int, q: Floats) -> Self:
        """Rows that stand at positions from ``first`` on, turned."""
        rows = cls.of(group, q)
        if group.rope is not None:
            positions = positions_from(first, len(q))
            rows.turned(group.rope.rotate(q, positions), group, positions)
        return rows

    def turned(self, q: Floats, group: LayerGroup, positions: NDArray[np.int64]) -> None:
        """Take the turned rows in place of the ones that came.

        Once a row's window has left the sinks behind they are scored as if they lay right before it
        (arXiv 2309.17453): by a second query at position S + W - 1. Their stored keys stay.
        """
        if group.rope is not None and group.sinks and group.window is not None and len(positions):
            last = group.sinks + group.window - 1
            if positions[-1] > last:
                self.q_sinks = group.rope.rotate(self.q, np.minimum(positions, last))
        self.q = q

    def part(self, rows: slice) -> QueryRows:
        """Some of the rows."""
        sinks = None if self.q_sinks is None else self.q_sinks[rows]
        return QueryRows(self.q[rows], self.out[rows], self.lse[rows], sinks)

    def query(self, rings: GroupRings, layer: int, base: int, first: int) -> Query:
        """The rows, at ``first`` and on, for the kernels to answer; the arena is at ``base``."""
        scale = rings.group.score_scale
        table = rings.table(layer)
        return rings.words, base, table, first, scale, self.q, self.out, self.lse, self.q_sinks, None, None


def positions_from(first: int, count: int) -> NDArray[np.int64]:
    """``first``, ``first`` + 1, …: int64 [count]."""
    return np.arange(first, first + count, dtype=np.int64)
