"""A hundred schedules of the server; ``make simulate`` has ten thousand."""

import pytest
from sim_planted import PLANTED
from sim_properties import NAMES
from sim_run import first_found
from sim_tally import KINDS, Tally
from simulate import simulate

SEEDS = 100


def test_every_property_holds_in_every_schedule() -> None:
    tally = Tally()
    assert {seed: error for seed in range(SEEDS) if (error := simulate(seed, tally)) is not None} == {}
    assert {kind for kind in KINDS if not tally.counts[kind]} == set()


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake_is_found(name: str) -> None:
    assert first_found(name, range(SEEDS)) is not None


def test_a_seed_is_the_same_schedule_every_time() -> None:
    for seed in (3, 39):
        tallies = [Tally(), Tally()]
        for tally in tallies:
            assert simulate(seed, tally) is None
        assert tallies[0].counts == tallies[1].counts


def test_the_properties_are_listed() -> None:
    assert len(NAMES) == 11
    assert {"exactly-once", "acknowledged", "deadline", "fair", "given-back"} <= set(NAMES)
