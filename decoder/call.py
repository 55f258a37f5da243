"""One layer's share of a call on a session: checked arrays, and where the results go."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from rondel.decoder.arrays import Floats, check_array
from rondel.decoder.cache.ring import GroupRings
from rondel.decoder.kernels import Kernels


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

    def ask(self, q: Floats, out: Floats, lse: Floats) -> None:
        """Also answer q [n, Hq, Dk] into out [n, Hq, Dv] and lse [n, Hq], all checked."""
        self.asked.append((q, out, lse))
