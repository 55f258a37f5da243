"""Short operations that find nothing else: carried out where they came in, on the loop's thread."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from held import Clock, Held, busy
from rawclient import Client, Tokens
from rawdecode import Decode, part

from rondel.decoder.errors import DeadlineExpired, Draining, InvalidShape
from rondel.server.app import Server
from rondel.server.dispatch import AT_ONCE_SECONDS
from rondel.server.observer import Observer
from rondel.server.operation import Load, Operation
from rondel.server.pending import Pending
from rondel.server.scheduler import Scheduler
from rondel.v1 import attention_pb2 as pb
from rondel.v1.wire import to_tensor

Joint = Callable[[list[int]], list[str]]


class Told:
    """What the scheduler settles."""

    def __init__(self) -> None:
        self.answers: list[object] = []
        self.left = False

    def done(self) -> bool:
        return bool(self.answers) or self.left

    def cancelled(self) -> bool:
        return self.left

    def set_result(self, result: object) -> None:
        self.answers.append(result)

    def set_exception(self, error: Exception) -> None:
        self.answers.append(error)


class Seen(Observer):
    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def carried_out(self, operations: int, seconds: float) -> None:
        self.told.append(("carried out", operations))

    def waited(self, seconds: float, tenant: str) -> None:
        self.told.append(("waited", seconds, tenant))


def begin(scheduler: Scheduler, work: Joint, told: Told, **more: Any) -> Operation:
    options: dict[str, Any] = {"cost": 10, "deadline": None, "tenant": "t", "joint": True, "at_once": True}
    return scheduler.submit(told, work, 7, **{**options, **more})


async def rest(scheduler: Scheduler) -> None:
    """Until the worker has nothing to do."""
    await scheduler.run(lambda: None, cost=1)
    while not scheduler._worker._idle:
        await asyncio.sleep(0.001)


async def test_it_is_over_before_the_call_returns(clock: Clock) -> None:
    seen, threads = Seen(), list[int]()
    scheduler = Scheduler("test", queue_bytes=1000, clock=clock, observer=seen)
    await rest(scheduler)
    seen.told.clear()

    def work(arguments: list[int]) -> list[str]:
        threads.append(threading.get_ident())
        assert scheduler.tenant(0) == "t"
        scheduler.check(0)
        return [f"{each}" for each in arguments]

    told = Told()
    begin(scheduler, work, told, deadline=clock.now + 1)
    assert told.answers == ["7"]
    assert threads == [threading.get_ident()]
    assert seen.told == [("waited", 0.0, "t"), ("carried out", 1)]
    assert scheduler.waiting_bytes == 0
    assert scheduler.busy_seconds == 0
    assert await scheduler.run(lambda: "the worker goes on", cost=1)
    await scheduler.stop()


async def test_an_error_is_its_own(scheduler: Scheduler) -> None:
    await rest(scheduler)

    def work(arguments: list[int]) -> list[str]:
        raise InvalidShape("wrong", got="a", expected="b")

    told = Told()
    begin(scheduler, work, told)
    assert isinstance(told.answers[0], InvalidShape)
    assert await scheduler.run(lambda: "well", cost=1) == "well"


async def test_what_waits_is_not_overtaken(scheduler: Scheduler) -> None:
    order: list[str] = []
    gate, task = await busy(scheduler)
    first = asyncio.create_task(scheduler.run(lambda: order.append("first"), cost=1))
    await asyncio.sleep(0)
    told = Told()

    def work(arguments: list[int]) -> list[str]:
        order.append("second")
        return ["second"]

    begin(scheduler, work, told, tenant="")
    assert told.answers == []
    gate.leave.set()
    await asyncio.gather(task, first)
    await rest(scheduler)
    assert order == ["first", "second"]
    assert told.answers == ["second"]


async def test_what_is_long_is_for_the_worker(scheduler: Scheduler) -> None:
    await rest(scheduler)
    threads: list[int] = []

    def work(arguments: list[int]) -> list[str]:
        threads.append(threading.get_ident())
        return ["long"]

    told = Told()
    begin(scheduler, work, told, load=Load("step", 1, int(AT_ONCE_SECONDS * 1e11)))
    assert told.answers == []
    await rest(scheduler)
    assert told.answers == ["long"]
    assert threads != [threading.get_ident()]


async def test_what_others_compute_beside_it_is_not_waited_for(clock: Clock) -> None:
    """Kernels share their threads: on the loop it would wait for those of the other worker."""
    other = Scheduler("other", queue_bytes=1000, clock=clock)
    scheduler = Scheduler("test", queue_bytes=1000, clock=clock, beside=other)
    await rest(scheduler)
    threads: list[int] = []

    def work(arguments: list[int]) -> list[str]:
        threads.append(threading.get_ident())
        return ["done"]

    gate, task = await busy(other)
    first, second = Told(), Told()
    begin(scheduler, work, first)
    assert first.answers == []
    gate.leave.set()
    await task
    await rest(other)
    await rest(scheduler)
    begin(scheduler, work, second)
    assert first.answers == second.answers == ["done"]
    assert [each == threading.get_ident() for each in threads] == [False, True]
    await other.stop()
    await scheduler.stop()


async def test_what_is_refused_is_refused_all_the_same(clock: Clock) -> None:
    scheduler = Scheduler("test", queue_bytes=1000, clock=clock)
    await rest(scheduler)
    ran: list[int] = []

    def work(arguments: list[int]) -> list[str]:
        ran.append(1)
        return ["ran"]

    with pytest.raises(DeadlineExpired):
        begin(scheduler, work, Told(), deadline=clock.now)
    await scheduler.stop()
    with pytest.raises(Draining):
        begin(scheduler, work, Told())
    assert not ran


def steps_on_loop(server: Server) -> list[bool]:
    """For each step from now on, whether it is carried out on the loop's thread."""
    on_loop: list[bool] = []
    stepping = server.scheduler._worker.work

    def work(batch: Any) -> bool:
        if batch.operations and batch.operations[0].joint:
            on_loop.append(threading.current_thread() is threading.main_thread())
        return stepping(batch)

    server.scheduler._worker.work = work  # type: ignore[method-assign]
    return on_loop


