"""Sessions in several threads at once, in one arena: each answers as if it were alone."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from comparators import assert_same_bits
from mirror import Mirror, small
from oracle import STORAGES, TIERS, Floats

from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import RondelError, SessionBusy


def life(seed: int, arena: Arena, barrier: threading.Barrier | None) -> list[Floats]:
    """Some 400 tokens in mixed chunks, with rollbacks; every answer. A pure function of the seed."""
    tier, storage = TIERS[seed % len(TIERS)], STORAGES[seed // 2 % 2]
    spec = small(window=40 + 30 * (seed % 3), sinks=seed % 5, storage=storage)
    answers: list[Floats] = []
    for round_ in range(2):
        if barrier:
            barrier.wait()
        mirror = Mirror(spec, tier, seed=10 * seed + round_, arena=arena)
        with mirror.session:
            for size in (4, 200, 3, 60, 10, 9, 100, 7):
                tokens = [mirror.draw(layer, size) for layer in range(2)]
                for part in mirror.session.chunks(size):
                    for layer, (q, k, v) in enumerate(tokens):
                        answers += mirror.step(layer, q[part], k[part], v[part])
                mirror.truncate(max(mirror.length - 3, mirror.min_length))
                answers.append(mirror.session.attend(1, mirror.queries(1, 1)))
            mirror.check_stored()
            mirror.check_attend(0, 2, mirror.length - 2)
    return answers


def test_sessions_in_threads_equal_sessions_alone() -> None:
    seeds, arena = range(8), Arena(budget=64 << 20)
    alone = [life(seed, Arena(budget=64 << 20), None) for seed in seeds]
    barrier = threading.Barrier(len(seeds))
    for _ in range(2):
        with ThreadPoolExecutor(len(seeds)) as pool:
            together = list(pool.map(lambda seed: life(seed, arena, barrier), seeds))
        for seed, (got, want) in enumerate(zip(together, alone, strict=True)):
            for i, (a, b) in enumerate(zip(got, want, strict=True)):
                assert_same_bits(a, b, f"stream {seed}, answer {i}")
    assert (arena.stats().reserved, arena.stats().resident) == (0, 0)


@pytest.mark.parametrize("storage", STORAGES)
def test_one_session_under_many_callers_takes_each_call_whole_or_refuses_it(storage: str) -> None:
    """Who comes second hears SessionBusy; what was accepted, and nothing else, is in the stream."""
    mirror = Mirror(small(1, storage=storage), arena=Arena(budget=8 << 20)).grow(300)
    barrier = threading.Barrier(4)
    chunks = [[mirror.draw(0, 1 + turn % 9) for turn in range(60)] for _ in range(4)]

    def work(caller: int) -> tuple[list[tuple[int, int]], int]:
        taken, busy = [], 0
        barrier.wait()
        for turn, (q, k, v) in enumerate(chunks[caller]):
            try:
                end = mirror.session.append(0, k, v)
                taken.append((end - len(k), turn))
            except SessionBusy:
                busy += 1
            try:
                mirror.session.attend(0, q[:1])
            except SessionBusy:
                busy += 1
        return taken, busy

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(work, range(4)))
    accepted = sorted((at, caller, turn) for caller, (taken, _) in enumerate(results) for at, turn in taken)
    for at, caller, turn in accepted:
        assert at == mirror.length
        mirror.note(0, *chunks[caller][turn][1:])
    assert mirror.session.length == mirror.length
    mirror.check_stored()
    mirror.check_attend(0, 1, mirror.length - 1)


def test_a_second_caller_is_refused_while_the_first_is_inside() -> None:
    """The first one is inside a long attend, really, without the GIL; nobody waits and nothing changes."""
    sizes = {"query_heads": 64, "kv_heads": 1, "head_dim": 128, "value_dim": 128}
    mirror = Mirror(small(1, window=None, sinks=0, reserve=0, max_length=6000, **sizes), TIERS[0]).grow(6000)
    q, probe = mirror.queries(0, 60), mirror.queries(0, 0)
    want = mirror.session.stats()
    answers: list[Floats] = []

    def first() -> None:
        while not answers:
            with suppress(SessionBusy):  # by the probes below
                answers.append(mirror.session.attend(0, q))

    caller = threading.Thread(target=first)
    caller.start()
    while caller.is_alive():
        try:
            mirror.session.attend(0, probe)
        except SessionBusy:
            break
    refusals: dict[str, type[BaseException] | None] = {}
    for name, attempt in {**mirror.calls(), "close": mirror.session.close}.items():
        try:
            attempt()
            refusals[name] = None
        except RondelError as error:
            refusals[name] = type(error)
    still_inside = caller.is_alive() and not answers
    caller.join()
    assert still_inside, "the attend was over too soon for this test to say anything"
    assert set(refusals.values()) == {SessionBusy}, refusals
    assert mirror.session.stats() == want
    assert_same_bits(mirror.session.attend(0, q), answers[0], "the first caller's answer")
