"""A server on a file with streams answers before all of them were looked at, and never from one that was
not."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import pytest_asyncio
from rawclient import SPEC, Client, Failure, Tokens, item
from transports import listening, tenant

from rondel.decoder import attach as attaching
from rondel.decoder.cache.arena import Arena
from rondel.decoder.session import DecoderSession
from rondel.server.app import Server
from rondel.server.config import ServerConfig
from rondel.server.logs import shortened
from rondel.server.tags import Tag
from rondel.v1 import attention_pb2 as pb

BUDGET = 64 << 20
UNITS_AT = 2 << 20
HANDLES = tuple(f"stream-{number}" for number in range(5))
DAMAGED = 1


@pytest.fixture
def config(tmp_path: Path) -> ServerConfig:
    """On a file with five streams, one of which is damaged."""
    path = tmp_path / "arena"
    arena = Arena(BUDGET, path=path)
    for number, handle in enumerate(HANDLES):
        tag = Tag(handle, f"request {number}", tenant=tenant()).encode()
        session = DecoderSession(SPEC, arena, tag=tag)
        session.append_all(*Tokens(np.random.default_rng(number)).kv(100))
        if number == DAMAGED:
            page = int(session._rings[0].table(0)[1])
    arena.close()
    content = bytearray(path.read_bytes())
    content[UNITS_AT + page + 7] ^= 1
    path.write_bytes(content)
    return ServerConfig(port=0, budget_bytes=BUDGET, arena_file=str(path))


def refs() -> list[pb.StreamRef]:
    return [pb.StreamRef(handle=handle) for handle in HANDLES]


async def refused(call: Any) -> Failure:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return Failure.of_call(caught.value)


async def test_a_damaged_stream_says_so_and_the_others_go_on(client: Client, tokens: Tokens) -> None:
    q, k, v = tokens.qkv(1)
    for number, stream in enumerate(refs()):
        call = client.attend(stream, 0, q, generation=1)
        if number != DAMAGED:
            twin = DecoderSession(SPEC, Arena(BUDGET))
            twin.append_all(*Tokens(np.random.default_rng(number)).kv(100))
            np.testing.assert_array_equal(await call, twin.attend(0, q))
            continue
        failure = await refused(call)
        assert (failure.code, failure.reason) == (grpc.StatusCode.DATA_LOSS, "STREAM_DAMAGED")
        for each in (
            client.get(stream),
            client.append(stream, 100, *tokens.kv(1), generation=1),
            client.open(request_id=f"request {number}"),
            client.fork(stream, 100, generation=1),
            client.attention.SealStream(pb.SealStreamRequest(stream=stream, generation=1)),
            client.attention.ExportStream(pb.ExportStreamRequest(stream=stream)).read(),
        ):
            assert (await refused(each)).reason == "STREAM_DAMAGED"
    results = await client.step(0, *(item(stream, 100, q, k, v, generation=1) for stream in refs()))
    reasons = [Failure.of(result.status).reason if result.status.code else "" for result in results]
    assert reasons == ["", "STREAM_DAMAGED", "", "", ""]
    assert (await client.close(refs()[DAMAGED])).bytes_released > 0
    assert (await client.info()).streams == 4


async def test_the_log_tells_what_was_found(config: ServerConfig, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "rondel.server"):
        server = await Server.start(config)
        while "all streams were looked at" not in caplog.text:
            await asyncio.sleep(0.01)
        await server.stop(drain_seconds=0)
    assert f"stream {shortened(HANDLES[DAMAGED])} is set aside: position" in caplog.text
    assert "1 are damaged" in caplog.text


class TestSlow:
    """Looking at the first stream takes until it is let go."""

    @pytest_asyncio.fixture
    async def server(
        self, config: ServerConfig, monkeypatch: pytest.MonkeyPatch
    ) -> AsyncIterator[tuple[Server, threading.Event]]:
        real, first, leave = attaching.damage, threading.Event(), threading.Event()

        def slow(*given: Any, **more: Any) -> str:
            if not first.is_set():
                first.set()
                assert leave.wait(20)
            return real(*given, **more)

        monkeypatch.setattr(attaching, "damage", slow)
        running = await Server.start(listening(config))
        assert await asyncio.to_thread(first.wait, 20)
        yield running, leave
        leave.set()
        await running.stop(drain_seconds=0.5)

    async def test_streams_are_answered_while_others_are_looked_at(
        self, server: tuple[Server, threading.Event], connect: Callable[[str], Client], tokens: Tokens
    ) -> None:
        running, leave = server
        client = connect(running.address)
        q = tokens.q(1)
        assert (await client.info()).streams == 5
        assert (await client.attend(refs()[3], 0, q, generation=1)).shape == (1, 4, 8)
        assert (await client.append(refs()[4], 100, *tokens.kv(1), generation=1)).committed_length == 101
        assert (await client.append(await client.open(), 0, *tokens.kv(1))).committed_length == 1
        waiting = asyncio.create_task(client.attend(refs()[0], 0, q, generation=1))
        while not running.scheduler.waiting_bytes:
            await asyncio.sleep(0)
        assert not waiting.done()
        leave.set()
        assert (await waiting).shape == (1, 4, 8)

    async def test_a_stop_does_not_wait_for_what_nobody_uses(
        self, server: tuple[Server, threading.Event]
    ) -> None:
        running, leave = server
        await running.stop(drain_seconds=0)
        assert not leave.is_set()
        assert not running.working
