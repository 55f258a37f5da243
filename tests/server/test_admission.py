"""What is let in, and what is refused at once."""

import pytest
from queued import Machine, Waiter, names, operation

from rondel.decoder.errors import DeadlineExpired, Overloaded
from rondel.server.dispatch import Dispatch


@pytest.fixture
def machine() -> Machine:
    """Operations of 0.1 s, of which 1 s may wait."""
    machine = Machine(Dispatch(queue_bytes=1000, queue_seconds=1.0, stuck_seconds=30.0))
    machine.learn(work=0.1)
    return machine


def admit(machine: Machine, name: str = "", tenant: str = "", **options: object) -> None:
    one = operation(name, tenant=tenant, kind="work", now=machine.now, **options)  # type: ignore[arg-type]
    assert machine.dispatch.admit(one, machine.now) == []


def test_what_waits_is_bounded_in_time(machine: Machine) -> None:
    for _ in range(11):
        admit(machine)
    before = machine.dispatch.waiting_seconds
    with pytest.raises(Overloaded) as caught:
        admit(machine)
    assert machine.dispatch.waiting_seconds == before
    assert "bound is 1 s" in caught.value.message
    assert caught.value.retry_after_ms == pytest.approx(550, rel=0.1)
    machine.turn()
    machine.turn()
    admit(machine)


def test_what_is_at_work_counts_until_it_should_be_over(machine: Machine) -> None:
    for _ in range(11):
        admit(machine)
    batch = machine.dispatch.next(machine.now)
    assert batch is not None
    assert machine.dispatch.wait("", machine.now) == pytest.approx(1.1, rel=0.05)
    assert machine.dispatch.wait("", machine.now + 0.07) == pytest.approx(1.03, rel=0.05)
    assert machine.dispatch.wait("", machine.now + 5) == pytest.approx(1.0, rel=0.05)


def test_a_deadline_that_would_pass_while_waiting_is_a_refusal(machine: Machine) -> None:
    for _ in range(5):
        admit(machine)
    with pytest.raises(Overloaded, match="its deadline is in"):
        admit(machine, deadline=machine.now + 0.5)
    admit(machine, deadline=machine.now + 0.9)


def test_a_deadline_that_has_passed_is_said_to_have(machine: Machine) -> None:
    with pytest.raises(DeadlineExpired):
        admit(machine, deadline=machine.now)


def test_an_estimate_alone_keeps_nothing_out(machine: Machine) -> None:
    """What is thought to take longer than its deadline can only be found out by letting it in."""
    admit(machine, "hopeful", deadline=machine.now + 0.01)
    assert machine.turn() == ["hopeful"]


def test_what_cannot_be_done_in_time_any_more_is_left_out(machine: Machine) -> None:
    """Begun, it would take the time of those behind it, and be in time no more than they."""
    for name, seconds in (("first", 5.0), ("hopeless", 0.25), ("last", 5.0)):
        admit(machine, name, deadline=machine.now + seconds)
    machine.seconds["work"] = 0.2
    machine.turn()
    batch = machine.dispatch.next(machine.now)
    assert batch is not None
    assert [each.argument for each in batch.expired] == ["hopeless"]
    assert [each.argument for each in batch.operations] == ["last"]


def test_the_next_part_of_what_was_let_in_is_not_refused(machine: Machine) -> None:
    for _ in range(11):
        admit(machine)
    admit(machine, cost=0)


def test_another_tenants_flood_does_not_keep_anybody_out(machine: Machine) -> None:
    for _ in range(11):
        admit(machine, tenant="flood")
    with pytest.raises(Overloaded):
        admit(machine, tenant="flood")
    for _ in range(4):
        admit(machine, "other", tenant="other", deadline=machine.now + 2)
    assert machine.dispatch.wait("other", machine.now) < machine.dispatch.wait("flood", machine.now)


def test_bytes_of_the_largest_make_room_for_others(machine: Machine) -> None:
    for number in range(4):
        admit(machine, f"flood{number}", "flood", cost=250)
    with pytest.raises(Overloaded, match="1000 bytes"):
        admit(machine, tenant="flood", cost=1)
    other = operation("other", tenant="other", kind="work", cost=300, now=machine.now)
    removed = machine.dispatch.admit(other, machine.now)
    assert names(removed) == ["flood3", "flood2"]
    assert all(isinstance(each.error, Overloaded) for each in removed)
    assert machine.dispatch.waiting_bytes == 800
    with pytest.raises(Overloaded):
        admit(machine, tenant="other", cost=300)  # it would have more than who has to make room
    machine.all()
    assert sorted(machine.order) == ["flood0", "flood1", "other"]
    assert machine.dispatch.waiting_bytes == 0


def test_a_cancelled_operation_counts_no_more(machine: Machine) -> None:
    waiting = [operation(str(number), kind="work", cost=90, now=machine.now) for number in range(11)]
    for each in waiting:
        machine.dispatch.admit(each, machine.now)
    for each in waiting[:10]:
        assert isinstance(each.future, Waiter)
        each.future.gone = True
        machine.dispatch.withdraw(each)
    assert machine.dispatch.waiting_bytes == 90
    assert machine.dispatch.waiting_seconds == pytest.approx(0.1, rel=0.1)
    admit(machine, "late", cost=900)
    batch = machine.dispatch.next(machine.now)
    assert batch is not None
    assert names(batch.cancelled) == [str(number) for number in range(10)]
    assert [each.argument for each in batch.operations] == ["10"]
    machine.dispatch.withdraw(batch.operations[0])  # it has begun, and is carried out whole
    machine.dispatch.finish(batch, machine.now)
    machine.all()
    assert machine.order == ["late"]
    assert machine.dispatch.waiting_bytes == 0


def test_a_worker_that_is_stuck_gets_no_more(machine: Machine) -> None:
    admit(machine)
    batch = machine.dispatch.next(machine.now)
    assert batch is not None
    machine.now += 29
    admit(machine)
    machine.now += 2
    with pytest.raises(Overloaded, match="inside one operation for 31 s"):
        admit(machine)
    machine.dispatch.finish(batch, machine.now)
    admit(machine)


def test_gauges_are_zero_when_nothing_waits(machine: Machine) -> None:
    for number in range(5):
        admit(machine, tenant=str(number), cost=7)
    machine.all()
    assert (machine.dispatch.waiting_bytes, machine.dispatch.waiting_seconds) == (0, 0.0)
    admit(machine)
    assert machine.dispatch.take_all()[0].load.kind == "work"
    assert (machine.dispatch.waiting_bytes, machine.dispatch.waiting_seconds) == (0, 0.0)
