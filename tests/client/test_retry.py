"""Lost replies, dead and silent servers: calls are repeated where that helps, never twice in effect."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from transports import to, waiting_channel_to

from rondel.client import AsyncAttentionClient, AttentionClient
from rondel.client.calls import ATTEMPTS, Attempts
from rondel.client.cli.launch import server
from rondel.decoder.errors import DeadlineExpired, Draining, Overloaded, ServerUnavailable
from rondel.decoder.spec import StreamSpec
from rondel.v1 import attention_pb2 as pb
from rondel.v1.attention_pb2_grpc import AttentionServiceStub

SPEC = StreamSpec.uniform(layers=1, query_heads=2, kv_heads=1, head_dim=8, window=64, reserve=8)


def rows(rng: np.random.Generator) -> tuple[Any, Any, Any]:
    return tuple(rng.standard_normal((1, heads, 8), np.float32) for heads in (2, 1, 1))


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("operation", ["step", "truncate", "close"])
def test_lost_reply_is_asked_for_again(
    operation: str, connect: Callable[..., Any], proxy: Any, address: str, rng: np.random.Generator
) -> None:
    q, k, v = rows(rng)
    with AttentionClient(address, **to(address)) as direct, waiting_channel_to(address) as channel:
        before = direct.info().streams
        stub = AttentionServiceStub(channel)
        stream = connect(proxy.address).open(SPEC)
        expected = stream.step(0, q, k, v)
        stream.truncate(0)
        request = pb.GetStreamRequest(stream=pb.StreamRef(handle=stream.handle))

        def applied() -> bool:
            if operation == "close":
                return direct.info().streams == before
            reply = stub.GetStream(request)
            return reply.committed_length == 1 if operation == "step" else reply.generation == 2

        def cut() -> None:
            until(applied)
            proxy.cut()

        proxy.mute()
        cutter = threading.Thread(target=cut)
        cutter.start()
        if operation == "step":
            assert np.array_equal(stream.step(0, q, k, v), expected)
            assert stream.length == 1
        elif operation == "truncate":
            stream.truncate(0)
            assert stream.generation == 2
            assert stream.append(0, k, v) == 1
        else:
            stream.close()
        cutter.join(30)


def test_open_whose_reply_was_lost_opens_once(connect: Callable[..., Any], proxy: Any, address: str) -> None:
    with AttentionClient(address, **to(address)) as direct:
        before = direct.info().streams
        client = connect(proxy.address)
        client.info()

        def cut() -> None:
            until(lambda: direct.info().streams > before)
            proxy.cut()

        proxy.mute()
        cutter = threading.Thread(target=cut)
        cutter.start()
        with client.open(SPEC) as stream:
            assert stream.length == 0
            assert direct.info().streams == before + 1
        cutter.join(30)


def test_silent_server_is_given_up_at_the_deadline(connect: Callable[..., Any], proxy: Any) -> None:
    client = connect(proxy.address, timeout=0.5)
    client.info()
    proxy.mute()
    began = time.monotonic()
    with pytest.raises(DeadlineExpired):
        client.info()
    assert 0.4 < time.monotonic() - began < 5


def test_nobody_there(connect: Callable[..., Any]) -> None:
    client = connect("127.0.0.1:1")
    began = time.monotonic()
    with pytest.raises(ServerUnavailable, match=r"127\.0\.0\.1:1"):
        client.info()
    assert time.monotonic() - began < 10


def test_server_that_ends_and_another_that_takes_its_place(
    connect: Callable[..., Any], rng: np.random.Generator, tmp_path: Any
) -> None:
    q, k, v = rows(rng)
    path = tmp_path / "socket"
    with server(f"--unix-path={path}"):
        client = connect(f"unix:{path}")
        stream = client.open(SPEC)
        stream.step(0, q, k, v)
    with pytest.raises(ServerUnavailable):
        stream.step(0, q, k, v)
    assert stream.length == 1
    with server(f"--unix-path={path}"):
        assert client.info().streams == 0
        stream.close()  # the new server does not know it, which is as good as closed


def test_closed_client_says_so(connect: Callable[..., Any], address: str) -> None:
    client = connect(address)
    client.info()
    client.close()
    with pytest.raises(ServerUnavailable, match="was closed"):
        client.info()


def test_only_an_unreachable_server_is_tried_again() -> None:
    for error in (Draining("m"), Overloaded("m"), DeadlineExpired("m")):
        attempts = Attempts(10)
        attempts.begin()
        with pytest.raises(type(error)):
            attempts.pause(error)


def test_tries_are_counted_and_bounded_by_the_deadline() -> None:
    attempts = Attempts(100)
    pauses = []
    for _ in range(ATTEMPTS - 1):
        assert 0 < attempts.begin() <= 100
        pauses.append(attempts.pause(ServerUnavailable("m")))
    assert all(0 < pause <= 1 for pause in pauses)
    attempts.begin()
    with pytest.raises(ServerUnavailable):
        attempts.pause(ServerUnavailable("m"))
    short = Attempts(0.001)
    time.sleep(0.002)
    with pytest.raises(DeadlineExpired):
        short.begin()


async def test_cancelled_call_leaves_the_stream_usable(address: str, rng: np.random.Generator) -> None:
    q, k, v = rows(rng)
    async with AsyncAttentionClient(address, **to(address)) as client, await client.open(SPEC) as stream:
        for _ in range(20):
            task = asyncio.create_task(stream.step(0, q, k, v))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        # Whether or not the cancelled ones were carried out: they were one and the same step.
        await stream.step(0, q, k, v)
        assert stream.length == (await stream.stats()).length == 1


async def test_closing_a_client_ends_a_call_that_waits(proxy: Any) -> None:
    client = AsyncAttentionClient(proxy.address, **to(proxy.address))
    await client.info()
    proxy.mute()
    task = asyncio.create_task(client.info())
    await asyncio.sleep(0.05)
    await client.close()
    with pytest.raises(ServerUnavailable):
        await task
