"""A family of forks in several threads: each answers as if it were alone, and nothing is left."""

from __future__ import annotations

import gc
import io
import random
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from families import SPECS, Twin, assert_empty, check_gauges
from oracle import TIERS

from rondel.decoder.attach import attach
from rondel.decoder.cache.arena import Arena
from rondel.decoder.session import DecoderSession

BUDGET = 192 << 20


@pytest.fixture(params=["memory", "file"])
def arena(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Arena]:
    """At the end it must be empty, and so must its file be for whoever opens it next."""
    path = tmp_path / "arena" if request.param == "file" else None
    arena = Arena(BUDGET, path=path)
    yield arena
    assert_empty(arena)
    if path is not None:
        arena.close()
        arena = Arena(BUDGET, path=path)
        assert attach(arena) == []
        assert_empty(arena)


def together(*work: Callable[[], None]) -> None:
    """In a thread each; the first error that is not about another's."""
    with ThreadPoolExecutor(len(work)) as pool:
        futures = [pool.submit(each) for each in work]
    errors = [error for each in futures if (error := each.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise error


@pytest.fixture
def impatient() -> object:
    """Threads change places often: between any two steps of what must not be parted."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield before
    sys.setswitchinterval(before)


def life(twin: Twin, barrier: threading.Barrier, seed: int) -> None:
    """Fork, write, check, close, all at once with the others of the family."""
    luck = random.Random(seed)
    barrier.wait()
    for turn in range(8):
        child = twin.fork(100 * seed + turn, max_new_tokens=luck.choice([None, 60]))
        for one in luck.sample([twin, child], 2):
            one.grow(luck.choice([1, 5, 30]))
        child.check()
        if turn % 2:
            twin.check()
            child.session.close()
            continue
        twin.session.close()
        twin = child.fork(1000 * seed + turn)
        child.session.close()
    twin.check()
    twin.session.close()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("name", ["ring centred", "several"])
def test_four_threads_fork_append_and_close(name: str, arena: Arena) -> None:
    barrier = threading.Barrier(4)
    root = Twin(SPECS[name], arena, TIERS[-1]).grow(300)
    twins = [root.fork(seed) for seed in range(4)]
    together(*(lambda seed=seed: life(twins[seed], barrier, seed) for seed in range(4)))
    root.check()
    check_gauges(arena, [root.session])
    root.session.close()


@pytest.mark.usefixtures("impatient")
def test_all_holders_of_a_page_write_to_it_at_once() -> None:
    """Whoever is first copies, the last has the page itself: as many pages as holders, each with its own."""
    arena, barrier = Arena(64 << 20), threading.Barrier(4)

    def write(twin: Twin) -> None:
        barrier.wait()
        twin.step(0, 1)
        twin.step(1, 2)

    for turn in range(40):
        root = Twin(SPECS["ring centred"], arena, TIERS[-1], turn).grow(50 + 7 * turn)
        twins = [root, *(root.fork(seed, max_new_tokens=3) for seed in range(3))]
        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(write, twin) for twin in twins]:
                done.result()
        sessions: list[DecoderSession] = [twin.session for twin in twins]
        check_gauges(arena, sessions)
        for twin in twins:
            twin.check()
        assert arena.stats().shared == arena.stats().resident - 4 * 2 * sum(
            ring.page_bytes(1) for ring in root.session._rings
        )
        for session in sessions:
            session.close()
        assert_empty(arena)


class Crowd:
    """Streams of one family that four threads take from one another, use and put back."""

    def __init__(self, arena: Arena, *, drops: bool) -> None:
        self.arena, self.drops = arena, drops
        self.free = [Twin(SPECS["ring centred"], arena, TIERS[-1]).grow(300)]
        self.lock = threading.Lock()
        self.barrier = threading.Barrier(4, action=self.check)
        self.done = 0

    def check(self) -> None:
        """Between the rounds nobody is inside a call."""
        gc.collect()
        check_gauges(self.arena, [twin.session for twin in self.free])

    def live(self, seed: int) -> None:
        luck = random.Random(seed)
        for round_ in range(6):
            self.barrier.wait()
            for turn in range(6):
                self.turn(luck, 1000 * seed + 10 * round_ + turn)
        self.barrier.wait()

    def turn(self, luck: random.Random, seed: int) -> None:
        with self.lock:
            twin = self.free.pop(luck.randrange(len(self.free))) if self.free else None
        if twin is not None:
            kept = self.use(twin, luck, seed)
            with self.lock:
                self.free += kept
                self.done += 1

    def use(self, twin: Twin, luck: random.Random, seed: int) -> list[Twin]:
        """What is left to be used by others."""
        move = luck.random()
        if len(self.free) < 4 or (move < 0.3 and len(self.free) < 12):
            return [twin, twin.fork(seed, max_new_tokens=luck.choice([None, 200]))]
        if move < 0.7:
            return [twin.grow(luck.choice([1, 5, 30]))]
        if move < 0.8:
            twin.check()
            return [twin]
        if move < 0.9 or not self.drops:
            twin.session.close()
        return []


@pytest.mark.usefixtures("impatient")
def test_streams_that_go_from_thread_to_thread(arena: Arena) -> None:
    """Forked, written to, closed and dropped: what is promised, held and shared is counted right."""
    crowd = Crowd(arena, drops=arena.file is None)  # a stream in a file is still there when it is dropped
    together(*(lambda seed=seed: crowd.live(seed) for seed in range(4)))
    assert crowd.done > 100
    for twin in crowd.free:
        twin.check()
        twin.session.close()


@pytest.mark.usefixtures("impatient")
def test_a_stream_is_written_out_while_those_forked_from_it_and_its_origin_grow(arena: Arena) -> None:
    """Every snapshot is that of the stream alone, whoever copies its pages, leaves them to it or takes them
    over meanwhile."""
    origin = Twin(SPECS["several"], arena, TIERS[-1]).grow(300)
    middle = origin.fork(1)
    forks = [middle.fork(2), middle.fork(3, max_new_tokens=100)]
    want = io.BytesIO()
    middle.session.snapshot(want)
    growing = [origin, *forks]
    left = [len(growing)]

    def grow(twin: Twin) -> None:
        try:
            for _ in range(20):
                twin.grow(5)
            twin.check()
            twin.session.close()
        finally:
            left[0] -= 1

    def write() -> None:
        times = 0
        while left[0] or times < 3:
            got = io.BytesIO()
            middle.session.snapshot(got)
            assert got.getvalue() == want.getvalue()
            times += 1

    together(write, *(lambda twin=twin: grow(twin) for twin in growing))
    want.seek(0)
    back = DecoderSession.restore(want, arena)
    check_gauges(arena, [middle.session, back])
    middle.check()
    back.close()
    middle.session.close()
