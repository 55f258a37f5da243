"""When load is sent, and what it consists of."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rondel.client.load.schedule import Closed, Constant, Poisson
from rondel.client.load.workload import Kind, Operation, Workload
from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import InvalidSpec
from rondel.decoder.session import DecoderSession


def test_a_constant_rate_does_not_drift() -> None:
    times = list(itertools.islice(Constant(rate=3).offsets(), 300_001))
    assert times[0] == 0
    assert times[-1] == 100_000


@pytest.mark.parametrize("schedule", [Constant(rate=7), Poisson(rate=7, seed=5)])
def test_shares_have_the_rate_of_the_whole(schedule: Constant | Poisson) -> None:
    shares = [schedule.share(index, 3) for index in range(3)]
    times = sorted(
        time for share in shares for time in itertools.takewhile(lambda time: time < 1000, share.offsets())
    )
    assert len(times) == pytest.approx(7000, abs=4 * math.sqrt(7000))
    assert len(set(times)) == len(times)


def test_shares_of_a_constant_rate_are_even_between_them() -> None:
    shares = [Constant(rate=100).share(index, 3) for index in range(3)]
    times = sorted(time for share in shares for time in itertools.islice(share.offsets(), 50))
    np.testing.assert_allclose(np.diff(times), 0.01)


def test_gaps_of_poisson_arrivals_are_exponential() -> None:
    times = np.array(list(itertools.islice(Poisson(rate=50, seed=1).offsets(), 20_000)))
    gaps = np.sort(np.diff(times, prepend=0.0))
    expected = 1 - np.exp(-50 * gaps)
    # Kolmogorov and Smirnov: passed by one sample in a thousand.
    assert np.abs(expected - np.arange(gaps.size) / gaps.size).max() < 1.95 / math.sqrt(gaps.size)
    assert abs(np.corrcoef(np.diff(times)[:-1], np.diff(times)[1:])[0, 1]) < 0.03


def test_poisson_arrivals_are_what_the_seed_says() -> None:
    def first(schedule: Poisson) -> list[float]:
        return list(itertools.islice(schedule.offsets(), 3000))

    assert first(Poisson(rate=5, seed=3)) == first(Poisson(rate=5, seed=3))
    assert first(Poisson(rate=5, seed=3)) != first(Poisson(rate=5, seed=4))
    assert first(Poisson(rate=5, seed=3).share(0, 2)) != first(Poisson(rate=5, seed=3).share(1, 2))


@pytest.mark.parametrize("rate", [0, -1, math.nan, math.inf, 2e6])
def test_impossible_rates_are_refused(rate: float) -> None:
    for kind in (Constant, Poisson):
        with pytest.raises(InvalidSpec, match="rate"):
            kind(rate=rate)


def test_a_closed_loop_is_shared_out_whole() -> None:
    assert [Closed(concurrency=8).share(index, 3).concurrency for index in range(3)] == [3, 3, 2]
    with pytest.raises(InvalidSpec):
        Closed(concurrency=0)


WORKLOAD = Workload(
    layers=2,
    query_heads=2,
    kv_heads=1,
    head_dim=8,
    window=20,
    tokens=3,
    prompt=5,
    attends=0.2,
    truncates=0.3,
    forks=0.1,
    operations=200,
    seed=9,
)


def life(workload: Workload, stream: int, number: int = 0) -> list[Operation]:
    return list(workload.life(stream, number))


def test_a_life_is_what_the_seed_says() -> None:
    assert life(WORKLOAD, 4) == life(WORKLOAD, 4)
    assert life(WORKLOAD, 4) != life(WORKLOAD, 5)
    assert life(WORKLOAD, 4) != life(WORKLOAD, 4, 1)


def test_a_life_has_the_shares_that_were_asked_for() -> None:
    kinds = Counter(operation.kind for stream in range(50) for operation in life(WORKLOAD, stream))
    assert kinds[Kind.OPEN] == kinds[Kind.CLOSE] == kinds[Kind.APPEND] == 50
    assert kinds[Kind.ATTEND] / 10_000 == pytest.approx(0.2, abs=0.02)
    assert kinds[Kind.FORK] / 10_000 == pytest.approx(0.1, abs=0.02)
    assert 0.1 < kinds[Kind.TRUNCATE] / 10_000 < 0.3  # not twice in a row: the reserve is one step


@settings(max_examples=10)
@given(
    tokens=st.integers(1, 6), prompt=st.integers(0, 40), window=st.integers(1, 150), seed=st.integers(0, 999)
)
def test_every_life_can_be_lived(tokens: int, prompt: int, window: int, seed: int) -> None:
    """Whatever is drawn: rings that wrap, steps taken back just then."""
    workload = Workload(
        layers=2,
        query_heads=2,
        kv_heads=1,
        head_dim=4,
        window=window,
        tokens=tokens,
        prompt=prompt,
        attends=0.2,
        truncates=0.4,
        operations=120,
        seed=seed,
    )
    numbers = workload.numbers()
    with DecoderSession(workload.spec(), Arena(budget=8 << 20)) as session:
        for operation in workload.life(0, 0):
            for move in workload.calls(operation, numbers):
                match operation.kind:
                    case Kind.STEP:
                        assert session.step(move.layer, move.q, move.k, move.v).shape == move.q.shape
                    case Kind.APPEND:
                        session.append_all(move.k, move.v)
                    case Kind.ATTEND:
                        session.attend(move.layer, move.q)
                    case Kind.TRUNCATE:
                        session.truncate(move.length)


def test_arrays_are_alike_for_the_same_number_and_standard_normal() -> None:
    numbers, again = WORKLOAD.numbers(), WORKLOAD.numbers()
    first = numbers.cut(7, (3, 8))
    np.testing.assert_array_equal(first, again.cut(7, (3, 8)))
    assert not np.array_equal(first, numbers.cut(8, (3, 8)))
    many = np.concatenate([numbers.cut(number, (24,)) for number in range(4000)])
    assert many.mean() == pytest.approx(0, abs=0.02)
    assert many.std() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(
    "fields",
    [
        {"attends": 1.5},
        {"attends": -0.1},
        {"attends": 0.6, "forks": 0.6},
        {"tokens": 0},
        {"prompt": -1},
        {"operations": 0},
        {"query_heads": 3, "kv_heads": 2},
        {"window": 0},
    ],
)
def test_impossible_workloads_are_refused(fields: dict[str, float]) -> None:
    with pytest.raises(InvalidSpec):
        Workload(**fields)  # type: ignore[arg-type]
