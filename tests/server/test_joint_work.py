"""Operations that the worker carries out together."""

import asyncio

import pytest
from held import Clock, busy

from rondel.decoder.errors import DeadlineExpired, Draining
from rondel.server.scheduler import Scheduler


class Sums:
    """Adds one to each argument, and keeps what it was given at a time."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    def __call__(self, numbers: list[int]) -> list[int]:
        self.calls.append(numbers)
        if 13 in numbers:
            raise ArithmeticError(str(numbers))
        return [number + 1 for number in numbers]


async def test_what_waits_behind_each_other_is_one_call(scheduler: Scheduler) -> None:
    gate, task = await busy(scheduler)
    sums, others = Sums(), Sums()
    order: list[str] = []
    waiting = [
        *(asyncio.create_task(scheduler.run_jointly(sums, n, cost=1)) for n in (1, 2, 3)),
        asyncio.create_task(scheduler.run_jointly(others, 10, cost=1)),
        asyncio.create_task(scheduler.run(lambda: order.append(f"{sums.calls}"), cost=1)),
        *(asyncio.create_task(scheduler.run_jointly(sums, n, cost=1)) for n in (4, 5)),
    ]
    await asyncio.sleep(0)
    gate.leave.set()
    assert await asyncio.gather(*waiting) == [2, 3, 4, 11, None, 5, 6]
    await task
    assert sums.calls == [[1, 2, 3], [4, 5]]
    assert others.calls == [[10]]
    assert order == ["[[1, 2, 3]]"]
    assert scheduler.waiting_bytes == 0


async def test_one_alone_does_not_wait_for_others(scheduler: Scheduler) -> None:
    sums = Sums()
    assert await scheduler.run_jointly(sums, 1, cost=1) == 2
    assert await scheduler.run_jointly(sums, 2, cost=1) == 3
    assert sums.calls == [[1], [2]]


async def test_a_call_is_bounded_in_bytes(clock: Clock) -> None:
    scheduler = Scheduler("test", queue_bytes=10 << 20, clock=clock)
    gate, task = await busy(scheduler)
    sums = Sums()
    sizes = [2 << 20, 600 << 10, 300 << 10, 300 << 10, 1]
    waiting = [asyncio.create_task(scheduler.run_jointly(sums, n, cost=cost)) for n, cost in enumerate(sizes)]
    await asyncio.sleep(0)
    gate.leave.set()
    assert await asyncio.gather(*waiting) == [1, 2, 3, 4, 5]
    await task
    assert sums.calls == [[0], [1, 2], [3, 4]]
    await scheduler.stop()


async def test_cancelled_and_expired_arguments_are_left_out(scheduler: Scheduler, clock: Clock) -> None:
    gate, task = await busy(scheduler)
    sums = Sums()
    first = asyncio.create_task(scheduler.run_jointly(sums, 1, cost=1, deadline=120.0))
    cancelled = asyncio.create_task(scheduler.run_jointly(sums, 2, cost=1))
    expired = asyncio.create_task(scheduler.run_jointly(sums, 3, cost=1, deadline=110.0))
    last = asyncio.create_task(scheduler.run_jointly(sums, 4, cost=1))
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    clock.now = 110.0
    gate.leave.set()
    assert await asyncio.gather(first, last) == [2, 5]
    with pytest.raises(DeadlineExpired):
        await expired
    await task
    assert sums.calls == [[1, 4]]


async def test_an_exception_is_for_all_of_the_call_and_nobody_else(scheduler: Scheduler) -> None:
    gate, task = await busy(scheduler)
    sums = Sums()
    waiting = [asyncio.create_task(scheduler.run_jointly(sums, n, cost=1)) for n in (12, 13)]
    after = asyncio.create_task(scheduler.run(lambda: "after", cost=1))
    await asyncio.sleep(0)
    gate.leave.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [str(result) for result in results] == ["[12, 13]", "[12, 13]"]
    assert await after == "after"
    await task


async def test_a_result_too_few_or_too_many_is_an_error_and_not_the_end(scheduler: Scheduler) -> None:
    for wrong in ([], [1, 2]):
        with pytest.raises(ValueError, match="zip"):
            await scheduler.run_jointly(lambda _, wrong=wrong: wrong, 1, cost=1)
    assert await scheduler.run_jointly(Sums(), 1, cost=1) == 2


async def test_stopping_without_patience_drops_all_that_has_not_begun(clock: Clock) -> None:
    """Also what the worker has taken out of the queue and found not to go with what it is doing."""
    scheduler = Scheduler("test", queue_bytes=1000, clock=clock)
    gate, task = await busy(scheduler)

    def hold(numbers: list[int]) -> list[int]:
        inside.set()
        assert leave.wait(20)
        return numbers

    inside, leave = type(gate.entered)(), type(gate.entered)()
    held = [asyncio.create_task(scheduler.run_jointly(hold, n, cost=1)) for n in (1, 2)]
    ahead = asyncio.create_task(scheduler.run(lambda: "never", cost=1))
    behind = asyncio.create_task(scheduler.run_jointly(hold, 3, cost=1))
    await asyncio.sleep(0)
    gate.leave.set()
    assert await asyncio.to_thread(inside.wait, 20)
    assert not await scheduler.stop(seconds=0)
    for dropped in (ahead, behind):
        with pytest.raises(Draining):
            await dropped
    leave.set()
    assert await asyncio.gather(*held) == [1, 2]
    assert await scheduler.stop()
    assert await task == "through"
