"""Many streams in one arena under random calls, each beside plain lists: all answers checked, nothing left.

`make test` does 1,500 calls of it; `make test-deep` ten minutes on 200 streams (RONDEL_SOAK_SECONDS).
"""

from __future__ import annotations

import io
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from families import check_gauges
from mirror import Mirror, small
from oracle import STORAGES, TIERS

from rondel.decoder.batch import Step, StepResult, run_steps
from rondel.decoder.cache.arena import Arena, ArenaStats
from rondel.decoder.errors import BudgetExceeded, QuotaExceeded
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec

BUDGET = 1 << 30
LONGEST = 700
"""Tokens after which a stream is closed: checking costs as much as the lists are long."""
OFTEN = {
    "append": 0.2, "step": 0.3, "batch": 0.1, "attend": 0.2, "truncate": 0.07, "fork": 0.05, "restore": 0.03,
    "close": 0.02, "failure": 0.03,
}  # fmt: skip
"""How likely each call is."""


def drawn_spec(random: np.random.Generator) -> StreamSpec:
    storage = STORAGES[int(random.integers(len(STORAGES)))]
    if random.integers(3) == 0:
        return small(
            2, window=None, sinks=0, reserve=0, max_length=LONGEST + 300, storage=storage, head_dim=8
        )
    sizes: dict[str, Any] = {"window": int(random.integers(1, 120)), "sinks": int(random.integers(0, 9))}
    return small(int(random.integers(1, 3)), storage=storage, **sizes)


@dataclass
class Soak:
    """``streams`` mirrors that live and die; ``done`` counts calls by name."""

    streams: int
    seed: int
    arena: Arena = field(default_factory=lambda: Arena(budget=BUDGET))
    live: list[Mirror] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)

    def turn(self) -> None:
        """One random call, checked."""
        mirror = self.live[int(self.random.integers(len(self.live)))] if self.live else None
        if mirror is None or len(self.live) < self.streams:
            self.open()
        elif mirror.length > LONGEST:
            self.close(mirror)
        else:
            name = str(self.random.choice(list(OFTEN), p=list(OFTEN.values())))
            getattr(self, name)(mirror)
            self.done[name] += 1

    def open(self) -> None:
        tier = TIERS[int(self.random.integers(len(TIERS)))]
        seed = int(self.random.integers(1 << 31))
        self.live.append(Mirror(drawn_spec(self.random), tier, seed, self.arena))
        self.done["open"] += 1

    def append(self, mirror: Mirror) -> None:
        mirror.grow(mirror.length + int(self.random.choice((1, 3, 17, 64, 200))))

    def step(self, mirror: Mirror) -> None:
        layers, at = range(mirror.spec.layers), mirror.length
        for part in mirror.session.chunks(int(self.random.integers(1, 9))):
            tokens = part.stop - part.start
            for layer in layers:
                q, k, v = mirror.draw(layer, tokens)
                mirror.check(layer, q, mirror.step(layer, q, k, v), at)
            at += tokens

    def batch(self, mirror: Mirror) -> None:
        """One token of layer 0 for many streams in one call, and of their other layers one by one."""
        chosen = [self.live[i] for i in self.random.permutation(len(self.live))[:16]]
        tokens = [one.draw(0, 1) for one in chosen]
        steps = [Step(one.session, 0, *three) for one, three in zip(chosen, tokens, strict=True)]
        for one, (q, k, v), result in zip(chosen, tokens, run_steps(steps), strict=True):
            assert isinstance(result, StepResult), result
            one.note(0, k, v)
            one.check(0, q, (result.out, result.lse), len(one.k[0]) - 1)
            for layer in range(1, one.spec.layers):
                q, k, v = one.draw(layer, 1)
                one.check(layer, q, one.step(layer, q, k, v), len(one.k[layer]) - 1)

    def attend(self, mirror: Mirror) -> None:
        if not mirror.length:
            return
        layer = int(self.random.integers(mirror.spec.layers))
        rows = int(self.random.integers(1, min(5, mirror.length) + 1))
        position = int(self.random.integers(0, mirror.length - rows + 1))
        if mirror.refusal_of_attend(layer, position, rows) is None:
            mirror.check_attend(layer, rows, position)

    def truncate(self, mirror: Mirror) -> None:
        mirror.truncate(int(self.random.integers(mirror.min_length, mirror.length + 1)))

    def fork(self, mirror: Mirror) -> None:
        if len(self.live) < 2 * self.streams:
            self.live.append(mirror.fork())

    def restore(self, mirror: Mirror) -> None:
        file = io.BytesIO()
        mirror.session.snapshot(file)
        mirror.session.close()
        file.seek(0)
        mirror.session = DecoderSession.restore(file, self.arena, tier=mirror.tier)

    def failure(self, mirror: Mirror) -> None:
        """A call that is refused changes nothing: the next checks will tell."""
        q, k, v = mirror.draw(0, 1)
        with pytest.raises(ValueError, match="finite"):
            mirror.session.step(0, q, np.full_like(k, np.nan), v)
        with pytest.raises((BudgetExceeded, QuotaExceeded)):
            self.arena.reserve({4096: BUDGET})

    def close(self, mirror: Mirror) -> None:
        mirror.check_stored()
        mirror.session.close()
        self.live = [one for one in self.live if one is not mirror]

    def turns(self, count: int) -> None:
        for _ in range(count):
            self.turn()
        check_gauges(self.arena, [mirror.session for mirror in self.live])

    def end(self) -> None:
        for mirror in list(self.live):
            self.close(mirror)
        assert self.arena.stats() == ArenaStats(BUDGET, 0, 0)
        calls = ", ".join(f"{count:,} × {name}" for name, count in sorted(self.done.items()))
        sys.stdout.write(f"\n{self.streams} streams: {calls}\n")


def test_streams_live_side_by_side() -> None:
    soak = Soak(streams=20, seed=1)
    for _ in range(15):
        soak.turns(100)
    soak.end()
    assert set(soak.done) == {*OFTEN, "open"}, soak.done


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_two_hundred_streams_for_a_long_time() -> None:
    seconds = float(os.environ.get("RONDEL_SOAK_SECONDS", "600"))
    soak, end = Soak(streams=200, seed=int.from_bytes(os.urandom(4))), time.monotonic() + seconds
    while time.monotonic() < end:
        soak.turns(100)
    soak.end()
