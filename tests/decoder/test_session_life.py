"""The ends of a session's life: opening that is refused, and a stream that is closed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mirror import Mirror, small

from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import BudgetExceeded, StreamClosed, UnsupportedTier
from rondel.decoder.session import DecoderSession


@pytest.mark.parametrize("method", sorted(Mirror(small()).calls()))
def test_a_closed_stream_takes_no_calls(method: str) -> None:
    mirror = Mirror(small()).grow(300)
    mirror.session.close()
    for _ in range(2):
        with pytest.raises(StreamClosed):
            mirror.calls()[method]()
        mirror.session.close()
    assert mirror.session.closed
    stats = mirror.session.stats()
    assert (stats.bytes_reserved, stats.bytes_resident, stats.pages) == (0, 0, 0)
    assert (mirror.arena.stats().reserved, mirror.arena.stats().resident) == (0, 0)


def test_leaving_the_context_closes_the_stream_also_by_an_error() -> None:
    arena = Arena(budget=8 << 20)
    with DecoderSession(small(), arena) as session:
        session.append_all(np.zeros((2, 1, 2, 16), np.float32), np.zeros((2, 1, 2, 24), np.float32))
    with pytest.raises(ZeroDivisionError), DecoderSession(small(), arena) as failed:
        raise ZeroDivisionError
    assert session.closed
    assert failed.closed
    assert arena.stats().reserved == 0


def test_no_room_says_how_much_and_claims_nothing() -> None:
    arena = Arena(budget=4 << 20)
    with DecoderSession(small(sinks=0), arena) as session:
        before = arena.stats()
        big = small(8, sinks=0, window=60000)
        for _ in range(3):
            with pytest.raises(BudgetExceeded) as caught:
                DecoderSession(big, arena)
            assert caught.value.requested > caught.value.available == 2 << 20
            assert arena.stats() == before
        k, v = np.zeros((2, 9, 2, 16), np.float32), np.zeros((2, 9, 2, 24), np.float32)
        assert session.append_all(k, v) == 9
    assert arena.stats().reserved == 0


@pytest.mark.parametrize("tier", ["", "v5", "BASE", "_cpu", "../_base", 3])
def test_unknown_tiers_claim_nothing(tier: Any) -> None:
    arena = Arena(budget=8 << 20)
    with pytest.raises(UnsupportedTier):
        DecoderSession(small(), arena, tier=tier)
    assert arena.stats().reserved == 0
