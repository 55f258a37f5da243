"""The queue and its worker."""

import asyncio
import logging
import threading
import time
from collections.abc import Generator
from functools import partial

import numpy as np
import pytest
from held import Clock, Gate, busy

from rondel.decoder.errors import DeadlineExpired, Draining, InvalidShape, Overloaded, ServerInternal
from rondel.server.scheduler import Scheduler


async def test_operations_run_in_order_on_another_thread(scheduler: Scheduler) -> None:
    order: list[int] = []
    threads = set()

    def work(number: int) -> int:
        order.append(number)
        threads.add(threading.get_ident())
        return number

    results = await asyncio.gather(*(scheduler.run(lambda n=n: work(n), cost=1) for n in range(200)))
    assert results == order == list(range(200))
    assert len(threads) == 1
    assert threading.get_ident() not in threads
    assert scheduler.waiting_bytes == 0


async def test_an_error_is_its_own_operations_only(scheduler: Scheduler) -> None:
    def fail() -> None:
        raise InvalidShape("wrong", got="a", expected="b")

    results = await asyncio.gather(
        scheduler.run(lambda: 1, cost=1),
        scheduler.run(fail, cost=1),
        scheduler.run(lambda: 1 // 0, cost=1),
        scheduler.run(lambda: 4, cost=1),
        return_exceptions=True,
    )
    assert results[0] == 1
    assert isinstance(results[1], InvalidShape)
    assert isinstance(results[2], ZeroDivisionError)
    assert results[3] == 4


async def test_what_waits_is_bounded_in_bytes(scheduler: Scheduler) -> None:
    gate, task = await busy(scheduler)
    ran: list[str] = []
    waiting = asyncio.create_task(scheduler.run(lambda: ran.append("first"), cost=900))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded) as caught:
        await scheduler.run(lambda: ran.append("second"), cost=101)
    assert 1 <= caught.value.retry_after_ms <= 10_000
    assert "1000" in caught.value.message
    fits = asyncio.create_task(scheduler.run(lambda: ran.append("third"), cost=100))
    await asyncio.sleep(0)
    gate.leave.set()
    await asyncio.gather(task, waiting, fits)
    assert ran == ["first", "third"]
    assert await scheduler.run(lambda: "again", cost=101) == "again"


async def test_one_operation_is_let_in_whatever_its_size(scheduler: Scheduler) -> None:
    assert await scheduler.run(lambda: "large", cost=10**9) == "large"


async def test_expired_work_never_starts(scheduler: Scheduler, clock: Clock) -> None:
    gate, task = await busy(scheduler)
    ran: list[str] = []
    expired = asyncio.create_task(scheduler.run(lambda: ran.append("late"), cost=1, deadline=110.0))
    in_time = asyncio.create_task(scheduler.run(lambda: ran.append("in time"), cost=1, deadline=120.0))
    await asyncio.sleep(0)
    clock.now = 110.0
    gate.leave.set()
    with pytest.raises(DeadlineExpired):
        await expired
    await asyncio.gather(task, in_time)
    assert ran == ["in time"]


async def test_cancelled_work_never_starts(scheduler: Scheduler) -> None:
    gate, task = await busy(scheduler)
    ran: list[str] = []
    cancelled = asyncio.create_task(scheduler.run(lambda: ran.append("cancelled"), cost=700))
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    gate.leave.set()
    await task
    await scheduler.run(lambda: ran.append("next"), cost=1)
    assert ran == ["next"]
    assert scheduler.waiting_bytes == 0


async def test_work_that_has_begun_is_carried_out_whole(scheduler: Scheduler) -> None:
    gate, task = await busy(scheduler)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    ran: list[str] = []
    after = asyncio.create_task(scheduler.run(lambda: ran.append("after"), cost=1))
    await asyncio.sleep(0.02)
    assert ran == []
    gate.leave.set()
    await after
    assert ran == ["after"]


