"""More than the worker can do, with deadlines of 1 to 50 ms; and what is told of it."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Sequence

import grpc
import numpy as np
import pytest
from held import Clock, busy
from rawclient import Client, Failure, Tokens, item

from rondel.decoder.batch import Step, StepResult, run_steps
from rondel.decoder.errors import DeadlineExpired, Overloaded
from rondel.server import stepping
from rondel.server.app import Server
from rondel.server.config import ServerConfig
from rondel.server.observer import Observer
from rondel.server.scheduler import Scheduler
from rondel.v1 import attention_pb2 as pb

KERNEL_SECONDS = 0.004
STREAMS = 40


class TestShortDeadlines:
    @pytest.fixture
    def config(self) -> ServerConfig:
        return ServerConfig(port=0, budget_bytes=256 << 20, max_queue_seconds=0.1)

    @pytest.fixture
    def late(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        """Kernels that take their time; by how much any began after the deadline of a call that it is for."""
        late: list[float] = []

        def slow(steps: Sequence[Step]) -> list[StepResult | Exception]:
            now, batch = time.monotonic(), server.scheduler._worker.at_hand
            assert batch is not None
            begun = [each.deadline for each in batch.operations if each.deadline and not each.stopped]
            # A thread can be stopped for a moment between its last look at the clock and here.
            late.extend(now - deadline for deadline in begun if now - deadline > 0.01)
            time.sleep(KERNEL_SECONDS * len(steps))
            return run_steps(steps)

        monkeypatch.setattr(stepping, "run_steps", slow)
        return late

    async def test_no_kernel_begins_after_its_deadline(
        self, server: Server, client: Client, late: list[float], rng: np.random.Generator
    ) -> None:
        tokens = Tokens(rng)
        streams = [await client.open() for _ in range(STREAMS)]
        outcomes: Counter[str] = Counter()
        lengths = [0] * STREAMS

        async def drive(number: int) -> None:
            for _ in range(12):
                request = pb.StepRequest(items=[item(streams[number], lengths[number], *tokens.qkv(1))])
                try:
                    reply = await client.attention.Step(request, timeout=rng.uniform(0.001, 0.05))
                except grpc.aio.AioRpcError as error:
                    code = error.code()
                    if code is grpc.StatusCode.UNAVAILABLE:
                        failure = Failure.of_call(error)
                        assert (failure.reason, int(failure.facts["retry_after_ms"]) >= 1) == (
                            "OVERLOADED",
                            True,
                        )
                    outcomes[code.name] += 1
                    # It may have been carried out, and its answer have come too late.
                    lengths[number] = (await client.get(streams[number])).layer_lengths[0]
                else:
                    outcomes["OK" if not reply.results[0].status.code else "LATE"] += 1
                    lengths[number] = reply.results[0].layer_length or lengths[number]

        await asyncio.gather(*(drive(number) for number in range(STREAMS)))
        assert late == []
        assert server.scheduler.late_starts == 0
        assert set(outcomes) <= {"OK", "LATE", "UNAVAILABLE", "DEADLINE_EXCEEDED"}
        assert outcomes["UNAVAILABLE"] + outcomes["DEADLINE_EXCEEDED"] > 0
        # A slow machine may answer none of them in time; what has time is carried out as ever.
        (result,) = await client.step(0, item(streams[0], lengths[0], *tokens.qkv(1)))
        assert not result.status.code, result.status.message
        assert (server.scheduler.waiting_bytes, server.scheduler.waiting_seconds) == (0, 0.0)


class Counting(Observer):
    """Notes what it is told, and on which threads."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []
        self.threads: set[str] = set()

    def refused(self, reason: str, tenant: str) -> None:
        self.told.append(("refused", reason, tenant))

    def waited(self, seconds: float, tenant: str) -> None:
        self._on_worker("waited", seconds, tenant)

    def expired(self, tenant: str) -> None:
        self._on_worker("expired", tenant)

    def cancelled(self, tenant: str) -> None:
        self._on_worker("cancelled", tenant)

    def carried_out(self, operations: int, seconds: float) -> None:
        self._on_worker("carried_out", operations)

    def _on_worker(self, *what: object) -> None:
        self.threads.add(threading.current_thread().name)
        self.told.append(what)


async def test_what_becomes_of_operations_is_told(clock: Clock) -> None:
    told = Counting()
    scheduler = Scheduler("test", queue_bytes=1000, clock=clock, observer=told)
    gate, task = await busy(scheduler)

    def work(numbers: list[int]) -> list[int]:
        return numbers

    joint = [asyncio.create_task(scheduler.run_jointly(work, n, cost=1, tenant="a")) for n in range(3)]
    left = asyncio.create_task(scheduler.run(lambda: None, cost=1, tenant="left"))
    late = asyncio.create_task(scheduler.run(lambda: None, cost=1, tenant="late", deadline=105.0))
    await asyncio.sleep(0)
    left.cancel()
    with pytest.raises(Overloaded):
        await scheduler.run(lambda: None, cost=5000, tenant="b")
    with pytest.raises(DeadlineExpired):
        await scheduler.run(lambda: None, cost=1, tenant="b", deadline=100.0)
    clock.now = 106.0
    gate.leave.set()
    await asyncio.gather(task, *joint)
    with pytest.raises(DeadlineExpired):
        await late
    await scheduler.stop()
    assert Counter(told.told) == Counter(
        [
            *(("refused", "overloaded", "b"), ("refused", "deadline_expired", "b")),
            *(("waited", 0.0, ""), ("carried_out", 1)),
            *(("waited", 6.0, "a"),) * 3,
            *(("carried_out", 3), ("expired", "late"), ("cancelled", "left")),
        ]
    )
    assert told.threads == {"rondel-test"}
