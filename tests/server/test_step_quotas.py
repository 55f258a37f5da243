"""Steps per second: counted in every kind of call, refused beyond the rate, and nothing to the others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from held import Held
from rawclient import SPEC, Client, Failure, Tokens, item
from rawdecode import Decode, failed, part, tokens_of
from tenancy import TOKENS, bringing, checked, hint, limit, refusal, still, with_tenants

from rondel.server import steps
from rondel.server.app import Server
from rondel.server.config import ServerConfig
from rondel.v1 import attention_pb2 as pb
from rondel.v1 import tensor_pb2
from rondel.v1.wire import to_tensor

Connect = Callable[[str], Client]


@pytest.fixture
def config(tmp_path: Path) -> ServerConfig:
    return with_tenants(ServerConfig(port=0, budget_bytes=64 << 20, drain_seconds=5.0), tmp_path)


@pytest.fixture
def alpha(client: Client) -> Client:
    return bringing(client, TOKENS["alpha"])


@pytest.fixture
def beta(client: Client) -> Client:
    return bringing(client, TOKENS["beta"])


RATE = 30
Streams = tuple[pb.StreamRef, pb.StreamRef]
Kind = Callable[[Client, Streams, Tokens], Awaitable[Failure | None]]


async def outcome(call: Any) -> Failure | None:
    """What a call has failed with, if it has."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return Failure.of_call(error)
    return None


async def append(client: Client, streams: Streams, tokens: Tokens) -> Failure | None:
    return await outcome(client.append(streams[0], 3, *tokens.kv(2)))


async def attend(client: Client, streams: Streams, tokens: Tokens) -> Failure | None:
    return await outcome(client.attend(streams[0], 0, tokens.q(3)))


async def step(client: Client, streams: Streams, tokens: Tokens) -> Failure | None:
    return await outcome(client.step(0, *(item(stream, 3, *tokens.qkv(4)) for stream in streams)))


def decoded(operation: Callable[[Decode, int, Tokens], pb.DecodeOperation]) -> Kind:
    """The same as an operation of a Decode call."""

    async def act(client: Client, streams: Streams, tokens: Tokens) -> Failure | None:
        async with Decode(client) as decode:
            (attached,) = await decode.ask(decode.op(1, attach=pb.AttachStreamRequest(stream=streams[0])))
            generation = attached.attach.stream.generation
            (result,) = await decode.ask(operation(decode, generation, tokens))
            return failed(result) if result.status.code else None

    return act


