"""Two hundred random streams on every tier: alone, batched, in chunks, on more threads: always the same bits.

`make test` runs them all; one tier by name: `pytest tests/decoder/test_kernels_random_bits.py -k v3`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from comparators import assert_same_bits
from oracle import STORAGES, TIERS, Case, Floats, Stream

from rondel.decoder import pool
from rondel.decoder.batch import Step, StepResult, run_steps
from rondel.decoder.session import DecoderSession

CASES = 200
PARTS = 8
DIMS = (1, 7, 8, 16, 17, 40, 64, 65, 80, 96, 128, 160)


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = pool.threads()
    yield
    pool.set_threads(before)


def drawn(tier: str, random: np.random.Generator) -> tuple[Case, int, int]:
    """A stream, how many tokens it starts with, and how many more are stepped through."""
    storage = STORAGES[int(random.integers(len(STORAGES)))]
    kv_heads, group = int(random.choice((1, 2, 3))), int(random.choice((1, 2, 3, 4, 7, 8)))
    windowed = bool(random.integers(2))
    case = Case(
        tier=tier,
        storage=storage,
        heads=(kv_heads * group, kv_heads),
        dims=(int(random.choice(DIMS)), int(random.choice(DIMS))),
        window=int(random.integers(1, 300)) if windowed else None,
        sinks=int(random.integers(0, 20)) if windowed else 0,
        reserve=64 if windowed else 0,
        max_length=None if windowed else 3000,
        centring=storage == "int8" and bool(random.integers(2)),
    )
    # Some are long enough for several ranges of pages, which two threads and more take apart.
    start = int(random.choice((0, 5, 120, 700, 2500)))
    return case, start, int(random.integers(1, 40))


def begun(case: Case, start: int, seed: int) -> Stream:
    stream = Stream(case, seed=seed)
    if start:
        stream.append(*stream.draw(start))
    return stream


def stepped(
    session: DecoderSession, q: Floats, k: Floats, v: Floats, sizes: list[int]
) -> tuple[Floats, Floats]:
    """All tokens in pieces of these sizes: out and lse of every row."""
    results, at = [], 0
    for size in sizes:
        part = slice(at, at + size)
        results.append(session.step(0, q[part], k[part], v[part], return_lse=True))
        at += size
    outs, lses = zip(*results, strict=True)
    return np.concatenate(outs), np.concatenate(lses)


def cuts(tokens: int, random: np.random.Generator) -> list[int]:
    """Random sizes that add up to ``tokens``."""
    ends = sorted({*random.integers(1, tokens + 1, 3).tolist(), tokens})
    return np.diff([0, *ends]).tolist()


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("tier", TIERS)
def test_random_streams_give_the_same_bits_however_they_are_asked(tier: str, part: int) -> None:
    random = np.random.default_rng([part, TIERS.index(tier)])
    mate: Stream | None = None
    for number in range(CASES // PARTS):
        case, start, tokens = drawn(tier, random)
        seed = 1000 * part + number
        pool.set_threads(1)
        source = begun(case, start, seed)
        q, (k, v) = source.queries(tokens), source.draw(tokens)
        want = stepped(source.session, q, k, v, [1] * tokens)
        got = {}
        got["chunks"] = stepped(begun(case, start, seed).session, q, k, v, cuts(tokens, random))
        for threads in (2, 3):
            pool.set_threads(threads)
            got[f"{threads} threads"] = stepped(begun(case, start, seed).session, q, k, v, [tokens])
        session = source.session  # all is stored: the same rows once more, together
        got["attend"] = session.attend(0, q, position=start, return_lse=True)
        if mate is not None:  # in one native call with the stream of the case before
            other = Step(mate.session, 0, mate.queries(1), *mate.draw(1))
            here = begun(case, start, seed)
            results = run_steps([other, Step(here.session, 0, q, k, v), other])
            result = results[1]
            assert isinstance(result, StepResult), result
            got["batch"] = result.out, result.lse
        mate = begun(case, start, seed)
        for way, pair in got.items():
            for a, b, name in zip(pair, want, ("out", "lse"), strict=True):
                assert_same_bits(a, b, f"{case} from {start}, {tokens} tokens, {way}: {name}")
