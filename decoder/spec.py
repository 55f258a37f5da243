"""What a stream is made of: frozen descriptions, and the only place where their limits are checked.

Letters as everywhere: Hq query_heads, Hkv kv_heads, G = Hq / Hkv, Dk key_dim, Dv value_dim, W window,
S sinks, R reserve.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from rondel.decoder.checks import integer as integer  # asked for here by all who count tokens
from rondel.decoder.checks import real, whole
from rondel.decoder.errors import InvalidLayer, InvalidSpec
from rondel.decoder.rope import MAX_DIM as MAX_DIM  # its limit is one of the limits here
from rondel.decoder.rope import Rope

PAGE_SLOTS: Final = 128
"""Token slots in a ring page."""

STORAGE_TYPES: Final = ("int8", "float32")
"""How keys and values can be stored."""

MAX_MAGNITUDE: Final = 1e15
"""Largest magnitude of a query, key or value element; beyond it scores could overflow float32."""

MAX_LAYERS: Final = 1024
MAX_HEADS: Final = 1024
MAX_SINKS: Final = PAGE_SLOTS
"""The sink page is one page at most, so that a page of int8 weights cannot overflow an int32 sum."""
MAX_WINDOW: Final = 1 << 24
MAX_RESERVE: Final = 1 << 20
MAX_LENGTH: Final = 1 << 48
"""Positions are int64 everywhere; this bound keeps every sum of a few of them far from overflow."""
MAX_SCALE: Final = 1e4


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGroup:
    """Layers that share one shape, one visibility rule and one storage type: one ring each, alike.

    Raises:
        InvalidSpec: a size is out of range, heads do not divide, or the combination is impossible.
    """

    layers: tuple[int, ...]
    """The layer numbers of this group, ascending."""
    query_heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None = None
    """Positions that a query sees, its own included; None = all, up to the stream's max_length."""
    sinks: int = 0
    """The first positions of the stream, seen by every query and never evicted (arXiv 2309.17453)."""
    reserve: int = 0
    """Tokens that can be undone after the ring has wrapped; max_chunk is one more."""
    storage: str = "int8"
    centring: bool = False
    """Whether int8 keys are stored relative to the mean of the page before them, channels far larger than
    the others brought down by powers of two: several times more exact where keys have a bias or outliers, for
    4 to 20% more time (docs/LOG.md). The first 128 tokens and the sinks are stored as without it."""
    scale: float | None = None
    """Multiplier of q·k; None = 1/√key_dim."""
    rope: Rope | None = None
    """Keys and queries are turned by their positions; None = as they come. A dim of None becomes key_dim."""
    causal: bool = True
    """Queries see nothing after their own position. False without a window: every query sees all that is
    stored and has no position, so no rope; with one: p - window < j <= p + window_right. Takes no sinks."""
    window_right: int = 0
    """Positions after its own that a query sees; above 0 only with ``causal=False`` and a window."""

    def __post_init__(self) -> None:
        if not isinstance(self.layers, tuple | list | range):
            raise InvalidSpec(f"layers must be a tuple of integers, got {self.layers!r}", field="layers")
        layers = tuple(self.layers)
        object.__setattr__(self, "layers", layers)
        if not layers:
            raise InvalidSpec("a layer group needs at least one layer, got none", field="layers")
        for layer in layers:
            whole("layers", layer, 0, MAX_LAYERS - 1)
        if list(layers) != sorted(set(layers)):
            raise InvalidSpec(f"layers must ascend without repeats, got {layers}", field="layers")
        whole("query_heads", self.query_heads, 1, MAX_HEADS)
        whole("kv_heads", self.kv_heads, 1, MAX_HEADS)
        if self.query_heads % self.kv_heads:
            raise InvalidSpec(
                f"query_heads must be a multiple of kv_heads, got {self.query_heads} and {self.kv_heads}",
                field="query_heads",
            )
        whole("key_dim", self.key_dim, 1, MAX_DIM)
        whole("value_dim", self.value_dim, 1, MAX_DIM)
        if not isinstance(self.centring, bool):
            raise InvalidSpec(f"centring must be True or False, got {self.centring!r}", field="centring")
        if self.centring and self.storage != "int8":
            raise InvalidSpec(f"centring is for int8 storage, got {self.storage!r}", field="centring")
        if self.storage not in STORAGE_TYPES:
            raise InvalidSpec(
                f"storage must be one of {', '.join(STORAGE_TYPES)}, got {self.storage!r}", field="storage"
            )
        if self.window is None:
            for name in ("sinks", "reserve"):
                if type(getattr(self, name)) is not int or getattr(self, name) != 0:
                    raise InvalidSpec(
                        f"{name} must be 0 without a window (nothing is ever evicted), "
                        f"got {getattr(self, name)!r}",
                        field=name,
                    )
        else:
            whole("window", self.window, 1, MAX_WINDOW)
            whole("sinks", self.sinks, 0, MAX_SINKS)
            whole("reserve", self.reserve, 0, MAX_RESERVE)
        if self.scale is not None:
            real("scale", self.scale, 0.0, MAX_SCALE, above=True)
        if self.rope is not None:
            if not isinstance(self.rope, Rope):
                raise InvalidSpec(f"rope must be a Rope or None, got {self.rope!r}", field="rope")
            object.__setattr__(self, "rope", self.rope.of_head(self.key_dim))
        self._check_sight()

    def _check_sight(self) -> None:
        if not isinstance(self.causal, bool):
            raise InvalidSpec(f"causal must be True or False, got {self.causal!r}", field="causal")
        whole("window_right", self.window_right, 0, MAX_WINDOW)
        if self.window_right and (self.causal or self.window is None):
            raise InvalidSpec(
                f"window_right must be 0 unless causal=False and there is a window, got {self.window_right} "
                f"with causal={self.causal}, window={self.window}",
                field="window_right",
            )
        if not self.causal and self.sinks:
            raise InvalidSpec(f"sinks must be 0 with causal=False, got {self.sinks}", field="sinks")
        if not self.placed and self.rope is not None:
            raise InvalidSpec(
                "rope must be None where queries have no position (causal=False without a window), got one",
                field="rope",
            )

    @property
    def placed(self) -> bool:
        """Whether queries have positions: all do but those that see everything whatever it is."""
        return self.causal or self.window is not None

    @property
    def group_size(self) -> int:
        """G: query heads that read one kv head."""
        return self.query_heads // self.kv_heads

    @property
    def score_scale(self) -> float:
        """The multiplier of q·k in force."""
        return 1.0 / math.sqrt(self.key_dim) if self.scale is None else float(self.scale)

    @property
    def capacity(self) -> int | None:
        """Token slots of the ring, sinks aside; None = it never wraps.

        One page more than both sides of the window and the reserve fill: when a page's first slot is
        rewritten, nothing of its old lap can be needed any more, whatever is undone or dropped.
        """
        if self.window is None:
            return None
        return (-(-(self.window + self.window_right + self.reserve) // PAGE_SLOTS) + 1) * PAGE_SLOTS

    @property
    def max_chunk(self) -> int | None:
        """How far a wrapped layer may run ahead of the stream's length; None = it never wraps."""
        return None if self.window is None else self.reserve + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSpec:
    """All layer groups of a stream. Between them they name every layer from 0 on exactly once.

    Raises:
        InvalidSpec: layers are missing or named twice, or an unbounded window has no max_length.
    """

    groups: tuple[LayerGroup, ...]
    max_length: int | None = None
    """Largest number of tokens; needed when any group has no window. None = no bound but int64."""
    _group_of: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.groups, tuple | list) or not all(
            isinstance(group, LayerGroup) for group in self.groups
        ):
            raise InvalidSpec(f"groups must be a tuple of LayerGroup, got {self.groups!r}", field="groups")
        groups = tuple(self.groups)
        object.__setattr__(self, "groups", groups)
        if not groups:
            raise InvalidSpec("a stream needs at least one layer group, got none", field="groups")
        if self.max_length is not None:
            whole("max_length", self.max_length, 1, MAX_LENGTH)
        elif any(group.window is None for group in groups):
            raise InvalidSpec("max_length is needed when a layer group has no window", field="max_length")
        owners = {layer: index for index, group in enumerate(groups) for layer in group.layers}
        count = sum(len(group.layers) for group in groups)
        if sorted(owners) != list(range(count)):
            raise InvalidSpec(
                f"the groups must name layers 0 to {count - 1} once each, got "
                f"{sorted(layer for group in groups for layer in group.layers)}",
                field="layers",
            )
        object.__setattr__(self, "_group_of", tuple(owners[layer] for layer in range(count)))

    @classmethod
    def uniform(
        cls,
        *,
        layers: int,
        query_heads: int,
        kv_heads: int,
        head_dim: int,
        value_dim: int | None = None,
        window: int | None = None,
        sinks: int = 0,
        reserve: int = 0,
        storage: str = "int8",
        centring: bool = False,
        scale: float | None = None,
        rope: Rope | None = None,
        causal: bool = True,
        window_right: int = 0,
        max_length: int | None = None,
    ) -> StreamSpec:
        """A stream whose layers are all alike; ``value_dim`` defaults to ``head_dim``."""
        whole("layers", layers, 1, MAX_LAYERS)
        group = LayerGroup(
            layers=tuple(range(layers)),
            query_heads=query_heads,
            kv_heads=kv_heads,
            key_dim=head_dim,
            value_dim=head_dim if value_dim is None else value_dim,
            window=window,
            sinks=sinks,
            reserve=reserve,
            storage=storage,
            centring=centring,
            scale=scale,
            rope=rope,
            causal=causal,
            window_right=window_right,
        )
        return cls(groups=(group,), max_length=max_length)

    @property
    def layers(self) -> int:
        """How many layers the stream has."""
        return len(self._group_of)

    @property
    def length_limit(self) -> int:
        """The bound on the stream's length in force."""
        return MAX_LENGTH if self.max_length is None else self.max_length

    @property
    def max_chunk(self) -> int | None:
        """Smallest ``max_chunk`` of the groups; None = no group ever wraps."""
        limits = [group.max_chunk for group in self.groups if group.max_chunk is not None]
        return min(limits) if limits else None

    def room(self, length: int) -> int:
        """Tokens that every layer of a level stream of this length may take before the next begins; >= 1."""
        return min(
            (
                max(group.reserve + 1, group.sinks + group.capacity - length)
                for group in self.groups
                if group.capacity is not None
            ),
            default=self.length_limit,
        )

    def group_index(self, layer: int) -> int:
        """The number of the group that holds a layer. Raises InvalidLayer."""
        if type(layer) is int and 0 <= layer < len(self._group_of):
            return self._group_of[layer]
        if isinstance(layer, bool) or not isinstance(layer, int) or not 0 <= layer < self.layers:
            raise InvalidLayer(
                f"layer must be an integer from 0 to {self.layers - 1}, got {layer!r}",
                field="layer",
                layers=self.layers,
            )
        return self._group_of[layer]

    def group(self, layer: int) -> LayerGroup:
        """The group that holds a layer. Raises InvalidLayer."""
        return self.groups[self.group_index(layer)]

    def same_shape(self, layers: Sequence[int]) -> bool:
        """Whether these layers take arrays of one shape (then they can be stacked)."""
        shapes = {
            (g.query_heads, g.kv_heads, g.key_dim, g.value_dim) for g in (self.group(n) for n in layers)
        }
        return len(shapes) <= 1
