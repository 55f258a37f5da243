"""Promises beyond the budget: more streams open, growth may be refused, and a refusal changes nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import Twin, grouped, numbers_of
from moments import copies_at, moments_of, some_of, survivors_of
from numpy.typing import NDArray
from survivors import same

from rondel.decoder.attach import attach
from rondel.decoder.batch import Step, StepResult, run_steps
from rondel.decoder.cache.arena import UNIT, Arena, ArenaStats, Reservation
from rondel.decoder.errors import BudgetExceeded, InvalidSpec, QuotaExceeded
from rondel.decoder.kernels import TIER
from rondel.decoder.session import DecoderSession

SHAPE = {"query_heads": 8, "kv_heads": 8, "key_dim": 32, "value_dim": 32, "storage": "float32"}
SPECS = {
    "endless": grouped({"layers": (0, 1), **SHAPE}, max_length=640),
    "ring": grouped({"layers": (0, 1), **SHAPE, "window": 200, "sinks": 4, "reserve": 9}),
}
BUDGET = 4 * UNIT
"""28 pages of such a layer."""


def twin(arena: Arena, kind: str = "endless", seed: int = 0) -> Twin:
    return Twin(SPECS[kind], arena, TIER, seed)


def stacked(one: Twin, tokens: int) -> list[NDArray[np.float32]]:
    """q, k and v of all layers."""
    return [np.stack(arrays) for arrays in zip(*(one.draw(layer, tokens) for layer in (0, 1)), strict=True)]


def arena_of(where: str, tmp_path: Path, overcommit: float) -> Arena:
    """In a file one slab more, for the streams' records."""
    if where == "memory":
        return Arena(BUDGET, overcommit=overcommit)
    return Arena(BUDGET + UNIT, path=tmp_path / "arena", overcommit=overcommit)


def opened(arena: Arena) -> list[Twin]:
    """As many streams as may open."""
    streams: list[Twin] = []
    while True:
        try:
            streams.append(twin(arena, seed=len(streams)))
        except BudgetExceeded:
            return streams


def test_as_many_more_streams_open_as_the_factor_says() -> None:
    counts = []
    for factor in (1.0, 2.0, 3.5):
        arena = Arena(BUDGET, overcommit=factor)
        streams = opened(arena)
        counts.append(len(streams))
        stats = arena.stats()
        assert (stats.budget, stats.resident, stats.overcommit) == (BUDGET, 0, factor)
        assert BUDGET * factor - 2 * UNIT < stats.reserved <= BUDGET * factor
    assert counts == [2, 5, 9]


@pytest.mark.parametrize("factor", [0.99, 0, -1, 1001, float("nan"), float("inf"), "2", None, True], ids=repr)
def test_impossible_factors(factor: Any) -> None:
    with pytest.raises(InvalidSpec) as caught:
        Arena(BUDGET, overcommit=factor)
    assert caught.value.field == "overcommit"


@pytest.mark.parametrize("where", ["memory", "file"])
def test_growth_is_refused_whole_and_goes_on_when_there_is_room(where: str, tmp_path: Path) -> None:
    arena = arena_of(where, tmp_path, 3.0)
    first, second, third = (twin(arena, seed=seed) for seed in range(3))
    first.grow(640)
    second.grow(640)
    third.grow(120)
    before = arena.stats(), numbers_of(third.session)
    q, k, v = stacked(third, 500)
    for call in (lambda: third.session.append_all(k, v), lambda: third.session.step_all(q, k, v)):
        with pytest.raises(BudgetExceeded, match="overcommitted") as caught:
            call()
        assert caught.value.requested > caught.value.available
        assert (arena.stats(), numbers_of(third.session)) == before
    third.check()
    third.grow(8)  # to the end of the pages that it has
    first.check()
    second.check()
    first.session.close()
    third.grow(500)
    third.check()
    second.check()
    assert arena.stats().resident <= arena.stats().budget


def test_a_refused_step_of_a_batch_is_its_own() -> None:
    arena = Arena(BUDGET, overcommit=3.0)
    twins = [twin(arena, seed=seed).grow(tokens) for seed, tokens in enumerate((640, 640, 384, 90))]
    steps = [Step(each.session, 0, *each.draw(0, 1)) for each in twins[2:]]
    refused, done = run_steps(steps)
    assert isinstance(refused, BudgetExceeded)
    assert isinstance(done, StepResult)
    assert [each.session.layer_length(0) for each in twins] == [640, 640, 384, 91]
    twins[2].check()


@pytest.mark.parametrize("where", ["memory", "file"])
def test_a_copy_of_a_shared_page_is_refused_where_there_is_no_room(where: str, tmp_path: Path) -> None:
    """Parent and fork both have promises for the page; the first to write needs a place that is not there."""
    arena = arena_of(where, tmp_path, 4.0)
    parent = twin(arena).grow(200)
    fork = parent.fork(seed=9)
    filler = [twin(arena, seed=seed) for seed in (1, 2)]
    filler[0].grow(640)
    filler[1].grow(640)
    while True:  # the last slab, too
        try:
            filler.append(twin(arena, seed=3).grow(1))
        except BudgetExceeded:
            break
    before = arena.stats()
    for each in (parent, fork):
        q, k, v = each.draw(0, 3)
        with pytest.raises(BudgetExceeded):
            each.session.step(0, q, k, v)
        assert arena.stats() == before
        each.check()
    filler[0].session.close()
    fork.step(0, 3)
    parent.step(0, 3)
    fork.check()
    parent.check()
    assert arena.stats().shared < before.shared


