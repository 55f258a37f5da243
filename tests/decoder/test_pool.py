"""The thread pool: the same bits from any number of threads, and manners of a guest in the process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from oracle import ENGINES, Case, Stream

from rondel.decoder import pool
from rondel.decoder.errors import InvalidSpec


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    before = pool.threads()
    yield
    pool.set_threads(before)


def run(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(("tier", "storage"), ENGINES)
def test_bits_do_not_depend_on_threads(tier: str, storage: str) -> None:
    """Streams long enough that their ranges are split between threads, unbounded and wrapped; many rows."""
    shapes = [
        Case(tier=tier, storage=storage, heads=(4, 1), dims=(64, 64), window=None, max_length=6000),
        Case(tier=tier, storage=storage, heads=(3, 3), dims=(32, 17), window=5000, sinks=20, reserve=64),
        Case(tier=tier, storage=storage, heads=(6, 2), dims=(16, 16), window=None, max_length=6000),
    ]
    for case, length in zip(shapes, (5900, 11000, 2500), strict=True):
        stream = Stream(case).grow(length)
        for rows in (1, 2, case.rows(40, length)):
            q = stream.queries(rows)
            answers = set()
            for threads in (1, 2, 3, 8):
                pool.set_threads(threads)
                out, lse = stream.session.attend(0, q, return_lse=True)
                answers.add((out.tobytes(), lse.tobytes()))
            assert len(answers) == 1, f"{case} rows {rows}"


@pytest.mark.parametrize("threads", [0, -1, 257, 1.0, True, "2"])
def test_impossible_numbers_of_threads(threads: int) -> None:
    before = pool.threads()
    with pytest.raises(InvalidSpec, match="threads must be an integer from 1 to 256"):
        pool.set_threads(threads)
    assert pool.threads() == before


def test_one_core_one_thread() -> None:
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
    assert run(code + "import rondel.decoder.pool as p; print(p.threads())") == "1"


def test_threads_can_be_forced() -> None:
    code = "import rondel.decoder.pool as p; print(p.threads())"
    assert run(code, RONDEL_THREADS="5") == "5"


_WORKING = """
import numpy as np, os, sys, time
from rondel.decoder import pool
from rondel.decoder.cache.arena import Arena
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec
spec = StreamSpec.uniform(layers=1, query_heads=4, kv_heads=4, head_dim=64, max_length=4096)
session = DecoderSession(spec, Arena(budget=64 << 20))
x = np.ones((4096, 4, 64), np.float32)
session.append(0, x, x)
pool.set_threads(3)
want = session.attend(0, x[:1])
"""


def test_a_forked_process_is_told_and_one_thread_may_fork() -> None:
    code = (
        _WORKING
        + """
from rondel.decoder.errors import ForkedProcess
if os.fork() == 0:
    for use in (lambda: session.attend(0, x[:1]), lambda: pool.set_threads(1)):
        try:
            use()
        except ForkedProcess:
            continue
        os._exit(1)
    os._exit(0)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
assert (session.attend(0, x[:1]) == want).all()
pool.set_threads(1)
if os.fork() == 0:
    os._exit(0 if (session.attend(0, x[:1]) == want).all() else 1)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
print("both")
"""
    )
    assert run(code) == "both"


@pytest.mark.alone
def test_idle_threads_use_no_time() -> None:
    code = (
        _WORKING
        + """
time.sleep(0.2)
before = time.process_time()
time.sleep(2.0)
print(time.process_time() - before)
"""
    )
    assert float(run(code)) < 0.02


def test_threads_end_with_the_process() -> None:
    start = time.monotonic()
    run(_WORKING)
    assert time.monotonic() - start < 30


def test_many_callers_at_once_get_their_own_answers() -> None:
    pool.set_threads(4)
    case = Case(tier="base", storage="int8", heads=(4, 4), dims=(64, 64), window=None, max_length=1500)
    streams = [Stream(case, seed=seed).grow(1400) for seed in range(6)]
    queries = [stream.queries(3) for stream in streams]
    want = [stream.session.attend(0, q) for stream, q in zip(streams, queries, strict=True)]

    def ask(i: int) -> bool:
        return all(np.array_equal(streams[i].session.attend(0, queries[i]), want[i]) for _ in range(20))

    with ThreadPoolExecutor(6) as callers:
        assert all(callers.map(ask, range(6)))


def test_the_size_may_change_while_calls_run() -> None:
    """A call that made room for two threads must not be joined by sixteen."""
    pool.set_threads(2)
    case = Case(tier="base", storage="int8", heads=(64, 16), dims=(64, 64), window=None, max_length=600)
    stream = Stream(case).grow(500)
    q = stream.queries(10)
    want = stream.session.attend(0, q)
    done = threading.Event()

    def flip() -> None:
        while not done.is_set():
            pool.set_threads(16)
            pool.set_threads(2)

    flipping = threading.Thread(target=flip)
    flipping.start()
    try:
        end = time.monotonic() + 2.0
        while time.monotonic() < end:
            assert np.array_equal(stream.session.attend(0, q), want)
    finally:
        done.set()
        flipping.join()