async def test_the_loop_is_woken_once_for_what_waited(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, task = await busy(scheduler)
    waiting = [asyncio.create_task(scheduler.run(lambda: None, cost=1)) for _ in range(50)]
    await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    wakes: list[object] = []
    original = loop.call_soon_threadsafe
    monkeypatch.setattr(
        loop,
        "call_soon_threadsafe",
        lambda *args, **options: (wakes.append(args), original(*args, **options))[1],
    )
    gate.leave.set()
    await asyncio.gather(task, *waiting)
    assert len(wakes) == 1


async def test_stopping_finishes_what_waits(clock: Clock) -> None:
    scheduler = Scheduler("test", queue_bytes=1000, clock=clock)
    gate, task = await busy(scheduler)
    waiting = [asyncio.create_task(scheduler.run(lambda n=n: n, cost=1)) for n in range(5)]
    await asyncio.sleep(0)
    stopping = asyncio.create_task(scheduler.stop())
    await asyncio.sleep(0)
    with pytest.raises(Draining):
        await scheduler.run(lambda: None, cost=1)
    gate.leave.set()
    assert await asyncio.gather(task, *waiting) == ["through", 0, 1, 2, 3, 4]
    await stopping
    await scheduler.stop()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_worker_that_dies_leaves_nobody_waiting(clock: Clock) -> None:
    class Worst(BaseException):
        pass

    def die() -> None:
        raise Worst

    scheduler = Scheduler("test", queue_bytes=1000, clock=clock)
    gate, task = await busy(scheduler)
    deadly = asyncio.create_task(scheduler.run(die, cost=1))
    behind = asyncio.create_task(scheduler.run(lambda: None, cost=1))
    await asyncio.sleep(0)
    gate.leave.set()
    assert await task == "through"
    with pytest.raises(ServerInternal):
        await deadly
    with pytest.raises(Draining):
        await behind
    await asyncio.wait_for(scheduler.ended.wait(), 5)
    with pytest.raises(Draining):
        await scheduler.run(lambda: None, cost=1)
    await scheduler.stop()


async def test_posted_work_runs_and_its_errors_are_logged(
    scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[str] = []
    with caplog.at_level(logging.ERROR, "rondel.server"):
        scheduler.post(lambda: ran.append("posted"))
        scheduler.post(lambda: 1 // 0)
        await scheduler.run(lambda: None, cost=1)
        await asyncio.sleep(0)
    assert ran == ["posted"]
    assert "ZeroDivisionError" in caplog.text


async def test_gauges_are_back_at_zero_after_a_storm_of_cancels(rng: np.random.Generator) -> None:
    """Cancelled while they wait, while the worker looks at them, while it is inside of them."""
    scheduler = Scheduler("test", queue_bytes=1 << 20)
    ran: list[int] = []

    def work(number: int) -> None:
        ran.append(number)
        time.sleep(5e-5)

    tasks = []
    for number in range(3000):
        tenant = "abc"[number % 3]
        tasks.append(asyncio.create_task(scheduler.run(partial(work, number), cost=100, tenant=tenant)))
        if rng.random() < 0.3:
            tasks[rng.integers(max(0, number - 20), number + 1)].cancel()
        if number % 20 == 0:
            await asyncio.sleep(0)
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert scheduler.waiting_bytes == 0
    await scheduler.run(lambda: None, cost=1)
    assert (scheduler.waiting_bytes, scheduler.waiting_seconds) == (0, 0.0)
    finished = {number for number, outcome in enumerate(outcomes) if outcome is None}
    assert finished <= set(ran)
    assert len(ran) == len(set(ran))
    assert any(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
    await scheduler.stop()


async def test_pieces_let_other_tenants_have_their_turns(scheduler: Scheduler) -> None:
    gate, task = await busy(scheduler)
    order: list[str] = []

    def pieces() -> Generator[None, None, str]:
        for number in range(4):
            order.append(str(number))
            yield
        return "whole"

    long = asyncio.create_task(scheduler.run_piecewise(pieces, cost=1, tenant="a"))
    behind = asyncio.create_task(scheduler.run(lambda: order.append("behind"), cost=1, tenant="a"))
    other = asyncio.create_task(scheduler.run(lambda: order.append("other"), cost=1, tenant="b"))
    await asyncio.sleep(0)
    gate.leave.set()
    await asyncio.gather(task, behind, other)
    assert await long == "whole"
    assert order.index("other") < order.index("3")
    assert [each for each in order if each != "other"] == ["0", "1", "2", "3", "behind"]


@pytest.mark.parametrize("how", ["cancelled", "expired", "failed"])
async def test_work_stops_between_two_pieces(scheduler: Scheduler, clock: Clock, how: str) -> None:
    entered, leave = threading.Event(), threading.Event()
    order: list[str] = []

    def pieces() -> Generator[None, None, None]:
        try:
            order.append("first")
            entered.set()
            assert leave.wait(20)
            if how == "failed":
                raise InvalidShape("wrong", got="a", expected="b")
            yield
            order.append("second")
        finally:
            order.append("closed")

    long = asyncio.create_task(scheduler.run_piecewise(pieces, cost=900, deadline=110.0))
    assert await asyncio.to_thread(entered.wait, 20)
    if how == "cancelled":
        long.cancel()
    if how == "expired":
        clock.now = 110.0
    leave.set()
    errors = {"cancelled": asyncio.CancelledError, "expired": DeadlineExpired, "failed": InvalidShape}
    with pytest.raises(errors[how]):
        await long
    await scheduler.run(lambda: None, cost=1)
    assert order == ["first", "closed"]
    assert scheduler.waiting_bytes == 0


async def test_work_can_ask_whether_anybody_still_waits(scheduler: Scheduler, clock: Clock) -> None:
    """Right before a kernel: what came before it may have taken until after the deadline."""

    def slow() -> str:
        scheduler.check()
        assert scheduler.tenant() == "somebody"
        clock.now += 20.0
        scheduler.check()
        return "too late"

    with pytest.raises(DeadlineExpired):
        await scheduler.run(slow, cost=1, deadline=110.0, tenant="somebody")
    assert scheduler.late_starts == 0


async def test_a_stop_drops_what_is_between_two_pieces(clock: Clock) -> None:
    scheduler = Scheduler("test", queue_bytes=1000, clock=clock)
    gate = Gate()

    def pieces() -> Generator[None, None, None]:
        gate()
        while True:
            yield

    long = asyncio.create_task(scheduler.run_piecewise(pieces, cost=1))
    assert await asyncio.to_thread(gate.entered.wait, 20)
    gate.leave.set()
    while not await scheduler.stop(seconds=0.01):
        pass
    with pytest.raises(Draining):
        await long
