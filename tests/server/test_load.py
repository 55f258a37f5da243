"""A worker that is busy: deadlines, cancellation, overload."""

import asyncio
import logging
import time

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from held import Held
from rawclient import Client, Failure, Tokens, item
from transports import waiting_channel_to

from rondel.decoder.spec import StreamSpec
from rondel.server.app import Server
from rondel.server.config import ServerConfig
from rondel.v1 import attention_pb2 as pb
from rondel.v1.attention_pb2_grpc import AttentionServiceStub


async def arrived(server: Server, size: int) -> None:
    """Returns when so many bytes of requests are waiting."""
    while server.scheduler.waiting_bytes < size:
        await asyncio.sleep(0.002)


async def test_calls_are_answered_while_the_worker_is_busy(server: Server, client: Client) -> None:
    async with Held(server):
        check = health_pb2_grpc.HealthStub(client.channel).Check(health_pb2.HealthCheckRequest())
        assert (await asyncio.wait_for(check, 2)).status == health_pb2.HealthCheckResponse.SERVING


async def test_a_deadline_that_passes_in_the_queue_leaves_the_stream_as_it_was(
    server: Server, client: Client, tokens: Tokens
) -> None:
    stream = await client.open()
    request = pb.StepRequest(layer=0, items=[item(stream, 0, *tokens.qkv(1))])
    async with Held(server):
        calls = [client.attention.Step(request, timeout=0.05) for _ in range(20)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert {outcome.code() for outcome in outcomes} == {grpc.StatusCode.DEADLINE_EXCEEDED}
    assert list((await client.get(stream)).layer_lengths) == [0, 0, 0]
    assert server.scheduler.waiting_bytes == 0


async def test_a_cancelled_call_that_waits_is_never_begun(
    server: Server, client: Client, tokens: Tokens
) -> None:
    stream = await client.open()
    request = pb.StepRequest(layer=0, items=[item(stream, 0, *tokens.qkv(1))])
    async with Held(server):
        calls = [client.attention.Step(request) for _ in range(20)]
        await arrived(server, 20 * request.ByteSize())
        for call in calls:
            call.cancel()
        while server._door.inside:
            await asyncio.sleep(0.002)
    assert list((await client.get(stream)).layer_lengths) == [0, 0, 0]
    assert server.scheduler.waiting_bytes == 0


class TestSmallQueue:
    @pytest.fixture
    def config(self) -> ServerConfig:
        return ServerConfig(port=0, budget_bytes=16 << 20, queue_bytes=20_000)

    async def test_overload_is_refused_at_once_and_changes_nothing(
        self, server: Server, client: Client
    ) -> None:
        spec = StreamSpec.uniform(layers=1, query_heads=4, kv_heads=2, head_dim=64, window=64)
        one = Tokens(np.random.default_rng(3), spec)
        streams = [await client.open(spec) for _ in range(20)]
        requests = [pb.StepRequest(items=[item(s, 0, *one.qkv(1))]) for s in streams]
        async with Held(server):
            calls = [asyncio.ensure_future(client.attention.Step(r)) for r in requests]
            refused: set[asyncio.Future[pb.StepResponse]] = set()
            while len(refused) < len(calls) - 20_000 // requests[0].ByteSize():
                done, _ = await asyncio.wait(calls, timeout=0.05)
                refused = done
        for call in refused:
            error = call.exception()
            assert isinstance(error, grpc.aio.AioRpcError)
            failed = Failure.of_call(error)
            assert (failed.reason, failed.code) == ("OVERLOADED", grpc.StatusCode.UNAVAILABLE)
            assert int(failed.facts["retry_after_ms"]) >= 1
        await asyncio.wait(calls)
        for stream, call in zip(streams, calls, strict=True):
            assert (await client.get(stream)).committed_length == (0 if call in refused else 1)


async def test_everything_is_given_back_after_aborted_streams(
    server: Server, client: Client, tokens: Tokens
) -> None:
    before = server.arena.stats()
    for _ in range(20):
        streams = [await client.open() for _ in range(10)]
        calls = [asyncio.ensure_future(client.append(s, 0, *tokens.kv(64))) for s in streams]
        await asyncio.sleep(0)
        for call in calls[::2]:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await asyncio.gather(*(client.close(stream) for stream in streams))
    assert server.arena.stats() == before
    assert len(server.streams) == 0


async def test_clients_that_leave_are_not_worth_a_log_entry(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Deadlines that pass while the answer, or the error, is on its way: some hundred of some thousand."""

    def leave() -> None:
        with waiting_channel_to(server.address) as channel:
            stub = AttentionServiceStub(channel)
            for round_ in range(300):
                timeout = 0.004 + 0.0007 * (round_ % 12)
                calls = [
                    call.future(request, timeout=timeout)
                    for call, request in (
                        (stub.GetServerInfo, pb.GetServerInfoRequest()),
                        (stub.GetStream, pb.GetStreamRequest()),
                        (stub.Step, pb.StepRequest()),
                    )
                    for _ in range(3)
                ]
                for call in calls:
                    call.exception()

    with caplog.at_level(logging.WARNING):
        leaving = asyncio.create_task(asyncio.to_thread(leave))
        while not leaving.done():
            server.scheduler.post(lambda: time.sleep(0.006))
            await asyncio.sleep(0.006)
        await leaving
        await server.stop(drain_seconds=0.5)
    assert caplog.text == ""
