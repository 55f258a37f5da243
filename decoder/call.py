"""One layer's share of a call on a session: checked arrays, turned by their positions, and the results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from rondel.decoder.arrays import Floats, check_array, check_queries, empty_results
from rondel.decoder.cache.ring import GroupRings
from rondel.decoder.kernels import Kernels, Query
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
        cls, layer: int, rings: GroupRings, q: Floats, k: Floats, v: Floats, kernels: Kernels
    ) -> Self:
        """A call that also answers q [n, Hq, Dk]. Raises InvalidShape, ValueRange."""
        call = cls.of_tokens(layer, rings, k, v, kernels)
        q = check_queries(rings.group, q, len(call.k), kernels)
        call.asked.append(QueryRows.of(rings.group, q))
        return call

    @staticmethod
    def ask(calls: Sequence[LayerCall], q: Floats, kernels: Kernels) -> Floats:
        """Have a stack's calls also answer q [layers, n, Hq, Dk]; out [layers, n, Hq, Dv], which they fill.
        Raises InvalidShape, ValueRange."""
        group, tokens = calls[0].rings.group, len(calls[0].k)
        q = check_array("q", q, (len(calls), tokens, group.query_heads, group.key_dim), kernels)
        out, lse = empty_results(group, tokens, len(calls))
        for call, *arrays in zip(calls, q, out, lse, strict=True):
            call.asked.append(QueryRows(*arrays))
        return out

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
        """A part of what was asked, for the kernels: rows at ``first`` and on, the arena at ``base``."""
        return [rows.part(part).query(self.rings, self.layer, base, first) for rows in self.asked]
