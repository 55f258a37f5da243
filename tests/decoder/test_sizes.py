"""How much memory streams take: to the byte, over a hundred thousand of them, and for a million tokens."""

from __future__ import annotations

import gc
import mmap
import sys
from pathlib import Path

import numpy as np
import pytest
from mirror import small
from oracle import gaussian

from rondel.decoder.cache.arena import UNIT, Arena, ArenaStats
from rondel.decoder.errors import BudgetExceeded
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec

needs_proc = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system has no /proc")


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def churn(streams: int) -> float:
    """Open, fill and close so many streams: bytes per stream that the process grew by in the second half."""
    arena, spec = Arena(budget=16 * UNIT), small(2)
    random = np.random.default_rng(0)
    k, v = gaussian(random, 5, 2, 16), gaussian(random, 5, 2, 24)
    half = 0
    for number in range(streams):
        session = DecoderSession(spec, arena)
        session.append(0, k, v)
        session.append(1, k, v)
        if number % 3:
            session.close()
        elif number % 2:
            session.fork().close()
            session.close()
        del session  # every third but one is dropped without an end
        if number == streams // 2:
            gc.collect()
            half = resident()
    gc.collect()
    assert arena.stats() == ArenaStats(16 * UNIT, 0, 0)
    return (resident() - half) / (streams - streams // 2)


@needs_proc
def test_streams_that_come_and_go_leave_nothing() -> None:
    assert churn(6_000) < 100


@needs_proc
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_hundred_thousand_streams_leave_nothing() -> None:
    slope = churn(100_000)
    sys.stdout.write(f"\n{slope:.2f} bytes per stream\n")
    assert slope < 5


def test_a_budget_one_slab_too_small_refuses_at_open() -> None:
    spec = small(4, window=None, sinks=0, reserve=0, max_length=20_000)
    with DecoderSession(spec, arena := Arena(budget=1 << 30)) as _:
        needed = arena.stats().reserved
    assert needed > 4 * UNIT
    with DecoderSession(spec, Arena(budget=needed)) as session:
        assert session.length == 0
    arena = Arena(budget=needed - UNIT)
    with pytest.raises(BudgetExceeded):
        DecoderSession(spec, arena)
    assert arena.stats() == ArenaStats(needed - UNIT, 0, 0)


def test_bytes_per_token_are_codes_scales_and_checksums() -> None:
    """32 layers of 8 heads of 128: within 4%, of what the memory holds and of what the arena counts."""
    spec = StreamSpec.uniform(layers=32, query_heads=32, kv_heads=8, head_dim=128, max_length=1024)
    arena = Arena(budget=256 << 20)
    with DecoderSession(spec, arena) as session:
        x = np.ones((32, 512, 8, 128), np.float32)
        session.append_all(x, x)
        session.append_all(x, x)
        token = 32 * (8 * (128 + 128 + 2 + 2) + 4)
        assert token < session.stats().bytes_resident / 1024 < 1.04 * token
        assert arena.stats().resident == session.stats().bytes_resident


@pytest.mark.parametrize("storage", ["int8", "float32"])
def test_a_million_tokens_in_one_layer(storage: str) -> None:
    tokens = 1_000_000
    spec = StreamSpec.uniform(
        layers=1, query_heads=2, kv_heads=1, head_dim=8, value_dim=16, max_length=tokens, storage=storage
    )
    arena = Arena(budget=256 << 20)
    random = np.random.default_rng(3)
    k, v = gaussian(random, 2000, 1, 8), gaussian(random, 2000, 1, 16)
    k[0] *= 30  # the first of every 2,000 is looked for
    with DecoderSession(spec, arena) as session:
        for start in range(0, tokens, 2000):
            v[0] = start / tokens
            session.append(0, k, v)
        assert session.length == tokens
        q = 30 * np.repeat(k[:1] / np.linalg.norm(k[0]), 2, axis=1)
        out = session.attend(0, q)
        # All of these 500 keys are alike, so the answer is the mean of their values.
        np.testing.assert_allclose(out, np.mean(np.arange(0, tokens, 2000) / tokens), atol=2e-3)
        assert arena.stats().resident == session.stats().bytes_resident < 256 << 20
    assert arena.stats() == ArenaStats(256 << 20, 0, 0)