async def test_a_lone_step_of_a_decode_call(client: Client, server: Server, tokens: Tokens) -> None:
    """On the loop when nothing else is there, else by a worker; the answers are the same."""
    on_loop = steps_on_loop(server)
    async with Decode(client) as decode:
        await decode.open(1)

        async def step(position: int) -> None:
            k, v = tokens.kv(1)
            (result,) = await decode.step(0, part(1, position, tokens.q(1), k[0], v[0]))
            assert result.layer_length == position + 1

        for position in range(20):
            await step(position)
        assert on_loop.count(True) > 10
        on_loop.clear()
        async with Held(server):
            waiting = asyncio.ensure_future(step(20))
            while not server.scheduler.waiting_bytes:
                await asyncio.sleep(0.001)
            assert not waiting.done()
        await waiting
        gate, task = await busy(server._generator)
        await step(21)
        gate.leave.set()
        await task
        assert on_loop == [False, False]


async def test_embeddings_are_for_the_worker(client: Client, server: Server) -> None:
    """No estimate knows how large a projection is."""
    async with Decode(client) as decode:
        await decode.open(1)
        on_loop = steps_on_loop(server)
        for _ in range(5):
            await rest(server.scheduler)
            await decode.step(0, pb.StepItem(stream_ref=1, embeddings=to_tensor(np.ones((1, 8), np.float32))))
    assert on_loop == [False] * 5


async def test_nothing_of_it_stays(client: Client, server: Server, tokens: Tokens) -> None:
    """What a step needed is gone with its answer, and not only when the garbage collector comes by."""
    async with Decode(client) as decode:
        await decode.open(1)
        gc.collect()
        gc.disable()
        try:
            for position in range(50):
                k, v = tokens.kv(1)
                await decode.step(0, part(1, position, tokens.q(1), k[0], v[0]))
            while not server.scheduler._worker._idle:
                await asyncio.sleep(0.001)
            left = sum(isinstance(each, Operation | Pending) for each in gc.get_objects())
        finally:
            gc.enable()
        assert left == 0
