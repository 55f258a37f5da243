"""One worker of a load generator, in this process, and real servers."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
import pytest
from transports import channel_to, to

from rondel.client import AttentionClient
from rondel.client.load.check import Findings
from rondel.client.load.connection import Connection
from rondel.client.load.job import Done, Job, Message, Opened
from rondel.client.load.recorder import DISTURBED, OK, UNFINISHED, Totals
from rondel.client.load.schedule import Closed, Constant, Poisson, Schedule
from rondel.client.load.worker import Work
from rondel.client.load.workload import Kind, Workload
from rondel.decoder.errors import BudgetExceeded, QuotaExceeded
from rondel.v1 import attention_pb2 as pb

pytestmark = pytest.mark.alone

ALL_OF_IT = Workload(
    layers=2,
    query_heads=4,
    kv_heads=2,
    head_dim=16,
    window=30,
    tokens=2,
    prompt=40,
    attends=0.15,
    truncates=0.15,
    forks=0.15,
    moves=0.15,
    seed=2,
    operations=4,
)
TOGETHER = replace(ALL_OF_IT, batch=3, operations=10)
STEPS = Workload(layers=2, query_heads=4, kv_heads=2, head_dim=16, window=30)
SCHEDULES = [Constant(rate=100), Poisson(rate=100), Closed(concurrency=3)]


def job(target: str, schedule: Schedule, workload: Workload, **changed: Any) -> Job:
    fields: dict[str, Any] = {
        "name": "worker 0",
        "target": target,
        "access": to(target),
        "schedule": schedule,
        "streams": tuple(range(6)),
        "workload": workload,
        "duration": 0.4,
        "warmup": 0.0,
        "drain": 20.0,
        "timeout": 20.0,
        "check": 1.0,
    }
    return Job(**{**fields, **changed})


async def done(job: Job, said: list[Message] | None = None) -> Done:
    """What a worker process does between its first and its last message."""
    async with Connection(job.target, timeout=job.timeout, **job.access) as connection:
        heard: list[Message] = [] if said is None else said
        work = Work(job, connection, await connection.info(), heard.append)
        try:
            await work.open()
            await work.load(time.perf_counter(), asyncio.Queue())
        finally:
            await work.leave()
        return await work.done()


@pytest.fixture
def nothing_left(address: str) -> Iterator[None]:
    """The server has no stream and has reserved nothing when the test is over."""
    yield
    with AttentionClient(address, **to(address)) as client:
        info = client.info()
    assert (info.streams, info.reserved) == (0, 0)


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("schedule", SCHEDULES, ids=["constant", "poisson", "closed"])
async def test_all_kinds_of_operations_are_answered_right(address: str, schedule: Schedule) -> None:
    found = await done(job(address, schedule, ALL_OF_IT))
    totals = Totals([found.tallies])
    assert set(totals.statuses) == {OK}
    assert found.findings.checked > 0
    assert (found.findings.wrong, found.findings.unchecked) == (0, 0), found.findings.first_wrong
    if isinstance(schedule, Constant):
        assert totals.statuses[OK] == 40
        assert set(totals.latency) >= {"all", *Kind}


@pytest.mark.usefixtures("nothing_left")
async def test_cancelled_calls_leave_no_stream_behind_and_no_answer_wrong(address: str) -> None:
    found = await done(job(address, Closed(concurrency=4), ALL_OF_IT, cancels=0.4))
    totals = Totals([found.tallies])
    assert found.cancelled > 0
    assert set(totals.statuses) == {OK}
    assert totals.latency[DISTURBED].count > 0
    assert (found.findings.wrong, found.findings.unchecked) == (0, 0), found.findings.first_wrong


@pytest.mark.usefixtures("nothing_left")
async def test_broken_connections_leave_no_stream_behind_and_no_answer_wrong(proxy: Any) -> None:
    breaks = (0.1, 0.2, 0.3)
    workload = replace(ALL_OF_IT, moves=0.0)  # an import has a connection of its own
    found = await done(job(proxy.address, Closed(concurrency=4), workload, reconnects=breaks))
    assert found.reconnected == 3
    assert set(Totals([found.tallies]).statuses) == {OK}
    assert (found.findings.wrong, found.findings.unchecked) == (0, 0), found.findings.first_wrong
    # A break is one of the connection, not of the channel alone. (On a slow machine two may come as one.)
    assert len(proxy._open) > 2


@pytest.mark.usefixtures("nothing_left")
async def test_a_batch_is_stepped_in_one_call_per_layer(address: str) -> None:
    """Seven streams in batches of three: the last one has one. All are opened, and closed again."""
    schedule, streams = Constant(rate=60), tuple(range(7))
    async with between(address, Between, 0) as (target, handler):
        found = await done(job(target, schedule, replace(STEPS, batch=3), streams=streams))
    totals = Totals([found.tallies])
    assert totals.statuses == {OK: 24}
    assert handler.steps == 24 * 2
    assert found.findings == Findings(checked=8 * 2 * 7)
    assert totals.tokens <= 8 * 7  # those in time: all of them where nobody else has the machine


@pytest.mark.usefixtures("nothing_left")
async def test_batches_under_all_faults_are_answered_right(proxy: Any) -> None:
    breaks = (0.1, 0.2, 0.3)
    found = await done(
        job(proxy.address, Closed(concurrency=2), TOGETHER, cancels=0.3, reconnects=breaks, duration=0.8)
    )
    assert found.cancelled > 0
    assert set(Totals([found.tallies]).statuses) == {OK}
    assert found.findings.checked > 0
    assert (found.findings.wrong, found.findings.unchecked) == (0, 0), found.findings.first_wrong


@pytest.mark.usefixtures("nothing_left")
async def test_a_share_of_the_streams_is_looked_at(address: str) -> None:
    found = await done(job(address, Constant(rate=100), ALL_OF_IT, check=0.0))
    assert found.findings.checked == 0
    assert found.findings.unchecked > 0


@pytest.mark.usefixtures("nothing_left")
async def test_a_victim_tells_its_handles(address: str) -> None:
    said: list[Message] = []
    await done(job(address, Closed(concurrency=2), STEPS, victim=True), said)
    handles = {message.handle for message in said if isinstance(message, Opened)}
    assert len(handles) == 6
    async with Connection(address, timeout=5, **to(address)) as connection:
        stream = await connection.open(STEPS.spec())
        assert await connection.close_handle(stream.handle)
        assert not await connection.close_handle(handles.pop())


@pytest.mark.usefixtures("nothing_left")
async def test_more_streams_than_the_server_has_room_for_are_an_error_at_once(address: str) -> None:
    with pytest.raises((QuotaExceeded, BudgetExceeded)):
        await done(job(address, Constant(rate=100), STEPS, streams=tuple(range(70))))


class Between(grpc.GenericRpcHandler):
    """A server that passes calls on to another, and does something to one of the answers to Step."""

    def __init__(self, channel: grpc.aio.Channel, chosen: int) -> None:
        self._channel = channel
        self._chosen = chosen
        self.steps = 0
        self.asleep = asyncio.Event()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        method = str(details.method)

        async def passed_on(request: bytes, context: object) -> bytes:
            reply: bytes = await self._channel.unary_unary(method)(request)
            if method.endswith("/Step"):
                self.steps += 1
                if self.steps == self._chosen:
                    return await self.change(reply)
            return reply

        return grpc.unary_unary_rpc_method_handler(passed_on)  # type: ignore[arg-type]

    async def change(self, reply: bytes) -> bytes:
        """The lowest bit of the last number of the answer, the other way round."""
        message = pb.StepResponse.FromString(reply)
        out = message.results[0].out
        out.data = out.data[:-4] + bytes([out.data[-4] ^ 1]) + out.data[-3:]
        return message.SerializeToString()


class Silent(Between):
    """Never gives that answer."""

    async def change(self, reply: bytes) -> bytes:
        await self.asleep.wait()
        return reply


@asynccontextmanager
async def between(address: str, kind: type[Between], chosen: int) -> AsyncIterator[tuple[str, Between]]:
    async with channel_to(address) as channel:
        handler = kind(channel, chosen)
        server = grpc.aio.server()
        server.add_generic_rpc_handlers([handler])
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield f"127.0.0.1:{port}", handler
        finally:
            handler.asleep.set()
            await server.stop(1.0)


@pytest.mark.usefixtures("nothing_left")
async def test_one_wrong_bit_in_one_answer_is_found(address: str) -> None:
    async with between(address, Between, 25) as (target, _):
        found = await done(job(target, Constant(rate=100), STEPS, access={}))
    assert found.findings.checked == 80
    assert found.findings.wrong == 1
    assert found.findings.first_wrong is not None
    assert "1 of 64 numbers differ, the first at [0, 3, 15]" in found.findings.first_wrong


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("schedule", SCHEDULES[::2], ids=["constant", "closed"])
async def test_what_is_never_answered_counts_with_the_time_it_has_waited(
    address: str, schedule: Schedule
) -> None:
    """One stream's answer is kept from it: what was due on that stream is UNFINISHED, and slow."""
    async with between(address, Silent, 12) as (target, _):
        found = await done(job(target, schedule, STEPS, access={}, drain=0.3))
    totals = Totals([found.tallies])
    assert totals.statuses[UNFINISHED] >= 1
    if isinstance(schedule, Constant):
        assert totals.statuses[UNFINISHED] >= 3
        assert totals.statuses[UNFINISHED] + totals.statuses[OK] == 40
    assert totals.latency["all"].milliseconds(100) > 300
