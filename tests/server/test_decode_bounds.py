"""What a Decode call's client can make the server keep, and for how long, by what it does not take."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import grpc
import pytest
from processes import Start
from rawclient import Client, Failure
from rawdecode import Decode, failed
from test_decode_flow import Silent, question, rss, wide

from rondel.decoder.spec import LayerGroup, StreamSpec
from rondel.server.config import ServerConfig
from rondel.v1 import attention_pb2 as pb

Connect = Callable[[str], Client]
WINDOW = 1 << 20

MANY = StreamSpec(
    groups=tuple(
        LayerGroup(layers=(layer,), query_heads=1, kv_heads=1, key_dim=1, value_dim=1, window=16)
        for layer in range(1024)
    )
)
"""A specification whose message is large, and its streams are not."""


@pytest.fixture
def config() -> ServerConfig:
    return ServerConfig(port=0, budget_bytes=256 << 20, decode_window_bytes=WINDOW, stall_timeout_seconds=1.0)


async def lost(decode: Decode) -> Failure:
    """What the call has failed with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(decode.ended(), 20)
    return Failure.of_call(caught.value)


async def test_more_operations_are_no_sign_that_results_are_taken(client: Client) -> None:
    """Each of them began the wait anew: a client that sent one now and then kept its call for ever."""
    async with Silent(client) as decode:
        await wide(decode, 1)
        await decode.send(*(decode.op(1, attend=question()) for _ in range(60)))
        end = time.monotonic() + 8
        while not decode._over():
            assert time.monotonic() < end
            await asyncio.sleep(0.2)
            try:
                await decode.send(decode.op(1, attend=question()))
            except asyncio.InvalidStateError:
                break
            except grpc.aio.AioRpcError:
                return  # it has ended; for a message that meets the end grpc.aio loses why (issue 36066)
        assert (await lost(decode)).reason == "DEADLINE_EXPIRED"


async def test_results_of_items_that_fail_are_within_the_window(client: Client) -> None:
    """An item without a stream has four bytes, and is answered with two hundred."""
    async with Silent(client) as decode:
        step = pb.StepRequest(items=[pb.StepItem(stream_ref=9)] * 1024)
        await decode.send(*(decode.op(step=step) for _ in range(40)))
        assert (await lost(decode)).reason == "DEADLINE_EXPIRED"
        assert 2 <= len(decode.results) < 40
        assert sum(result.ByteSize() for result in decode.results.values()) <= WINDOW


async def test_so_are_those_of_streams_with_large_specifications(client: Client) -> None:
    async with Silent(client) as decode:
        stream = await decode.open(1, MANY)
        assert decode.results[1].ByteSize() > 20_000
        attach = [decode.op(ref, attach=pb.AttachStreamRequest(stream=stream)) for ref in range(2, 102)]
        await decode.send(*attach)
        assert (await lost(decode)).reason == "DEADLINE_EXPIRED"
        assert 2 <= len(decode.results) < 100
        assert sum(result.ByteSize() for result in decode.results.values()) <= WINDOW


async def test_what_waits_takes_the_room_of_its_bytes(start: Start, connect: Connect) -> None:
    """Parsed, two bytes of a request can take a hundred; it waits until its client takes its results."""
    process = start(decode_window_bytes=1 << 18)
    step = pb.StepRequest(items=[pb.StepItem()] * 100_000)
    async with Silent(connect(process.address)) as decode:
        await wide(decode, 1)
        await decode.send(*(decode.op(1, attend=question()) for _ in range(16)))
        await decode.wait([decode.op_id - 14])
        before = rss(process.popen.pid)
        for _ in range(14):
            await asyncio.wait_for(decode.send(decode.op(step=step)), 10)
        asked = decode.op_id
        await connect(process.address).info()
        assert rss(process.popen.pid) - before < 80 << 20
        while asked not in decode.results:
            await decode.call.write(pb.DecodeRequest(received_op_id=decode.order[-1]))
            await asyncio.sleep(0.01)
        assert failed(decode.results[asked]).reason == "INVALID_REQUEST"
