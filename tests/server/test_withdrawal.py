"""Callers who leave: what the queue counts then, and what it still holds of their requests."""

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from held import Clock, busy

from rondel.decoder.errors import DeadlineExpired, InvalidShape
from rondel.server.account import CURRENT, Account
from rondel.server.pending import Pending
from rondel.server.scheduler import Scheduler
from rondel.v1 import attention_pb2 as pb


class Told:
    """Waits for an operation, and does something the moment that it is told."""

    def __init__(self, then: Callable[[], object]) -> None:
        self._then = then

    def done(self) -> bool:
        return False

    def cancelled(self) -> bool:
        return False

    def set_result(self, result: object) -> None:
        self._then()

    def set_exception(self, error: Exception) -> None:
        raise error


class Large:
    """Work that has a large request."""

    def __call__(self, *arguments: Any) -> None:
        pytest.fail("nobody waits for this any more")


async def withdrawn(scheduler: Scheduler) -> weakref.ref[Large]:
    """A request that waited, and whose caller has left."""
    work = Large()
    CURRENT.set(Account("a service", "a method", "a peer", 0.0, request=work))
    task = asyncio.create_task(scheduler.run(work, cost=900))
    CURRENT.set(None)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    return weakref.ref(work)


async def test_who_leaves_before_hearing_of_an_error_withdraws_nothing(scheduler: Scheduler) -> None:
    """As a deadline has it: the queue's answer and the caller's end come at the same time."""

    def fail() -> None:
        raise InvalidShape("wrong", got="a", expected="b")

    gate, held = await busy(scheduler)
    leaving = asyncio.create_task(scheduler.run(fail, cost=700))
    await asyncio.sleep(0)
    # Handed out together with the error, and after it: the task has its error, and has not gone on with it.
    scheduler.submit(Told(leaving.cancel), lambda _: None, None, cost=1, deadline=None, tenant="")
    gate.leave.set()
    await held
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert (scheduler.waiting_bytes, scheduler.waiting_seconds) == (0, 0.0)


async def test_who_leaves_is_told_whether_it_was_begun(scheduler: Scheduler, clock: Clock) -> None:
    gate, begun = await busy(scheduler)
    waiting = asyncio.create_task(scheduler.run(Large(), cost=1))
    late = asyncio.create_task(scheduler.run(Large(), cost=1, deadline=clock.now + 1))
    await asyncio.sleep(0)
    for task in (begun, waiting):
        task.cancel()
    await asyncio.wait([begun, waiting])
    clock.now += 2
    scheduler.submit(Told(late.cancel), lambda _: None, None, cost=1, deadline=None, tenant="")
    gate.leave.set()
    causes = []
    for task in (begun, waiting, late):
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        causes.append(type(caught.value.__cause__))
    assert causes == [type(None), DeadlineExpired, DeadlineExpired]


async def test_a_request_that_was_withdrawn_takes_no_memory(scheduler: Scheduler) -> None:
    """It is in the queue until its turn comes, and nothing bounds how many such there are."""
    gate, held = await busy(scheduler)
    left = await withdrawn(scheduler)
    gc.collect()
    assert left() is None
    gate.leave.set()
    await held


async def test_an_operation_of_a_decode_call_that_was_withdrawn_takes_none_either(
    scheduler: Scheduler,
) -> None:
    gate, held = await busy(scheduler)
    message = pb.DecodeOperation(op_id=1, seal=pb.SealStreamRequest())
    pending = Pending(message, 900, None, lambda *told: pytest.fail("nobody waits for this any more"))
    pending.work = Large()
    left = weakref.ref(pending.work)
    operation = scheduler.submit(pending, Large(), pending.work, cost=900, deadline=None, tenant="")
    pending.cancel()
    scheduler.withdraw(operation)
    del pending, operation
    gc.collect()
    assert left() is None
    gate.leave.set()
    await held
    await scheduler.run(lambda: None, cost=1)
