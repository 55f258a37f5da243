"""The one budget: promises that hold, gauges that return to zero, memory that goes back to the system."""

from __future__ import annotations

import gc
import itertools
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from mirror import Mirror, small
from oracle import STORAGES

from rondel.decoder.cache.arena import UNIT, Arena, ArenaStats, Reservation
from rondel.decoder.errors import BudgetExceeded, InvalidSpec
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import LayerGroup, StreamSpec


def any_spec(luck: random.Random) -> StreamSpec:
    """Up to three layer groups of any shape, storage and window; some pages are larger than a slab unit."""
    groups, next_layer, wide = [], 0, luck.random() < 0.1
    for _ in range(luck.randint(1, 3)):
        layers = tuple(range(next_layer, next_layer + luck.randint(1, 3)))
        next_layer = layers[-1] + 1
        window = luck.choice([None, 1, 60, 128, 300])
        groups.append(
            LayerGroup(
                layers=layers,
                query_heads=16 if wide else 2,
                kv_heads=16 if wide else luck.choice([1, 2]),
                key_dim=256 if wide else luck.choice([1, 16, 64, 80]),
                value_dim=luck.choice([8, 64, 128]),
                window=window,
                sinks=luck.choice([0, 3, 128]) if window else 0,
                reserve=luck.choice([0, 9, 200]) if window else 0,
                storage=luck.choice(STORAGES),
            )
        )
    return StreamSpec(groups=tuple(groups), max_length=luck.choice([100, 400, 1000]))


def grow(session: DecoderSession, tokens: int) -> None:
    tokens = min(tokens, session.spec.length_limit - session.length)
    for part in session.chunks(tokens):
        for layer in range(session.spec.layers):
            group, n = session.spec.group(layer), part.stop - part.start
            session.append(layer, np.ones((n, group.kv_heads, group.key_dim), np.float32),
                           np.ones((n, group.kv_heads, group.value_dim), np.float32))  # fmt: skip


def test_gauges_return_to_zero_after_three_hundred_moves() -> None:
    luck, arena, live = random.Random(2), Arena(budget=192 << 20), list[DecoderSession]()
    opened = refused = 0
    for _ in range(300):
        move = luck.random()
        if move < 0.4 or not live:
            try:
                live.append(DecoderSession(any_spec(luck), arena))
                opened += 1
            except BudgetExceeded:
                refused += 1
        elif move < 0.75:
            grow(luck.choice(live), luck.choice([1, 50, 300]))
        else:
            live.pop(luck.randrange(len(live))).close()
        stats = arena.stats()
        assert stats.resident == sum(session.stats().bytes_resident for session in live)
        assert sum(session.stats().bytes_reserved for session in live) <= stats.reserved <= stats.budget
    assert opened > 80
    assert refused > 3
    for session in live:
        session.close()
    assert arena.stats() == ArenaStats(192 << 20, 0, 0)


def test_streams_abandoned_at_any_phase_leave_nothing() -> None:
    """Errors, undone chunks, layers that were ahead, streams never used: after close all bytes are back."""
    luck, arena = random.Random(3), Arena(budget=32 << 20)
    for turn in range(400):
        mirror = Mirror(small(storage=STORAGES[turn % 2]), arena=arena, seed=turn)
        length = luck.choice([0, 1, 200, 300])
        mirror.grow(length)
        if luck.random() < 0.5:
            mirror.append(0, *mirror.draw(0, luck.randint(0, 10))[1:])
        if luck.random() < 0.3:
            mirror.truncate(luck.randint(mirror.min_length, length))
        if luck.random() < 0.3:
            with pytest.raises(ValueError, match="k must"):
                mirror.session.append(0, mirror.draw(0, 1)[0], mirror.draw(0, 1)[2])
        mirror.session.close()
        assert arena.stats() == ArenaStats(32 << 20, 0, 0)


@pytest.mark.parametrize("seed", range(12))
def test_refused_at_open_or_never(seed: int) -> None:
    """The smallest budget that lets a stream open carries it to its end; one unit less refuses it."""
    spec = any_spec(random.Random(seed))
    roomy = Arena(budget=256 << 20)
    with DecoderSession(spec, roomy):
        reserved = roomy.stats().reserved
    with pytest.raises(BudgetExceeded):
        DecoderSession(spec, Arena(budget=max(UNIT, reserved - 1)) if reserved > UNIT else _full(UNIT))
    arena = Arena(budget=reserved)
    for _ in range(2):
        with DecoderSession(spec, arena) as session:
            grow(session, 1000)
            stats = session.stats()
            assert stats.length == spec.length_limit
            assert stats.bytes_resident <= stats.bytes_reserved <= arena.stats().reserved == reserved
        assert arena.stats() == ArenaStats(reserved, 0, 0)


