"""Questions to what one layer holds now: checked, answered with an output or with an explanation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from rondel.decoder.arrays import Floats, check_queries
from rondel.decoder.cache.extent import StreamExtent
from rondel.decoder.cache.ring import GroupRings
from rondel.decoder.explain import explained
from rondel.decoder.explanation import Explanation
from rondel.decoder.kernels import Kernels
from rondel.decoder.options import AttendOptions, checked_options
from rondel.decoder.rows import QueryRows


@dataclass(slots=True)  # not frozen: that would cost a microsecond of every call
class Question:
    """Query rows at their place in a layer that holds ``held`` tokens."""

    layer: int
    rings: GroupRings
    rows: QueryRows
    first: int
    held: int
    kernels: Kernels
    base: int

    @classmethod
    def of(
        cls,
        extent: StreamExtent,
        layer: int,
        rings: GroupRings,
        q: Floats,
        position: int | None,
        options: AttendOptions | None,
        kernels: Kernels,
        base: int,
    ) -> Self:
        """q [N, Hq, Dk] at ``position`` and on, None = the layer's last. Raises what
        :meth:`DecoderSession.attend` raises."""
        q = check_queries(rings.group, q, None, kernels)
        first = extent.rows_at(layer, position, len(q))
        held = extent.layer_length(layer)
        rows = QueryRows.at(rings.group, first, q, checked_options(options))
        rows.check(rings.group, first, held)
        return cls(layer, rings, rows, first, held, kernels, base)

    def attend(self) -> tuple[Floats, Floats]:
        """out [N, Hq, Dv], and lse [N, Hq]."""
        rows = self.rows
        query = rows.query(self.rings, self.layer, self.base, self.first, self.held)
        if query is not None:
            self.kernels.attend([query])
        rows.finish()
        return rows.out, rows.lse

    def explain(self) -> Explanation:
        """All stages. Raises InvalidRequest when they would be too many numbers."""
        query = self.rows.query(self.rings, self.layer, self.base, self.first, self.held)
        return explained(self.rings.group, self.rows, self.first, self.held, query, self.kernels)