@pytest.mark.parametrize(("where", "seed"), [("memory", 0), ("memory", 1), ("file", 2)])
def test_any_life_within_a_budget_that_is_promised_three_times(where: str, seed: int, tmp_path: Path) -> None:
    """Every call is carried out as without overcommit, or refused and has changed nothing."""
    luck, arena, live = random.Random(seed), arena_of(where, tmp_path, 3.0), list[Twin]()
    refused = 0
    for number in range(70):
        move, one = luck.random(), luck.choice(live) if live else None
        try:
            if one is None or move < 0.2:
                live.append(twin(arena, luck.choice(list(SPECS)), seed=number))
            elif move < 0.3:
                live.append(one.fork(seed=number, max_new_tokens=luck.choice([None, 0, 40])))
            elif move < 0.38:
                live.remove(one)
                one.session.close()
            elif move < 0.45:
                low, high = one.session.min_length, one.session.length
                one.do("truncate", luck.randint(low, high))
            else:
                most = 640 if one.session.spec.max_length else 10**9
                one.grow(min(luck.choice([1, 30, 200]), most - one.session.length))
        except BudgetExceeded:
            refused += 1
            if one is not None and not one.session.closed:
                one.check_visible()
        except QuotaExceeded:
            pass
        stats = arena.stats()
        assert stats.resident <= stats.budget
        assert stats.reserved <= 3 * stats.budget + UNIT * len(arena._pools)
        if number % 20 == 0:
            for each in live:
                each.check_visible()
    assert refused > 1
    for each in live:
        each.session.close()
    assert arena.stats() == ArenaStats(arena.stats().budget, 0, 0, 0, 3.0)
    assert not arena._pools


def test_memory_goes_back_when_pages_do_though_they_stay_promised() -> None:
    arena = Arena(BUDGET, overcommit=3.0)
    one = twin(arena).grow(100)
    slabs = [len(pool.slabs) for pool in arena._pools.values()]
    assert slabs == [1]
    others = [twin(arena, seed=seed) for seed in (1, 2)]
    others[0].grow(640)
    others[1].grow(640)
    with pytest.raises(BudgetExceeded):
        one.session.append_all(*stacked(one, 540)[1:])
    for each in others:
        each.session.close()
    assert [len(pool.slabs) for pool in arena._pools.values()] == slabs


@pytest.mark.parametrize("act", ["grow", "refused", "copy", "close"])
def test_killed_while_slabs_come_and_go(act: str, tmp_path: Path) -> None:
    """Claims are made when pages are taken: between any two stores the file has what was acknowledged."""

    def begun(path: Path) -> Callable[[], object]:
        arena = Arena(BUDGET + UNIT, path=path, overcommit=3.0)
        sessions = [DecoderSession(SPECS["endless"], arena, tag=tag) for tag in (b"one", b"two")]
        for session, one in zip(sessions, alone, strict=True):
            one_k, one_v = stacked(one, 384)[1:]
            session.append_all(one_k, one_v)
            one.session.append_all(one_k, one_v)
        if act == "copy":
            sessions[0].fork(tag=b"fork")
        if act == "refused":
            page = sessions[0]._rings[0].page_bytes(1)
            fillers.append(arena.reserve({page: 14}))
            for _ in range(14):
                fillers[-1].take(page)
        k, v = more
        return {
            "close": sessions[0].close,
            "refused": lambda: refused(sessions[0]),
        }.get(act, lambda: sessions[0].append_all(k, v))

    def refused(session: DecoderSession) -> None:
        with pytest.raises(BudgetExceeded):
            session.append_all(*(np.repeat(array, 50, axis=1) for array in more))

    fillers: list[Reservation] = []
    more = stacked(twin(Arena(64 << 20), seed=5), 5)[1:]
    alone = [twin(Arena(64 << 20), seed=seed) for seed in (1, 2)]
    found = moments_of(begun(tmp_path / "counted"))
    alone = [twin(Arena(64 << 20), seed=seed) for seed in (1, 2)]
    copies = copies_at(some_of(found, 4, 8), tmp_path / "arena", tmp_path, begun(tmp_path / "arena"))
    before = numbers_of(alone[0].session)
    grown = alone[0].session.fork()
    grown.append_all(*more)
    for copy in copies:
        arena, there = survivors_of(copy, BUDGET + UNIT, overcommit=3.0)
        assert same(there["two"], alone[1].session)
        if "one" in there:
            done = there["one"].length == 389
            assert same(there["one"], grown if done else alone[0].session)
        else:
            assert act == "close"
        for session in there.values():
            session.close()
        assert arena.stats() == ArenaStats(BUDGET + UNIT, 0, 0, 0, 3.0)
        arena.close()
    assert numbers_of(alone[0].session) == before


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_a_start_on_a_file_that_was_overcommitted(factor: float, tmp_path: Path) -> None:
    """With the same factor all streams go on; with a smaller one those that were not promised too much."""
    arena = arena_of("file", tmp_path, 3.0)
    alone = [twin(Arena(64 << 20), seed=number) for number in range(6)]
    for number, one in enumerate(alone):
        k, v = stacked(one, 100)[1:]
        session = DecoderSession(SPECS["endless"], arena, tag=b"%d" % number)
        session.append_all(k, v)
        one.session.append_all(k, v)
    session.fork(tag=b"5")
    before = arena.stats()
    arena.close()
    arena = arena_of("file", tmp_path, factor)
    found = attach(arena)
    good = [each for each in found if each.session is not None]
    if factor == 3.0:
        assert len(good) == 7
        assert arena.stats() == before
    else:
        assert 0 < len(good) < 7
        assert all("lacks the room" in each.reason for each in found if each.session is None)
        assert arena.stats().reserved <= arena.stats().budget
    for each in good:
        assert each.session is not None
        assert same(each.session, alone[int(each.tag)].session)
    for each in found:
        each.drop()
    assert arena.stats() == ArenaStats(arena.stats().budget, 0, 0, 0, factor)
