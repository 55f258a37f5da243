"""A family of forks in several threads: each answers as if it were alone, and nothing is left."""

from __future__ import annotations

import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from families import SPECS, Twin, assert_empty, check_gauges
from oracle import TIERS

from rondel.decoder.cache.arena import Arena
from rondel.decoder.session import DecoderSession


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
def test_four_threads_fork_append_and_close(name: str) -> None:
    arena, barrier = Arena(192 << 20), threading.Barrier(4)
    root = Twin(SPECS[name], arena, TIERS[-1]).grow(300)
    twins = [root.fork(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(life, twin, barrier, seed) for seed, twin in enumerate(twins)]:
            done.result()
    root.check()
    check_gauges(arena, [root.session])
    root.session.close()
    assert_empty(arena)


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
