"""One layer's share of a call on a session: checked arrays, and where the results go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from rondel.decoder.arrays import Floats, check_array, check_queries, empty_results
from rondel.decoder.cache.ring import GroupRings
from rondel.decoder.kernels import Kernels, Query


@dataclass(slots=True)
class LayerCall:
    """Tokens to store in a layer and, once :meth:`ask` was called, queries to answer from their positions."""

    layer: int
    rings: GroupRings
    k: Floats  # [n, Hkv, Dk]
    v: Floats  # [n, Hkv, Dv]
    asked: list[tuple[Floats, Floats, Floats]] = field(default_factory=list)

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
        call.ask(q, *empty_results(rings.group, len(q)))
        return call

    def ask(self, q: Floats, out: Floats, lse: Floats) -> None:
        """Also answer q [n, Hq, Dk] into out [n, Hq, Dv] and lse [n, Hq], all checked."""
        self.asked.append((q, out, lse))

    def queries(self, base: int, first: int, part: slice) -> list[Query]:
        """A part of what was asked, for the kernels: rows at ``first`` and on, the arena at ``base``."""
        return [
            query_of(self.rings, self.layer, base, first, *(array[part] for array in asked))
            for asked in self.asked
        ]


def query_of(
    rings: GroupRings, layer: int, base: int, first: int, q: Floats, out: Floats, lse: Floats
) -> Query:
    """Checked rows q [N, Hq, Dk] at ``first`` and on, for the kernels to answer into out and lse."""
    return rings.words, base, rings.table(layer), first, rings.group.score_scale, q, out, lse