def _full(budget: int) -> Arena:
    arena = Arena(budget)
    arena.reserve({UNIT: budget // UNIT})
    return arena


def test_a_refusal_touches_no_other_stream() -> None:
    arena = Arena(budget=6 << 20)
    first = Mirror(small(sinks=0), arena=arena).grow(300)
    second = DecoderSession(small(sinks=0, head_dim=32), arena)
    before = arena.stats()
    with pytest.raises(BudgetExceeded):
        DecoderSession(small(layers=64, sinks=3, window=1000), arena)
    assert arena.stats() == before
    first.check_stored()
    grow(second, 1000)
    second.close()
    first.session.close()
    assert arena.stats().reserved == 0
    DecoderSession(small(layers=8, sinks=3), arena).close()


def test_the_error_of_a_refusal_can_be_believed() -> None:
    """What was requested is more than what is available, also when whole slabs are what is short."""
    with pytest.raises(BudgetExceeded) as caught:
        DecoderSession(small(sinks=3), Arena(budget=UNIT))  # two page sizes, one slab
    assert caught.value.requested > caught.value.available
    assert isinstance(caught.value, MemoryError)


def test_pages_never_overlap_and_stay_inside() -> None:
    luck, arena = random.Random(5), Arena(budget=64 << 20)
    sizes = [64, 960, 52_032, 700_032, UNIT, UNIT + 64, 2 * UNIT + 64]
    live: list[tuple[Reservation, dict[int, int]]] = []
    for _ in range(200):
        if len(live) > 8 or (live and luck.random() < 0.4):
            live.pop(luck.randrange(len(live)))[0].release()
            continue
        demand = {size: luck.randint(1, 3) for size in luck.sample(sizes, 2)}
        try:
            pages = arena.reserve(demand)
        except BudgetExceeded:
            continue
        taken = {pages.take(size): size for size, count in demand.items() for _ in range(count)}
        live.append((pages, taken))
        with pytest.raises(BudgetExceeded):
            pages.take(next(iter(demand)))
        ranges = sorted((offset, offset + size) for _, taken in live for offset, size in taken.items())
        assert ranges[0][0] >= 0
        assert ranges[-1][1] <= arena.stats().budget
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ranges))
        assert all(offset % 64 == 0 for offset, _ in ranges)
        assert arena.stats().resident == sum(end - start for start, end in ranges)
    for pages, _ in live:
        pages.release()
        pages.release()
    assert arena.stats() == ArenaStats(64 << 20, 0, 0)


@pytest.mark.parametrize("storage", STORAGES)
def test_pages_larger_than_a_slab_unit(storage: str) -> None:
    sizes = {"query_heads": 16, "kv_heads": 16, "head_dim": 640, "value_dim": 600}
    mirror = Mirror(small(window=100, sinks=2, storage=storage, **sizes), arena=Arena(budget=160 << 20))
    page_bytes = mirror.session.stats().bytes_reserved / 6
    assert page_bytes > UNIT * (0.6 if storage == "int8" else 2)
    mirror.grow(2 + 256 + 140)
    mirror.check_stored()
    mirror.check_attend(0, 2, mirror.length - 2)
    mirror.session.close()
    assert mirror.arena.stats().reserved == 0


def test_many_threads_open_grow_and_close() -> None:
    """Every page in the hands of one stream only, and all of them back in the end."""
    arena = Arena(budget=96 << 20)
    barrier = threading.Barrier(8)

    def work(seed: int) -> int:
        luck, turns = random.Random(seed), 0
        barrier.wait()
        for turn in range(15):
            try:
                mirror = Mirror(small(storage=luck.choice(STORAGES)), arena=arena, seed=100 * seed + turn)
            except BudgetExceeded:
                continue
            mirror.grow(luck.choice([1, 100, 400]))
            mirror.check_stored()
            mirror.check_attend(0, 1, mirror.length - 1)
            mirror.session.close()
            turns += 1
        return turns

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(work, range(8))) > 60
    assert arena.stats() == ArenaStats(96 << 20, 0, 0)


def test_a_window_longer_than_the_stream_reserves_no_more_than_the_stream() -> None:
    with DecoderSession(small(sinks=0, window=1 << 20, max_length=100), Arena(budget=UNIT)) as session:
        grow(session, 100)


@pytest.mark.parametrize(
    "budget", [0, -1, 1, UNIT - 1, 2**62, 2**63, 10**30, 1e9, "1G", None, True, float("nan")], ids=repr
)
def test_impossible_budgets(budget: Any) -> None:
    with pytest.raises(InvalidSpec) as caught:
        Arena(budget)
    assert caught.value.field == "budget"


def test_a_budget_is_cut_to_whole_units() -> None:
    assert Arena(UNIT).stats() == Arena(2 * UNIT - 1).stats() == ArenaStats(UNIT, 0, 0)
    assert Arena(budget=UNIT).base % UNIT == 0


def test_sessions_dropped_without_close_give_their_pages_back_from_any_thread() -> None:
    arena = Arena(budget=256 << 20)
    spec = StreamSpec.uniform(layers=1, query_heads=1, kv_heads=1, head_dim=8, window=128)

    def open_and_drop() -> None:
        for _ in range(300):
            DecoderSession(spec, arena)
            arena.stats()

    with ThreadPoolExecutor(4) as threads:
        for dropping in [threads.submit(open_and_drop) for _ in range(4)]:
            dropping.result()
    gc.collect()
    assert (arena.stats().reserved, arena.stats().resident) == (0, 0)
