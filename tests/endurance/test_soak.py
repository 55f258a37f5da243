"""A short run of `make soak`, and what it makes of what it has seen."""

import pytest
from soak import Settings, slope, soak
from soak_run import failures

WELL = {
    "answers": 300_000,
    "wrong": 0,
    "rss_slope_bytes_per_s": 100.0,
    "fd_delta": 0,
    "tasks_delta": 0,
    "budget_delta": 0,
    "unexpected_errors": 0,
}


@pytest.mark.timeout(240)
def test_everything_at_once_for_some_seconds() -> None:
    settings = Settings(duration=2.5, seed=3, streams=48, batch=8, under_way=4, lease=2.0)
    outcome = soak(settings)
    numbers = outcome.numbers()
    assert numbers["answers"] > 100
    assert not any(numbers[name] for name in ("wrong", "unexpected_errors", "budget_delta")), outcome
    assert numbers["fd_delta"] <= 0
    assert numbers["tasks_delta"] <= 0
    assert outcome.end.streams == 0
    inflicted = outcome.load.faults
    assert min(inflicted.cancels, inflicted.reconnects, inflicted.kills, inflicted.stalls) >= 1
    assert outcome.vandals["calls"] > 0


@pytest.mark.parametrize(
    ("changed", "duration", "wrong"),
    [
        ({}, 600.0, 0),
        ({"wrong": 1}, 600.0, 1),
        ({"answers": 299_000}, 600.0, 1),
        ({"rss_slope_bytes_per_s": 10_000.0}, 600.0, 1),
        ({"rss_slope_bytes_per_s": -10_000.0}, 600.0, 0),
        ({"rss_slope_bytes_per_s": 10_000.0}, 60.0, 0),
        ({"fd_delta": 1, "tasks_delta": 2}, 600.0, 2),
        ({"fd_delta": -1}, 600.0, 0),
        ({"budget_delta": -2097152}, 600.0, 1),
        ({"unexpected_errors": 3}, 600.0, 1),
    ],
)
def test_the_verdict(changed: dict[str, float], duration: float, wrong: int) -> None:
    assert len(failures({**WELL, **changed}, duration, 8192.0)) == wrong


def test_the_slope_is_that_of_the_second_half() -> None:
    warming = [(float(t), 10**8 - 10**5 * max(0, 30 - t)) for t in range(60)]
    assert slope(warming) == pytest.approx(0.0, abs=1e-3)
    growing = [(float(t), 10**8 + 500 * t + 4096 * (t % 3)) for t in range(600)]
    assert slope(growing) == pytest.approx(500, abs=2)
    assert slope(growing[:2]) == 0.0
