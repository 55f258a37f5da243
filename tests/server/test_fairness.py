"""Turns of tenants."""

import random
from collections import Counter, defaultdict

import pytest
from queued import Machine, operation, other_work

from rondel.server.dispatch import JOINT_SECONDS, Dispatch


@pytest.fixture
def machine() -> Machine:
    machine = Machine(Dispatch(queue_bytes=1 << 30))
    machine.learn(short=0.001, long=0.050)
    return machine


def add(machine: Machine, name: str, tenant: str, kind: str = "short", **options: object) -> None:
    machine.dispatch.admit(operation(name, tenant=tenant, kind=kind, now=machine.now, **options), machine.now)  # type: ignore[arg-type]


def test_one_tenant_is_served_in_order(machine: Machine) -> None:
    names = [str(number) for number in range(50)]
    for name in names:
        add(machine, name, "a")
    machine.all()
    assert machine.order == names


def test_a_flood_delays_others_by_one_turn(machine: Machine) -> None:
    for number in range(1000):
        add(machine, f"a{number}", "a")
    machine.turn()
    add(machine, "b", "b")
    assert [machine.turn(), machine.turn()].count(["b"]) == 1
    for number in range(3):
        add(machine, f"c{number}", "c")
    machine.order.clear()
    for _ in range(7):
        machine.turn()
    assert [name for name in machine.order if name[0] == "c"] == ["c0", "c1", "c2"]


def test_shares_are_of_time_and_not_of_calls(machine: Machine) -> None:
    for number in range(500):
        add(machine, f"a{number}", "a", "short")
    for number in range(20):
        add(machine, f"b{number}", "b", "long")
    begun = machine.now
    while machine.now - begun < 0.6:
        machine.turn()
    used = Counter({"a": 0.0, "b": 0.0})
    for name in machine.order:
        used[name[0]] += machine.seconds["short" if name[0] == "a" else "long"]
    assert abs(used["a"] - used["b"]) <= 2 * machine.seconds["long"]


def test_nobody_gains_by_calls_that_seem_short(machine: Machine) -> None:
    """What was really taken counts."""
    machine.seconds["short"] = 0.020
    for number in range(300):
        add(machine, f"a{number}", "a", "short")
        add(machine, f"b{number}", "b", "long")
    begun = machine.now
    while machine.now - begun < 2.0:
        machine.turn()
    counts = Counter(name[0] for name in machine.order)
    assert abs(counts["a"] * 0.020 - counts["b"] * 0.050) <= 2 * 0.050


def test_turns_are_not_saved_up(machine: Machine) -> None:
    for number in range(2000):
        add(machine, f"a{number}", "a")
    for _ in range(1000):
        machine.turn()
    for number in range(100):
        add(machine, f"b{number}", "b")
    machine.order.clear()
    for _ in range(100):
        machine.turn()
    assert 45 <= sum(name[0] == "a" for name in machine.order) <= 55


def test_a_weight_is_a_share() -> None:
    machine = Machine(Dispatch(queue_bytes=1 << 30, weight=lambda tenant: 3.0 if tenant == "a" else 1.0))
    for number in range(400):
        for tenant in "ab":
            add(machine, f"{tenant}{number}", tenant)
    for _ in range(200):
        machine.turn()
    counts = Counter(name[0] for name in machine.order)
    assert counts["a"] == pytest.approx(150, abs=3)


def test_joint_work_of_many_tenants_is_one_batch_in_turn(machine: Machine) -> None:
    for number in range(3):
        for tenant in "abc":
            add(machine, f"{tenant}{number}", tenant, joint=True)
    assert [sorted(batch) for batch in machine.all()] == [
        ["a0", "a1", "a2", "b0", "b1", "b2", "c0", "c1", "c2"]
    ]
    assert [name[1] for name in machine.order] == list("000111222")


def test_other_work_of_one_tenant_does_not_part_that_of_others(machine: Machine) -> None:
    for number in range(2):
        for tenant in "abc":
            how = {"how": other_work} if tenant == "b" else {}
            add(machine, f"{tenant}{number}", tenant, joint=True, **how)
    assert [sorted(batch) for batch in machine.all()] == [["a0", "a1", "c0", "c1"], ["b0", "b1"]]


def test_a_batch_is_bounded_in_time(machine: Machine) -> None:
    for number in range(100):
        add(machine, f"a{number}", "a", joint=True)
    add(machine, "b", "b", "short")
    batches = machine.all()
    assert max(map(len, batches)) <= JOINT_SECONDS / 0.001 * 1.2
    assert len(batches) >= 10
    assert batches[0] == ["b"] or batches[1] == ["b"]


def test_what_is_nobodys_waits_for_all_that_came_before_and_nothing_else(machine: Machine) -> None:
    add(machine, "a0", "a", "long")
    add(machine, "b0", "b", "long")
    machine.dispatch.add(operation("nobody's", tenant=None, cost=0))
    for number in range(10):
        add(machine, f"c{number}", "c")
    machine.all()
    place = machine.order.index("nobody's")
    assert {"a0", "b0"} <= set(machine.order[:place])
    assert place < len(machine.order) - 1


@pytest.mark.parametrize("seed", range(8))
def test_what_two_get_that_both_wait_differs_by_a_turn_of_each(seed: int) -> None:
    """The bound of the paper, with work that takes other times than were expected."""
    rng = random.Random(seed)
    machine = Machine(Dispatch(queue_bytes=1 << 30))
    tenants = "abcd"
    waiting: Counter[str] = Counter()
    since: dict[frozenset[str], dict[str, float]] = {}
    used: defaultdict[str, float] = defaultdict(float)
    longest = 0.0
    for number in range(1000):
        for tenant in tenants:
            if rng.random() < 0.4:
                add(machine, f"{tenant}{number}", tenant, kind=rng.choice("xyz"), joint=rng.random() < 0.5)
                waiting[tenant] += 1
        for pair in (frozenset((a, b)) for a in tenants for b in tenants if a < b):
            if all(waiting[each] for each in pair):
                since.setdefault(pair, dict(used))
            else:
                since.pop(pair, None)
        batch = machine.dispatch.next(machine.now)
        if batch is None:
            continue
        seconds = rng.expovariate(100.0)
        longest = max(longest, seconds)
        expected = sum(each.estimate for each in batch.operations)
        for each in batch.operations:
            assert each.tenant is not None
            used[each.tenant] += seconds * each.estimate / expected
            waiting[each.tenant] -= 1
        machine.now += seconds
        machine.dispatch.finish(batch, machine.now)
        for pair, before in since.items():
            one, two = (used[each] - before.get(each, 0.0) for each in pair)
            assert abs(one - two) <= 2 * longest + 4 * JOINT_SECONDS
