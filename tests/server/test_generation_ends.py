"""Generations that end early, share the machine, or meet a limit."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
import numpy as np
import pytest
import tinygguf
from processes import Process, Start
from rawclient import Client, Failure, Tokens, ask, everything_given_back, refusal

from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec
from rondel.server.app import Server
from rondel.server.config import ServerConfig
from rondel.v1 import generation_pb2 as pb

Connect = Callable[[str], Client]
FILLING = StreamSpec.uniform(layers=1, query_heads=1, kv_heads=1, head_dim=64, window=64)
LONG = "It was the best of times, it was the worst of times. " * 4  # more than three chunks


@pytest.fixture
def config(model_path: Path) -> ServerConfig:
    return ServerConfig(port=0, budget_bytes=64 << 20, model=str(model_path), max_generations=12)


async def test_generations_take_turns_and_do_not_change_each_other(
    client: Client, server: Server, tokens: Tokens
) -> None:
    def request(n: int) -> pb.GenerateRequest:
        return pb.GenerateRequest(text=LONG[: 20 * n + 1], max_tokens=40, seed=n, temperature=1.0)

    alone = [(await ask(client, request(n))).ids for n in range(8)]
    stream = await client.open()
    k, v = tokens.kv(64)
    await client.append(stream, 0, k, v)
    q = tokens.q(1)
    expected = await client.attend(stream, 0, q)
    together = asyncio.gather(*(ask(client, request(n)) for n in range(8)))
    attended = 0
    while not together.done():
        np.testing.assert_array_equal(await client.attend(stream, 0, q), expected)
        attended += 1
    assert [answer.ids for answer in await together] == alone
    assert attended > 10


async def test_a_cancelled_generation_stops_and_frees_its_memory(client: Client, server: Server) -> None:
    for read in (0, 1, 2, 5):
        call = client.generation.Generate(pb.GenerateRequest(text=LONG, max_tokens=10_000))
        for _ in range(read):
            await call.read()
        call.cancel()
        await everything_given_back(server)
        while server._door.inside:
            await asyncio.sleep(0.002)
    assert (await ask(client, pb.GenerateRequest(text="x", max_tokens=2))).tokens


async def test_a_generation_that_nobody_reads_holds_up_nobody(client: Client) -> None:
    stalled = client.generation.Generate(pb.GenerateRequest(text="x", max_tokens=200))
    await stalled.read()
    assert (await ask(client, pb.GenerateRequest(text="y", max_tokens=5))).tokens
    stalled.cancel()


async def test_a_deadline_ends_a_generation(client: Client, server: Server) -> None:
    call = client.generation.Generate(pb.GenerateRequest(text=LONG, max_tokens=10_000), timeout=0.05)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        _ = [event async for event in call]
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    await everything_given_back(server)


class TestSmall:
    @pytest.fixture
    def config(self, model_path: Path) -> ServerConfig:
        return ServerConfig(port=0, budget_bytes=2 << 20, model=str(model_path), max_generations=2)

    async def test_more_generations_than_allowed_are_refused(self, client: Client) -> None:
        calls = [client.generation.Generate(pb.GenerateRequest(text="x", max_tokens=200)) for _ in range(2)]
        for call in calls:
            await call.read()
        failed = await refusal(client, pb.GenerateRequest(text="y"))
        assert (failed.reason, failed.code) == ("OVERLOADED", grpc.StatusCode.UNAVAILABLE)
        for call in calls:
            call.cancel()

    async def test_no_room_in_the_arena(self, client: Client, server: Server) -> None:
        with DecoderSession(FILLING, server.arena):
            failed = await refusal(client, pb.GenerateRequest(text="x"))
        assert (failed.reason, failed.code) == ("BUDGET_EXCEEDED", grpc.StatusCode.RESOURCE_EXHAUSTED)


# --- a server in a process of its own -----------------------------------------------------------------


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    """A model whose context is so large that a generation takes far longer than any test."""
    return tinygguf.write(tmp_path / "endless.gguf", context=100_000)


async def generating(connect: Connect, process: Process) -> AsyncIterator[pb.GenerateResponse]:
    """The further events of a generation that has begun and will not end by itself."""
    request = pb.GenerateRequest(text="x", max_tokens=99_000)
    events = aiter(connect(process.address).generation.Generate(request))
    for _ in range(3):
        await anext(events)
    return events


async def test_sigterm_ends_with_an_open_generation_within_its_bound(
    start: Start, connect: Connect, endless: Path
) -> None:
    process = start(drain_seconds=0.7, model=str(endless))
    events = await generating(connect, process)
    ending = asyncio.create_task(process.end(signal.SIGTERM))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        _ = [event async for event in events]
    failed = Failure.of_call(caught.value)
    assert (failed.code, failed.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
    code, seconds, log = await ending
    assert code == 0, log
    assert 0.6 < seconds < 3.7
    assert "Traceback" not in log


async def test_a_second_signal_ends_at_once(start: Start, connect: Connect, endless: Path) -> None:
    process = start(drain_seconds=60.0, model=str(endless))
    await generating(connect, process)
    process.popen.send_signal(signal.SIGINT)
    client = connect(process.address)
    refused = None
    while refused is None:  # as soon as the first signal has been seen
        try:
            await client.info()
        except grpc.aio.AioRpcError as error:
            refused = error
    assert refused.code() == grpc.StatusCode.UNAVAILABLE
    began = time.monotonic()
    code, _, _ = await process.end(signal.SIGINT)
    assert code == 128 + signal.SIGINT
    assert time.monotonic() - began < 10
