"""Many callers of one stream, and many who hold calls without using them."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack

import grpc
import grpc.aio
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from idle_run import fill
from rawclient import Client, Failure, Tokens, item
from rawdecode import Decode
from readers import OfDecodes, OfExports, Readers
from snapshots import exported
from stalled_run import PER_EXPORT, idle
from watched import OWN_CHANNEL, Watched

from rondel.server.app import Server
from rondel.v1 import attention_pb2 as pb

DEADLINE = 20.0
HARMLESS = {
    *("OK", "SEQUENCE_GAP", "POSITION_CONFLICT", "STALE_GENERATION", "SESSION_BUSY", "ROLLBACK_TOO_DEEP")
}


async def test_many_producers_of_one_stream_each_get_an_answer(client: Client) -> None:
    """Two writers on one stream made gRPC lose the status (grpc issue 24758). Every call of twenty callers
    ends before its deadline, in a way that the contract names, and so do operations of Decode calls."""
    stream = await client.open()
    endings: Counter[str] = Counter()

    async def produce(number: int) -> None:
        rng, tokens = random.Random(number), Tokens(np.random.default_rng(number))
        for _ in range(12):
            state = await client.get(stream)
            at, generation = state.committed_length, state.generation
            k, v = tokens.kv(1)
            match rng.randrange(5):
                case 0:
                    call: Awaitable[object] = client.append(stream, at, k, v, generation=generation)
                case 1:
                    part = item(stream, at, tokens.q(1), k[0], v[0], generation=generation)
                    call = client.step(0, part)
                case 2:
                    call = client.fork(stream, at, generation=generation, most=0)
                case 3:
                    call = exported(client, stream, 256)
                case _:
                    less = pb.TruncateStreamRequest(
                        stream=stream, length=max(0, at - 1), generation=generation
                    )
                    call = client.attention.TruncateStream(less)
            try:
                await asyncio.wait_for(call, DEADLINE)
                endings["OK"] += 1
            except grpc.aio.AioRpcError as error:
                endings[Failure.of_call(error).reason] += 1

    async def converse() -> None:
        async with Decode(client) as call:
            for _ in range(6):
                attaching = call.op(1, attach=pb.AttachStreamRequest(stream=stream))
                asking = [call.op(1, append=pb.AppendTokenRequest(position=n)) for n in range(20)]
                asked = call.ask(attaching, *asking, call.op(1, release={}))
                results = await asyncio.wait_for(asked, DEADLINE)
                assert len(results) == 22
                assert not results[0].status.code

    callers = [produce(number) for number in range(20)] + [converse() for _ in range(4)]
    await asyncio.gather(*callers)
    assert set(endings) <= HARMLESS, endings
    assert endings.total() == 20 * 12
    assert endings["OK"] > 20


async def nothing_yet() -> AsyncIterator[pb.ImportStreamRequest]:
    """The requests of somebody who has not begun to send them."""
    await asyncio.Event().wait()
    yield pb.ImportStreamRequest()


@pytest.mark.alone
async def test_two_hundred_idle_calls_and_watches_starve_nobody(server: Server) -> None:
    """Open streams used up the threads of servers, and health checks hung (grpc issue 7052)."""
    async with AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(server.address, options=OWN_CHANNEL))
            for _ in range(5)
        ]
        held: list[grpc.aio.Call] = []
        for number in range(200):
            client = Client(channels[number % 4])
            match number % 3:
                case 0:
                    held.append(client.attention.Decode())
                    await held[-1].read()
                case 1:
                    held.append(client.attention.ImportStream(nothing_yet()))
                case _:
                    watch = health_pb2_grpc.HealthStub(client.channel).Watch(health_pb2.HealthCheckRequest())
                    await watch.read()
                    held.append(watch)
        client = Client(channels[4])
        taken = []
        for _ in range(30):
            began = time.monotonic()
            await client.info()
            check = health_pb2_grpc.HealthStub(client.channel).Check(health_pb2.HealthCheckRequest())
            assert (await check).status == health_pb2.HealthCheckResponse.SERVING
            taken.append(time.monotonic() - began)
        assert sorted(taken)[len(taken) // 2] < 0.1
        assert max(taken) < 2.0
        for call in held:
            call.cancel()


async def test_idle_streams_and_readers_who_stall_hold_little() -> None:
    """A short form of `make idle-streams` and `make stalled-readers`."""
    with Watched(budget_bytes=256 << 20, log_level="warning", decode_window_bytes=2 << 20) as server:
        before = await asyncio.to_thread(server.vitals)
        await fill(server.address, 300)
        filled = await asyncio.to_thread(server.vitals)
        assert filled.streams == 300
        assert filled.rss - before.rss < 300 * (64 << 10)
        await asyncio.sleep(0.5)
        assert (await asyncio.to_thread(server.vitals)).cpu_seconds - filled.cpu_seconds < 0.1
        for kind in (OfExports, OfDecodes):
            async with kind(server.address, 20) as readers:
                await stalled_readers(server, readers)


async def stalled_readers(server: Watched, readers: Readers) -> None:
    """What they hold is within their credit, and they leave nothing."""
    before = await asyncio.to_thread(server.vitals)
    await readers.begin()
    await idle(server)
    now = await asyncio.to_thread(server.vitals)
    growth = now.rss - before.rss - (now.resident - before.resident)
    most = readers.window if isinstance(readers, OfDecodes) else PER_EXPORT
    assert now.tasks > before.tasks + readers.count
    assert growth < readers.count * most + (8 << 20)  # and what the first of a kind takes
    readers.end()
    after = await asyncio.to_thread(server.settled, before, 20.0)
    assert after.tasks <= before.tasks


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seconds", [10, 30])
async def test_keepalive_on_an_idle_decode_call_is_tolerated(server: Server, seconds: int) -> None:
    """A server that counts pings as abuse ends the connection with GOAWAY, too_many_pings (sglang 19986)."""
    options = [
        *OWN_CHANNEL,
        ("grpc.keepalive_time_ms", seconds * 1000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    async with grpc.aio.insecure_channel(server.address, options=options) as channel:
        client = Client(channel)
        async with Decode(client) as call:
            await call.open(1)
            state = channel.get_state()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(channel.wait_for_state_change(state), 65 if seconds == 10 else 100)
            await call.open(2)  # the very same call
