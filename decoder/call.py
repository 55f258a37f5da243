"""One layer's share of a call on a session: checked arrays, turned by their positions, and the results."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from rondel.decoder.arrays import Floats, check_array, empty_results
from rondel.decoder.cache.ring import GroupRings
from rondel.decoder.kernels import Kernels
from rondel.decoder.spec import LayerGroup


@dataclass(slots=True)
class QueryRows:
    """Query rows of one layer, checked, and where their answers go."""

    q: Floats  # [N, Hq, Dk]
    out: Floats  # [N, Hq, Dv]
    lse: Floats  # [N, Hq]
    q_sinks: Floats | None = None  # [N, Hq, Dk]: what the sinks are scored by, where that is not q

    @classmethod
    def at(cls, group: LayerGroup, first: int, q: Floats) -> Self:
        """Rows that stand at positions from ``first`` on, turned."""
        rows = cls(q, *empty_results(group, len(q)))
        if group.rope is not None:
            positions = _positions(first, len(q))
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


@dataclass(slots=True)
class LayerCall:
    """Tokens to store in a layer and, once :meth:`ask` was called, queries to answer from their positions."""

    layer: int
    rings: GroupRings
    k: Floats  # [n, Hkv, Dk]
    v: Floats  # [n, Hkv, Dv]
    asked: list[QueryRows] = field(default_factory=list)

    @classmethod
    def of_tokens(cls, layer: int, rings: GroupRings, k: Floats, v: Floats, kernels: Kernels) -> Self:
        """A call that stores n tokens. Raises InvalidShape, ValueRange."""
        group = rings.group
        k = check_array("k", k, (None, group.kv_heads, group.key_dim), kernels)
        return cls(layer, rings, k, check_array("v", v, (len(k), group.kv_heads, group.value_dim), kernels))

    def ask(self, q: Floats, out: Floats, lse: Floats) -> None:
        """Also answer q [n, Hq, Dk] into out [n, Hq, Dv] and lse [n, Hq], all checked."""
        self.asked.append(QueryRows(q, out, lse))

    def rotate(self, first: int) -> None:
        """Turn keys and queries to positions from ``first`` on, if the group has a rope. Once only."""
        group, end = self.rings.group, self.rings.group.kv_heads
        if group.rope is None:
            return
        positions = _positions(first, len(self.k))
        # Together: at one token the time is in the number of NumPy's calls, and no part is copied below.
        stacked = [self.k, *(rows.q for rows in self.asked)]
        turned = group.rope.rotate(np.concatenate(stacked, axis=1) if self.asked else self.k, positions)
        self.k = np.ascontiguousarray(turned[:, :end])
        for rows in self.asked:
            start, end = end, end + group.query_heads
            rows.turned(np.ascontiguousarray(turned[:, start:end]), group, positions)


def _positions(first: int, count: int) -> NDArray[np.int64]:
    return np.arange(first, first + count, dtype=np.int64)