KINDS: dict[str, tuple[int, Kind]] = {
    "append": (2 * SPEC.layers, append),
    "attend": (3, attend),
    "step": (8, step),
    "decode append": (
        2 * SPEC.layers,
        decoded(lambda decode, number, t: decode.op(1, append=tokens_of(3, *t.kv(2), generation=number))),
    ),
    "decode attend": (
        3,
        decoded(
            lambda decode, number, t: decode.op(
                1, attend=pb.AttendRequest(generation=number, q=to_tensor(t.q(3)))
            )
        ),
    ),
    "decode step": (
        4,
        decoded(lambda decode, number, t: decode.stepping(0, part(1, 3, *t.qkv(4), generation=number))),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_steps(alpha: Client, beta: Client, server: Server, tokens: Tokens, kind: str) -> None:
    number, act = KINDS[kind]
    streams = await alpha.open(), await alpha.open()
    for stream in streams:
        await alpha.append(stream, 0, *tokens.kv(3))
    clock = still(server)
    limit(server, f"steps_per_second = {RATE}")
    assert (await alpha.info()).tenant.steps_per_second == RATE
    server.security.tenants.get("alpha").steps.take(RATE - number + 1)
    for _ in range(2):  # what is refused takes nothing
        refused = await act(alpha, streams, tokens)
        assert refused is not None
        assert hint(checked(refused, "steps_per_second")) == pytest.approx(1 / RATE, abs=2e-3)
    assert [list((await alpha.get(stream)).layer_lengths) for stream in streams] == [[3] * 3] * 2
    theirs = await beta.open()
    await beta.append(theirs, 0, *tokens.kv(50))
    clock.now += 1.001 / RATE
    assert await act(alpha, streams, tokens) is None
    await refusal(alpha.attend(streams[0], 0, tokens.q(1)), "steps_per_second")


async def test_shapes_that_lie_put_nobody_in_debt(alpha: Client, server: Server, tokens: Tokens) -> None:
    clock = still(server)
    limit(server, f"steps_per_second = {RATE}")
    stream = await alpha.open()
    for shape in ([1 << 40, 4, 16], [(1 << 63) - 1, 1, 1], [-5, 4, 16], []):
        q = to_tensor(tokens.q(1))
        del q.shape[:]
        q.shape.extend(shape)
        failure = await outcome(alpha.attention.Attend(pb.AttendRequest(stream=stream, q=q)))
        assert failure is not None
        clock.now += 60.0
    await alpha.append(stream, 0, *tokens.kv(5))


class TestOverload:
    @pytest.fixture
    def config(self, config: ServerConfig) -> ServerConfig:
        return replace(config, queue_bytes=3000)

    async def test_what_the_server_did_not_do_is_given_back(
        self, alpha: Client, server: Server, tokens: Tokens
    ) -> None:
        still(server)
        limit(server, f"steps_per_second = {RATE}")
        stream = await alpha.open()
        await alpha.append(stream, 0, *tokens.kv(1))
        async with Held(server):
            failure = await outcome(alpha.attend(stream, 0, tokens.q(20), 0))
            assert failure is not None
            assert failure.reason == "OVERLOADED"
        failure = await outcome(alpha.attend(stream, 0, tokens.q(RATE - SPEC.layers), 0))
        assert failure is not None
        assert failure.reason == "SEQUENCE_GAP"  # the stream's own matter


async def test_operations_that_were_not_begun_give_back_what_they_took(
    alpha: Client, server: Server, tokens: Tokens
) -> None:
    still(server)
    limit(server, f"steps_per_second = {RATE}")
    async with Decode(alpha) as decode:
        stream = await decode.open(1)
        await alpha.append(stream, 0, *tokens.kv(1))
        attend = pb.AttendRequest(q=to_tensor(tokens.q(20)), position=0)
        async with Held(server):
            await decode.send(decode.op(1, attend=attend, timeout_ms=20))
            while not server.scheduler.waiting_bytes:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.03)
        (late,) = await decode.wait([decode.op_id])
        assert failed(late).reason == "DEADLINE_EXPIRED"
        refused = await outcome(alpha.attend(stream, 0, tokens.q(RATE - SPEC.layers), 0))
        assert refused is not None
        assert refused.reason == "SEQUENCE_GAP"


@pytest.mark.parametrize("kind", ["append", "attend", "step", "decode"])
async def test_who_leaves_before_the_turn_has_come_gets_the_steps_back(
    alpha: Client, server: Server, tokens: Tokens, kind: str
) -> None:
    still(server)
    limit(server, f"steps_per_second = {RATE}")
    bucket = server.security.tenants.get("alpha").steps
    streams = await alpha.open(), await alpha.open()
    async with Decode(alpha) as decode:
        await decode.open(1)
        async with Held(server) as held:
            if kind == "decode":
                attend = pb.AttendRequest(q=to_tensor(tokens.q(3)))
                await held.queued(decode.send(decode.op(1, attend=attend)), 1)
                leave = decode.call.cancel
            else:
                leave = (await held.queued(KINDS[kind][1](alpha, streams, tokens), 1)).cancel
            await refusal(alpha.attend(streams[0], 0, tokens.q(RATE)), "steps_per_second")
            leave()
            while server.scheduler.waiting_bytes:
                await asyncio.sleep(0.001)
    bucket.take(RATE)


async def test_a_debt_is_no_reason_to_keep_a_stream(alpha: Client, server: Server, tokens: Tokens) -> None:
    still(server)
    limit(server, f"steps_per_second = {RATE}")
    async with Decode(alpha) as decode:
        stream = await decode.open(1)
        await alpha.append(stream, 0, *tokens.kv(100))
        await refusal(alpha.attend(stream, 0, tokens.q(1)), "steps_per_second")
        (closed,) = await decode.ask(decode.op(1, close=pb.CloseStreamRequest()))
        assert not closed.status.code, closed.status.message


async def test_one_tenant_takes_no_more_than_its_rate_whatever_it_tries(
    connect: Connect, alpha: Client, beta: Client, server: Server, tokens: Tokens
) -> None:
    """Eight callers of alpha's that come again at once; beta does its work meanwhile."""
    streams = [await alpha.open() for _ in range(8)]
    mine = await beta.open()
    limit(server, "steps_per_second = 100")
    began, taken, going = time.monotonic(), 0, True
    q, k, v = tokens.qkv(5)

    async def greedy(stream: pb.StreamRef) -> None:
        nonlocal taken
        position = 0
        while going:
            try:
                (result,) = await alpha.step(0, item(stream, position, q, k, v))
            except grpc.aio.AioRpcError as error:
                checked(Failure.of_call(error), "steps_per_second")
                continue
            assert not result.status.code
            taken, position = taken + 5, position + 5
            if position == 50:
                await alpha.close(stream)
                stream, position = await alpha.open(), 0

    callers = [asyncio.create_task(greedy(stream)) for stream in streams]
    for position in range(60):
        await beta.append(mine, position, *tokens.kv(1))
    while time.monotonic() - began < 1.5:
        await asyncio.sleep(0.05)
    going = False
    await asyncio.gather(*callers)
    passed = time.monotonic() - began
    assert 100 <= taken <= 100 * (passed + 1) + 5


def test_a_shape_counts_as_far_as_its_bytes_go() -> None:
    for shape in ([1 << 40], [1 << 40, 1 << 40], [3, 1 << 40]):
        empty = tensor_pb2.Tensor(shape=shape)
        assert steps.of_attend(pb.AttendRequest(q=empty)) == 1
        assert steps.of_append(pb.AppendTokenRequest(k=empty)) == 1
