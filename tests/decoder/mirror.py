"""A session beside plain Python lists of everything it was given, with rules of its own for what must happen.

The rules here are the design's, worked out from the lists and three numbers of a ring; nothing is asked of
the session. ``refused`` holds a call to its error and to having changed nothing that can be seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from comparators import TINY, assert_near, assert_same_bits
from numpy.typing import NDArray
from oracle import GAUSSIAN, LSE, TIERS, Floats, gaussian

from rondel.decoder import reference
from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import (
    ChunkTooLong,
    LengthExceeded,
    QuotaExceeded,
    RollbackTooDeep,
    RondelError,
    SequenceGap,
    WindowEvicted,
)
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import LayerGroup, StreamSpec

Refusal = type[RondelError] | None


def small(layers: int = 2, **changes: Any) -> StreamSpec:
    """A stream whose ring has 256 slots and three sinks; cheap to wrap."""
    sizes: dict[str, Any] = {"query_heads": 4, "kv_heads": 2, "head_dim": 16, "value_dim": 24}
    return StreamSpec.uniform(layers=layers, **{**sizes, "window": 60, "sinks": 3, "reserve": 9, **changes})


def capacity(group: LayerGroup) -> float:
    """Slots of a group's ring: window and reserve in whole pages, and one page more."""
    return math.inf if group.window is None else 128 * (math.ceil((group.window + group.reserve) / 128) + 1)


