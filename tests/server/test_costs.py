"""The model of what operations cost, beside machines whose costs are known."""

import itertools
import random
from collections.abc import Iterator

import pytest

from rondel.server.costs import CostModel
from rondel.server.operation import Load

ROUND = (1e-4, 1e-5, 2e-10, 2e-11)
MACHINES = [(1, 1, 1, 1), (0.3, 2, 1, 0.2), (1, 0.1, 12, 5), (100, 100, 100, 100), (0, 0, 3, 0.5)]


def took(machine: tuple[float, ...], load: Load) -> float:
    amounts = (1, load.items, load.bytes, load.products)
    return sum(factor * each * amount for factor, each, amount in zip(machine, ROUND, amounts, strict=True))


def loads(rng: random.Random) -> Iterator[Load]:
    """Steps of few and many items, of short and long streams, with few and many rows."""
    while True:
        items, keys, rows = rng.choice([1, 1, 4, 64]), 2 ** rng.randrange(4, 15), rng.choice([1, 1, 8])
        yield Load("step", items, items * keys * 768, items * keys * rows * 1152)


@pytest.mark.parametrize("machine", MACHINES)
def test_a_machine_is_learned(machine: tuple[float, ...]) -> None:
    rng, model = random.Random(1), CostModel()
    for load in itertools.islice(loads(rng), 600):
        model.observe([load], took(machine, load) * rng.uniform(0.9, 1.1))
    for load in itertools.islice(loads(rng), 50):
        assert model.estimate(load) == pytest.approx(took(machine, load), rel=0.4)


def test_one_that_becomes_slower_is_learned_anew() -> None:
    rng, model = random.Random(2), CostModel()
    for factor in (1.0, 5.0, 0.5):
        machine = tuple(factor * each for each in MACHINES[1])
        for load in itertools.islice(loads(rng), 400):
            model.observe([load], took(machine, load))
        for load in itertools.islice(loads(rng), 20):
            assert model.estimate(load) == pytest.approx(took(machine, load), rel=0.4)


def test_a_stall_does_not_count_as_a_slow_machine() -> None:
    load, model = Load("step", 1, 1 << 20, 1 << 21), CostModel()
    usual = 0.002
    for _ in range(100):
        model.observe([load], usual)
    model.observe([load], 60.0)
    assert model.estimate(load) < 2 * usual


def test_joint_work_is_learned_as_its_parts() -> None:
    rng, model = random.Random(3), CostModel()
    some = loads(rng)
    for _ in range(300):
        together = list(itertools.islice(some, rng.randrange(1, 9)))
        model.observe(together, sum(took(MACHINES[0], load) for load in together))
    load = next(some)
    assert model.estimate(load) == pytest.approx(took(MACHINES[0], load), rel=0.4)


def test_kinds_are_learned_apart() -> None:
    model = CostModel()
    for _ in range(200):
        model.observe([Load("open")], 0.05)
        model.observe([Load("short")], 0.0001)
    assert model.estimate(Load("open")) == pytest.approx(0.05, rel=0.1)
    assert model.estimate(Load("short")) == pytest.approx(0.0001, rel=0.1)


def test_an_estimate_is_never_below_zero() -> None:
    rng, model = random.Random(4), CostModel()
    for _ in range(2000):
        load = Load("x", rng.randrange(1000), rng.randrange(1 << 30), rng.randrange(1 << 34))
        model.observe([load], rng.choice([0.0, 1e-6, 1.0]))
        assert model.estimate(Load("x", rng.randrange(1000), rng.randrange(1 << 30), 0)) >= 0
