"""One layer's share of a call on a session: checked arrays, turned by their positions, and the results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from rondel.decoder.arrays import Floats, check_array, check_queries, empty_results
from rondel.decoder.cache.ring import GroupRings
from rondel.decoder.kernels import Kernels, Query
from rondel.decoder.options import AttendOptions, checked_options
from rondel.decoder.rows import QueryRows, positions_from


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

    @classmethod
    def of_stack(
        cls, layers: Sequence[int], rings: Sequence[GroupRings], k: Floats, v: Floats, kernels: Kernels
    ) -> list[Self]:
        """One such call per layer, all of one shape: k [layers, n, Hkv, Dk], v [layers, n, Hkv, Dv]. Raises
        InvalidShape, ValueRange."""
        group = rings[0].group
        k = check_array("k", k, (len(layers), None, group.kv_heads, group.key_dim), kernels)
        v = check_array("v", v, (*k.shape[:2], group.kv_heads, group.value_dim), kernels)
        return [cls(layer, *parts) for layer, *parts in zip(layers, rings, k, v, strict=True)]

    @classmethod
    def of_step(
        cls,
        layer: int,
        rings: GroupRings,
        q: Floats,
        k: Floats,
        v: Floats,
        options: AttendOptions | None,
        kernels: Kernels,
    ) -> Self:
        """A call that also answers q [n, Hq, Dk]. Raises InvalidShape, ValueRange, InvalidRequest."""
        call = cls.of_tokens(layer, rings, k, v, kernels)
        q = check_queries(rings.group, q, len(call.k), kernels)
        call.asked.append(QueryRows.of(rings.group, q, checked_options(options)))
        return call

    @staticmethod
    def ask_stack(
        calls: Sequence[LayerCall], q: Floats, options: AttendOptions | None, kernels: Kernels
    ) -> Floats:
        """Have the calls of a stack answer q [layers, n, Hq, Dk] too; where the answers will be, [layers, n,
        Hq, Dv]. Raises InvalidShape, ValueRange, InvalidRequest."""
        group, tokens = calls[0].rings.group, len(calls[0].k)
        shape = (len(calls), tokens, group.query_heads, group.key_dim)
        q = check_array("q", q, shape, kernels)
        out, lse = empty_results(group, tokens, len(calls))
        options = checked_options(options)
        for number, call in enumerate(calls):
            if options is not None:
                options.check(call.rings.group, tokens)
            call.asked.append(QueryRows(q[number], out[number], lse[number], options))
        return out

    @property
    def looks_ahead(self) -> bool:
        """Whether a row sees tokens that come after it in the call: then it cannot be cut."""
        return bool(self.asked) and not self.rings.group.causal

    def settle(self, first: int) -> None:
        """Turn what came to positions from ``first`` on. Raises InvalidShape for options that do not cover
        what the rows see from there. Once only."""
        for rows in self.asked:
            rows.check(self.rings.group, first, first + len(self.k))
        self.rotate(first)

    def rotate(self, first: int) -> None:
        """Turn keys and queries to positions from ``first`` on, if the group has a rope. Once only."""
        group, end = self.rings.group, self.rings.group.kv_heads
        if group.rope is None:
            return
        positions = positions_from(first, len(self.k))
        # Together: at one token the time is in the number of NumPy's calls, and no part is copied below.
        stacked = [self.k, *(rows.q for rows in self.asked)]
        turned = group.rope.rotate(np.concatenate(stacked, axis=1) if self.asked else self.k, positions)
        self.k = np.ascontiguousarray(turned[:, :end])
        for rows in self.asked:
            start, end = end, end + group.query_heads
            rows.turned(np.ascontiguousarray(turned[:, start:end]), group, positions)

    def queries(self, base: int, first: int, part: slice) -> list[Query]:
        """A part of what was asked, for the kernels: rows at ``first`` and on, the last of them the layer's
        last token; the arena at ``base``."""
        held = first + part.stop - part.start
        asked = (rows.part(part).query(self.rings, self.layer, base, first, held) for rows in self.asked)
        return [query for query in asked if query is not None]

    def finish(self) -> None:
        """What is left to do once the kernels have answered all parts."""
        for rows in self.asked:
            rows.finish()
