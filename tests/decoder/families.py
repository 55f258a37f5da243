"""Streams that were forked from one another, each beside one that was told the same and shares nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from oracle import gaussian

from rondel.decoder.cache.arena import Arena, ArenaStats
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import LayerGroup, StreamSpec

Call = tuple[str, tuple[Any, ...], dict[str, Any]]

SHAPE = {"query_heads": 4, "kv_heads": 2, "key_dim": 16, "value_dim": 24}
WINDOW = {"window": 60, "sinks": 3, "reserve": 9}  # a ring of 256 slots


def grouped(*groups: dict[str, Any], max_length: int | None = None) -> StreamSpec:
    """A stream of several groups; ``layers`` of each, and what else is not as in SHAPE."""
    return StreamSpec(
        groups=tuple(LayerGroup(**{**SHAPE, **group}) for group in groups), max_length=max_length
    )


SPECS = {
    "ring": grouped({"layers": (0, 1), **WINDOW}),
    "ring float32": grouped({"layers": (0, 1), **WINDOW, "storage": "float32"}),
    "ring centred": grouped({"layers": (0, 1), **WINDOW, "centring": True}),
    "no sinks": grouped({"layers": (0,), "window": 128, "reserve": 40, "centring": True}),
    "endless": grouped({"layers": (0, 1, 2), "centring": True}, max_length=900),
    "several": grouped(
        {"layers": (0, 3), **WINDOW, "centring": True},
        {"layers": (1,), "window": 200, "sinks": 20, "reserve": 9, "storage": "float32"},
        {"layers": (2,), "kv_heads": 4},
        max_length=900,
    ),
}


class Twin:
    """A session, and one alone in its arena that is given every call that this one takes."""

    def __init__(self, spec: StreamSpec, arena: Arena, tier: str, seed: int = 0) -> None:
        self._begin(DecoderSession(spec, arena, tier=tier), tier, seed, [])

    def _begin(self, session: DecoderSession, tier: str, seed: int, calls: list[Call]) -> None:
        self.session, self.tier, self.seed, self.calls = session, tier, seed, calls
        self.rng = np.random.default_rng(seed)
        self.alone = DecoderSession(session.spec, Arena(64 << 20), tier=tier)
        for name, given, options in calls:
            getattr(self.alone, name)(*given, **options)

    def fork(self, seed: int, **options: Any) -> Twin:
        fork = object.__new__(Twin)
        fork._begin(self.session.fork(**options), self.tier, seed, list(self.calls))
        return fork

    def do(self, name: str, *given: Any, **options: Any) -> None:
        """The same call to both; the answers are alike to the bit."""
        got = getattr(self.session, name)(*given, **options)
        self.calls.append((name, given, options))
        want = getattr(self.alone, name)(*given, **options)
        assert np.asarray(got).tobytes() == np.asarray(want).tobytes(), f"{name} {options}"

    def draw(self, layer: int, tokens: int) -> tuple[NDArray[np.float32], ...]:
        group = self.session.spec.group(layer)
        shapes = ((group.query_heads, group.key_dim), (group.kv_heads, group.key_dim),
                  (group.kv_heads, group.value_dim))  # fmt: skip
        return tuple(gaussian(self.rng, tokens, *shape) + np.float32(0.5) for shape in shapes)

    def step(self, layer: int, tokens: int) -> None:
        self.do("step", layer, *self.draw(layer, tokens))

    def grow(self, tokens: int) -> Twin:
        """All layers, from the committed length on."""
        for part in self.session.chunks(tokens):
            for layer in range(self.session.spec.layers):
                self.step(layer, part.stop - part.start)
        return self

    def check(self) -> None:
        """Numbers, and every byte of every page, sinks and old laps and undone tokens included."""
        self.check_visible()
        assert pages_of(self.session) == pages_of(self.alone)

    def check_visible(self) -> None:
        """Numbers, and what attention sees: a failed call leaves its bytes in slots that hold no token."""
        mine, theirs = self.session, self.alone
        assert numbers_of(mine) == numbers_of(theirs)
        for layer in range(mine.spec.layers):
            group, held = mine.spec.group(layer), mine.layer_length(layer)
            q = self.draw(layer, min(3, held))[0]
            if held:
                assert mine.attend(layer, q).tobytes() == theirs.attend(layer, q).tobytes()
            run = max(0, held - (group.window or held)), held
            for a, b in zip(mine.read(layer, *run), theirs.read(layer, *run), strict=True):
                assert a.tobytes() == b.tobytes()


def numbers_of(session: DecoderSession) -> tuple[Any, ...]:
    """All that a session says of itself but its generation and its bytes."""
    lengths = [session.layer_length(layer) for layer in range(session.spec.layers)]
    return session.length, session.high_water, session.min_length, session.sealed, lengths


def pages_of(session: DecoderSession) -> list[bytes | None]:
    """The content of every page, by place."""
    found: list[bytes | None] = []
    for ring in session._rings:
        for layer in ring.group.layers:
            for column, offset in enumerate(ring.table(layer).tolist()):
                size = ring.page_bytes(column)
                found.append(session._pages.contents(size, offset).tobytes() if offset >= 0 else None)
    return found


def record_bytes(session: DecoderSession) -> int:
    """What a file's record of the stream takes: a page of the arena that is none of the stream's own."""
    record = session._pages.record
    return 0 if record is None else record.pages.resident_bytes


def check_gauges(arena: Arena, sessions: Iterable[DecoderSession]) -> None:
    """The gauges say what the page tables of all sessions of the arena say."""
    holders: Counter[int] = Counter()
    sizes: dict[int, int] = {}
    sessions = list(sessions)
    of_session: list[Counter[int]] = []
    for session in sessions:
        of_session.append(Counter())
        for ring in session._rings:
            for layer in ring.group.layers:
                for column, offset in enumerate(ring.table(layer).tolist()):
                    if offset >= 0:
                        holders[offset] += 1
                        sizes[offset] = ring.page_bytes(column)
                        of_session[-1][offset] += 1
    shared = {offset for offset, count in holders.items() if count > 1}
    stats = arena.stats()
    assert stats.resident == sum(sizes.values()) + sum(record_bytes(session) for session in sessions)
    assert stats.shared == sum(sizes[offset] for offset in shared)
    promised = 0
    for session, held in zip(sessions, of_session, strict=True):
        mine = session.stats()
        assert mine.bytes_resident == sum(sizes[offset] for offset in held)
        assert mine.bytes_shared == sum(sizes[offset] for offset in held if offset in shared)
        promised += mine.bytes_reserved + record_bytes(session)
    assert stats.resident <= promised <= stats.reserved <= stats.budget


def assert_empty(arena: Arena) -> None:
    assert arena.stats() == ArenaStats(arena.stats().budget, 0, 0, 0)
    assert not arena._shares._of
    assert not arena._pools


def close_all(sessions: Sequence[DecoderSession]) -> None:
    for session in sessions:
        session.close()
