"""Steps per second, and what a tenant has at work, with a clock that stands still."""

from __future__ import annotations

import pytest
from held import Clock

from rondel.decoder.errors import QuotaExceeded
from rondel.server.quota import Bucket, Quota
from rondel.server.tenants import Tenants


@pytest.fixture
def bucket(clock: Clock) -> Bucket:
    made = Bucket(clock)
    made.rate = 100.0
    return made


def hint(bucket: Bucket, steps: int) -> float:
    """Seconds until so many may be taken, as the refusal says; taking nothing."""
    with pytest.raises(QuotaExceeded) as caught:
        bucket.take(steps)
    assert (caught.value.facts["quota"], caught.value.facts["limit"]) == ("steps_per_second", 100)
    return caught.value.retry_after_ms / 1000


def test_without_a_rate_everything_may_be_taken(clock: Clock) -> None:
    bucket = Bucket(clock)
    bucket.take(1 << 60)
    bucket.owe(1 << 60)
    bucket.take(1)
    assert bucket.pause() == 0


def test_a_second_may_be_taken_at_once_and_then_the_rate_holds(bucket: Bucket, clock: Clock) -> None:
    for _ in range(100):
        bucket.take(1)
    assert hint(bucket, 1) == pytest.approx(0.01)
    assert hint(bucket, 1) == pytest.approx(0.01)  # nothing was taken
    clock.now += 0.01
    bucket.take(1)
    clock.now += 3600
    for _ in range(100):
        bucket.take(1)
    assert hint(bucket, 50) == pytest.approx(0.5)


@pytest.mark.parametrize("seconds", [0.001, 0.0137, 0.03])
def test_over_time_no_more_is_taken_than_the_rate(bucket: Bucket, clock: Clock, seconds: float) -> None:
    taken = 0
    for turn in range(2000):
        clock.now += seconds
        for steps in (1 + turn % 7, 250 if turn % 50 == 0 else 1):
            try:
                bucket.take(steps)
            except QuotaExceeded:
                continue
            taken += steps
    passed = 2000 * seconds
    # A second's worth at the start, and one call that was larger than that.
    assert 0.9 * 100 * passed - 250 <= taken <= 100 * (passed + 1) + 250


def test_a_call_larger_than_a_second_is_not_impossible_but_is_paid_for(bucket: Bucket, clock: Clock) -> None:
    bucket.take(1)
    assert hint(bucket, 1000) == pytest.approx(0.01)
    clock.now += 0.01
    bucket.take(1000)
    assert hint(bucket, 1) == pytest.approx(9.01)
    assert bucket.pause() == pytest.approx(9.0)
    clock.now += 9.0
    assert hint(bucket, 1) == pytest.approx(0.01)
    assert bucket.pause() == pytest.approx(0.0, abs=1e-9)


def test_what_was_taken_for_nothing_is_given_back(bucket: Bucket) -> None:
    bucket.take(100)
    bucket.owe(-100)
    bucket.take(100)
    bucket.owe(-1000)
    bucket.take(100)
    hint(bucket, 1)  # never more than a second's worth


def test_debts_outlive_a_new_rate(bucket: Bucket, clock: Clock) -> None:
    bucket.owe(1100)
    bucket.rate = 1000.0
    assert bucket.pause() == pytest.approx(1.0)
    clock.now += 1.0
    bucket.rate = 1000.0  # the same one: nothing changes
    assert bucket.pause() == pytest.approx(0.0, abs=1e-9)
    bucket.rate = None
    bucket.take(1 << 40)


def test_hints_are_bounded(bucket: Bucket) -> None:
    bucket.owe(1 << 60)
    assert hint(bucket, 1) == 60


def test_calls_at_work_are_counted_and_bounded() -> None:
    tenants = Tenants()
    tenants.apply({"a": Quota(max_calls=2)})
    tenant, other = tenants.get("a"), tenants.get("b")
    tenant.enter()
    tenant.enter()
    with pytest.raises(QuotaExceeded) as caught:
        tenant.enter()
    assert (caught.value.facts["quota"], caught.value.retry_after_ms) == ("calls", 100)
    other.enter()
    tenant.leave()
    tenant.enter()
    tenants.apply({"b": Quota(max_calls=0)})  # a is not named any more
    tenant.enter()
    with pytest.raises(QuotaExceeded):
        other.enter()
    assert tenants.get("a") is tenant
    assert (tenant.calls, other.calls) == (3, 1)
