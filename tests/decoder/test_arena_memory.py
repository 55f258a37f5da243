"""The memory under the arena: zeroed for its next owner, given back to the system, not taken for nothing."""

from __future__ import annotations

import ctypes
import mmap
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mirror import small

from rondel.decoder.cache.arena import UNIT, Arena, ArenaStats
from rondel.decoder.errors import BudgetExceeded
from rondel.decoder.session import DecoderSession

needs_proc = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system has no /proc")


def fill(session: DecoderSession, tokens: int) -> None:
    """Append ones to every layer (all of one shape)."""
    group, layers = session.spec.group(0), session.spec.layers
    k = np.ones((layers, 512, group.kv_heads, group.key_dim), np.float32)
    v = np.ones((layers, 512, group.kv_heads, group.value_dim), np.float32)
    for _ in range(tokens // 512):
        session.append_all(k, v)


def content(arena: Arena, offset: int, size: int) -> ctypes.Array[ctypes.c_char]:
    return (ctypes.c_char * size).from_address(arena.base + offset)


@pytest.mark.parametrize("size", [64, 4096, 700_032, UNIT, UNIT + 64, 3 * UNIT - 64])
def test_pages_come_back_zeroed(size: int) -> None:
    """From a slab that stays (its memory is used again) and from one that was given back."""
    arena = Arena(budget=24 << 20)
    for keep in (True, False):
        keeper = arena.reserve({size: 1})
        if keep:
            keeper.take(size)
        for _ in range(3):
            pages = arena.reserve({size: 3})
            for offset in [pages.take(size) for _ in range(3)]:
                page = content(arena, offset, size)
                assert page.raw == bytes(size)
                page.raw = b"\xff" * size
            pages.release()
        keeper.release()
    assert arena.stats() == ArenaStats(24 << 20, 0, 0)


def resident() -> int:
    """This process's resident bytes, as the system counts them."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@needs_proc
def test_memory_goes_back_to_the_system() -> None:
    arena = Arena(budget=256 << 20)
    sizes = {"query_heads": 8, "kv_heads": 8, "head_dim": 128, "value_dim": 128, "window": None, "sinks": 0}
    spec = small(2, reserve=0, max_length=8192, storage="float32", **sizes)
    grow_bytes = 2 * 8192 * 8 * 256 * 4
    for _ in range(3):
        before = resident()
        with DecoderSession(spec, arena) as session:
            assert resident() - before < grow_bytes // 8, "a promise alone takes no memory"
            fill(session, 8192)
            full = resident()
            assert full - before > 0.9 * grow_bytes
        assert full - resident() > 0.9 * grow_bytes


@needs_proc
def test_two_streams_closed_in_any_order_leave_no_memory_behind() -> None:
    arena = Arena(budget=256 << 20)
    spec = small(2, window=None, sinks=0, reserve=0, max_length=4096, kv_heads=4, head_dim=256, value_dim=256)
    before = resident()
    for order in ([0, 1, 2], [2, 1, 0], [1, 0, 2]):
        live = [DecoderSession(spec, arena) for _ in range(3)]
        for part in range(8):  # interleaved: their pages share slabs
            for session in live:
                fill(session, 512)
            assert session.length == 512 * (part + 1)
        full = resident()
        assert full - before > 0.8 * arena.stats().resident
        for index in order:
            live[index].close()
        assert resident() - before < 0.2 * (full - before)


@pytest.mark.parametrize(
    "changes",
    [
        {"window": None, "sinks": 0, "reserve": 0, "max_length": 2**48},
        {"window": None, "sinks": 0, "reserve": 0, "max_length": 2**48, "head_dim": 1, "value_dim": 1},
        {"layers": 64, "window": 1 << 24, "reserve": 1 << 20},
        {"layers": 1024, "query_heads": 1024, "kv_heads": 1024, "head_dim": 1024, "window": 1 << 24},
    ],
    ids=["endless", "endless and tiny", "widest window", "largest everything"],
)
def test_absurd_sizes_are_refused_at_once(changes: dict[str, Any]) -> None:
    spec = small(**{"query_heads": 1, "kv_heads": 1, **changes})
    arena = Arena(budget=4 << 30)
    begin = time.process_time()
    with pytest.raises(BudgetExceeded) as caught:
        DecoderSession(spec, arena)
    took = time.process_time() - begin
    assert caught.value.requested > caught.value.available
    assert arena.stats() == ArenaStats(4 << 30, 0, 0)
    assert took < 0.05, "refusing is no work"
    tracemalloc.start()
    try:
        with pytest.raises(BudgetExceeded):
            DecoderSession(spec, arena)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20, "refusing takes no memory"
    finally:
        tracemalloc.stop()