@dataclass
class Mirror:
    """A session and, per layer, the list of tokens that it holds: ``k[layer][position]`` is [Hkv, Dk]."""

    spec: StreamSpec
    tier: str = TIERS[-1]
    seed: int = 0
    arena: Arena = field(default_factory=lambda: Arena(budget=64 << 20))
    session: DecoderSession = field(init=False)
    k: list[list[Floats]] = field(init=False, repr=False)
    v: list[list[Floats]] = field(init=False, repr=False)
    claimed: list[int] = field(init=False, repr=False)  # per layer: the most that it ever held
    generation: int = 0
    quota: float = math.inf  # tokens that a fork may reach
    origin: int = 0  # the length that a fork with a quota began with
    tag: bytes = b""  # what a file has the stream under

    def __post_init__(self) -> None:
        self.session = DecoderSession(self.spec, self.arena, tier=self.tier, tag=self.tag)
        self.rng = np.random.default_rng(self.seed)
        self.claimed = [0] * self.spec.layers
        self.k = [[] for _ in range(self.spec.layers)]
        self.v = [[] for _ in range(self.spec.layers)]

    # --- data -----------------------------------------------------------------------------------------

    def queries(self, layer: int, rows: int) -> Floats:
        group = self.spec.group(layer)
        return gaussian(self.rng, rows, group.query_heads, group.key_dim)

    def draw(self, layer: int, tokens: int) -> tuple[Floats, Floats, Floats]:
        """q, k, v for new tokens of a layer."""
        group = self.spec.group(layer)
        k, v = (gaussian(self.rng, tokens, group.kv_heads, dim) for dim in (group.key_dim, group.value_dim))
        return self.queries(layer, tokens), k, v

    def draw_stack(self, layers: Sequence[int], tokens: int) -> tuple[Floats, Floats, Floats]:
        """The same for layers of one shape, stacked: [layers, tokens, heads, dim]."""
        q, k, v = zip(*(self.draw(layer, tokens) for layer in layers), strict=True)
        return np.stack(q), np.stack(k), np.stack(v)

    def calls(self) -> dict[str, Callable[[], object]]:
        """A sound call of every method that takes its turn in the session, by name."""
        q, k, v = self.draw_stack(range(self.spec.layers), 1)
        session, last = self.session, self.length - 1
        return {
            "append": lambda: session.append(0, k[0], v[0]),
            "attend": lambda: session.attend(0, q[0]),
            "step": lambda: session.step(0, q[0], k[0], v[0]),
            "append_all": lambda: session.append_all(k, v),
            "step_all": lambda: session.step_all(q, k, v),
            "matches": lambda: session.matches(0, last, k[0], v[0]),
            "read": lambda: session.read(0, last, last + 1),
            "truncate": lambda: session.truncate(last),
            "fork": lambda: session.fork(),
            "snapshot": lambda: session.snapshot(BytesIO()),
        }

    # --- what was done --------------------------------------------------------------------------------

    @property
    def length(self) -> int:
        return min(len(tokens) for tokens in self.k)

    def note(self, layer: int, k: Floats, v: Floats) -> None:
        self.k[layer].extend(k)
        self.v[layer].extend(v)
        self.claimed[layer] = max(self.claimed[layer], len(self.k[layer]))

    def append(self, layer: int, k: Floats, v: Floats) -> None:
        assert self.session.append(layer, k, v) == len(self.k[layer]) + len(k)
        self.note(layer, k, v)

    def step(self, layer: int, q: Floats, k: Floats, v: Floats) -> tuple[Floats, Floats]:
        answer = self.session.step(layer, q, k, v, return_lse=True)
        self.note(layer, k, v)
        return answer

    def grow(self, length: int) -> Mirror:
        """Bring every layer to ``length``, in the largest chunks that the stream allows."""
        for part in self.session.chunks(length - self.length):
            for layer in range(self.spec.layers):
                _, k, v = self.draw(layer, part.stop - part.start)
                self.append(layer, k, v)
        return self

    def fork(self, max_new_tokens: int | None = None, tag: bytes = b"") -> Mirror:
        """A fork of the session, beside lists of its own."""
        fork = copy(self)
        fork.session, fork.tag = self.session.fork(max_new_tokens=max_new_tokens, tag=tag), tag
        fork.seed = int(self.rng.integers(2**32))
        fork.rng, fork.generation = np.random.default_rng(fork.seed), 0
        fork.quota = math.inf if max_new_tokens is None else self.length + max_new_tokens
        fork.origin = 0 if max_new_tokens is None else self.length
        fork.k, fork.v = ([list(tokens) for tokens in lists] for lists in (self.k, self.v))
        fork.claimed = list(self.claimed)
        return fork

    def truncate(self, length: int) -> Mirror:
        self.session.truncate(length)
        self.generation += 1
        for tokens in (*self.k, *self.v):
            del tokens[length:]
        return self

    def go_on(self, session: DecoderSession, arena: Arena, tier: str) -> None:
        """With the stream as a file gave it back: what only some layers had is gone."""
        self.session, self.arena, self.tier, length = session, arena, tier, self.length
        self.generation += 1
        for tokens in (*self.k, *self.v):
            del tokens[length:]

    # --- what must happen -----------------------------------------------------------------------------

    def oldest(self, layer: int) -> int:
        """First position, sinks aside, whose page has not been begun again."""
        group = self.spec.group(layer)
        begun = 128 * math.ceil((self.claimed[layer] - group.sinks) / 128)
        return group.sinks + int(max(0, begun - capacity(group)))

    @property
    def high_water(self) -> int:
        return max(self.claimed)

    @property
    def min_length(self) -> int:
        layers = [(self.spec.group(layer), claimed) for layer, claimed in enumerate(self.claimed)]
        wrapped = [(g, claimed) for g, claimed in layers if claimed > g.sinks + capacity(g)]
        return max((min(self.length, claimed - g.reserve) for g, claimed in wrapped), default=0)

    def refusal_of_append(self, layers: Sequence[int], tokens: int) -> Refusal:
        starts = {len(self.k[layer]) for layer in layers}
        if len(starts) > 1:
            return SequenceGap
        end = starts.pop() + tokens
        if self.spec.max_length is not None and end > self.spec.max_length:
            return LengthExceeded
        if end > self.quota:
            return QuotaExceeded
        for group in (self.spec.group(layer) for layer in layers if len(layers) < self.spec.layers):
            if end > group.sinks + capacity(group) and end - self.length > group.reserve + 1:
                return ChunkTooLong
        return None

    def refusal_of_attend(self, layer: int, position: int, rows: int) -> Refusal:
        group = self.spec.group(layer)
        if position < 0 or position + rows > len(self.k[layer]):
            return SequenceGap
        for p in range(position, position + rows):
            needed = range(0 if group.window is None else max(0, p - group.window + 1), p + 1)
            if any(group.sinks <= j < self.oldest(layer) for j in needed):
                return WindowEvicted
        return None

    def refusal_of_truncate(self, length: int) -> Refusal:
        if not 0 <= length <= self.length:
            return SequenceGap
        return RollbackTooDeep if length < self.min_length else None

    # --- answers --------------------------------------------------------------------------------------

    def stored(self, layer: int, positions: Sequence[int]) -> tuple[Floats, Floats]:
        """What the written format makes of the tokens at these positions, float32."""
        group = self.spec.group(layer)
        k = np.array([self.k[layer][j] for j in positions], np.float32)
        v = np.array([self.v[layer][j] for j in positions], np.float32)
        k = k.reshape(-1, group.kv_heads, group.key_dim)
        v = v.reshape(-1, group.kv_heads, group.value_dim)
        if group.storage == "float32":
            return k, v
        both = [reference.dequantise(*reference.quantise_rows(x)).astype(np.float32) for x in (k, v)]
        return both[0], both[1]

    def check(self, layer: int, q: Floats, answer: tuple[Floats, Floats], position: int) -> None:
        """Hold an answer (out, lse) for rows from ``position`` on to the float64 oracle."""
        group = self.spec.group(layer)
        end = position + len(q)
        start = 0 if group.window is None else max(0, position - group.window + 1)
        at = [*range(min(group.sinks, start, end)), *range(start, end)]
        k, v = self.stored(layer, at)
        want, want_lse = reference.attend(
            q, k, v, scale=group.scale, position=position,
            key_positions=np.array(at, np.int64), window=group.window, sinks=group.sinks,
        )  # fmt: skip
        largest = np.abs(v).max(axis=(0, 2), initial=0.0).repeat(group.group_size).astype(np.float64)
        name = f"{self.tier} {group} rows {position} to {end - 1}"
        out, lse = answer
        assert_near(out, want, GAUSSIAN[group.storage] * largest[None, :, None] + TINY, f"{name}: out")
        assert_near(lse, want_lse, LSE[group.storage] * np.maximum(1.0, np.abs(want_lse)), f"{name}: lse")

    def check_attend(self, layer: int, rows: int, position: int) -> None:
        q = self.queries(layer, rows)
        self.check(layer, q, self.session.attend(layer, q, position=position, return_lse=True), position)

    def readable(self, layer: int) -> list[tuple[int, int]]:
        """Runs of positions that the layer still stores: its sinks, and what the ring holds."""
        held, sinks = len(self.k[layer]), self.spec.group(layer).sinks
        runs = [(0, min(sinks, held)), (min(self.oldest(layer), held), held)]
        return [(start, stop) for start, stop in runs if start < stop]

    def check_stored(self) -> None:
        """Every stored token, to the bit."""
        for layer in range(self.spec.layers):
            for run in self.readable(layer):
                got, want = self.session.read(layer, *run), self.stored(layer, range(*run))
                for a, b, name in zip(got, want, ("keys", "values"), strict=True):
                    assert_same_bits(a, b, f"{self.tier} layer {layer} {name} from {run[0]}")

    def state(self) -> tuple[Any, ...]:
        """All that a caller can see of the session: numbers, and the bytes of what is stored."""
        layers = range(self.spec.layers)
        stored = [x.tobytes() for layer in layers for run in self.readable(layer)
                  for x in self.session.read(layer, *run)]  # fmt: skip
        lengths = [self.session.layer_length(layer) for layer in layers]
        return self.session.stats(), lengths, self.arena.stats(), stored


@contextmanager
def refused(mirror: Mirror, error: type[RondelError], **facts: object) -> Iterator[pytest.ExceptionInfo[Any]]:
    """The block raises exactly this error with these facts, and nothing that can be seen has changed."""
    before = mirror.state()
    with pytest.raises(error) as caught:
        yield caught
    assert type(caught.value) is error
    assert {name: getattr(caught.value, name) for name in facts} == facts
    assert mirror.state() == before


def assert_same_answers(
    got: Sequence[NDArray[np.float32]], want: Sequence[NDArray[np.float32]], name: str
) -> None:
    """Pairs of (out, lse), to the bit."""
    for a, b, what in zip(got, want, ("out", "lse"), strict=True):
        assert_same_bits(a, b, f"{name}: {what}")
