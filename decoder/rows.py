"""Query rows on their way to the kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from rondel.decoder.arrays import Floats, empty_results
from rondel.decoder.cache.ring import GroupRings
from rondel.decoder.edits import edits_of, reach, sight_of
from rondel.decoder.kernels import Query
from rondel.decoder.options import AttendOptions
from rondel.decoder.partials import null_share
from rondel.decoder.spec import LayerGroup


@dataclass(slots=True)
class QueryRows:
    """Query rows of one layer, checked, and where their answers go."""

    q: Floats  # [N, Hq, Dk]
    out: Floats  # [N, Hq, Dv]
    lse: Floats  # [N, Hq]
    options: AttendOptions | None = None  # checked against the group and the rows of the call
    q_sinks: Floats | None = None  # [N, Hq, Dk]: what the sinks are scored by, where that is not q
    of_call: slice | None = (
        None  # which of the call's rows these are, None = all: the options are for all of them
    )

    @classmethod
    def of(cls, group: LayerGroup, q: Floats, options: AttendOptions | None) -> Self:
        """Rows that are yet to be turned. Raises what :meth:`AttendOptions.check` raises."""
        if options is not None:
            options.check(group, len(q))
        return cls(q, *empty_results(group, len(q)), options)

    @classmethod
    def at(cls, group: LayerGroup, first: int, q: Floats, options: AttendOptions | None = None) -> Self:
        """Rows that stand at positions from ``first`` on, turned."""
        rows = cls.of(group, q, options)
        if group.rope is not None:
            positions = positions_from(first, len(q))
            rows.turned(group.rope.rotate(q, positions), group, positions)
        return rows

    def check(self, group: LayerGroup, first: int, held: int) -> None:
        """Raises InvalidShape unless the options have something to say of every key that a row sees."""
        if self.options is not None:
            self.options.check_columns(*reach(group, first, len(self.q), held))

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
        """Some of the rows of a whole call."""
        if rows == slice(0, len(self.q)):
            return self
        sinks = None if self.q_sinks is None else self.q_sinks[rows]
        return QueryRows(self.q[rows], self.out[rows], self.lse[rows], self.options, sinks, rows)

    def query(self, rings: GroupRings, layer: int, base: int, first: int, held: int) -> Query | None:
        """The rows, at ``first`` and on, for the kernels to answer; the layer holds ``held`` tokens and the
        arena is at ``base``. None if there is nothing to see: the rows have been answered."""
        group, options = rings.group, self.options
        if held == 0:
            self.out[...], self.lse[...] = 0.0, -np.inf
            return None
        sight, edits, scale = None, None, group.score_scale
        if not group.causal:
            sight = sight_of(group, held)
            first = first if group.placed else held - 1
        if options is not None:
            edits = edits_of(options, self.of_call, *reach(group, first, len(self.q), held))
            scale = options.score_scale(group)
        where = (rings.words, base, rings.table(layer), first)
        return (*where, scale, self.q, self.out, self.lse, self.q_sinks, sight, edits)

    def finish(self) -> None:
        """What is left to do once the kernels have answered: the null logit's share is taken from ``out``."""
        if self.options is not None and self.options.null_logit is not None:
            null = self.options.null_logit.astype(np.float64)
            self.out *= null_share(null, self.lse.astype(np.float64)).astype(np.float32)[..., None]


def positions_from(first: int, count: int) -> NDArray[np.int64]:
    """``first``, ``first`` + 1, …: int64 [count]."""
    return np.arange(first, first + count, dtype=np.int64)
