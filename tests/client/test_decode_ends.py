"""Ends of Decode calls: nothing is left of one, and nobody waits for a silent server for long; both twins."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from restarts import Token
from transports import listening, to

from rondel.client import AsyncAttentionClient, AttentionClient
from rondel.decoder.errors import DeadlineExpired, ServerUnavailable
from rondel.decoder.spec import StreamSpec
from rondel.server.app import Server
from rondel.server.config import ServerConfig

SPEC = StreamSpec.uniform(layers=3, query_heads=4, kv_heads=2, head_dim=16, window=64, sinks=4, reserve=8)


async def test_no_descriptor_is_left_of_connections(address: str) -> None:
    """Calls are cancelled while they read; a connection that was closed under a reader would stay."""
    before = 0
    for number in range(12):
        async with AsyncAttentionClient(address, **to(address)) as client, client.decode() as call:
            stream = await call.open(SPEC)
            await client._channel.reconnect()
            q, k, v = Token(SPEC, 10).draw()
            await stream.step(0, q[0], k[0], v[0])
        if number == 1:
            before = len(os.listdir("/proc/self/fd"))
    gc.collect()
    while len(os.listdir("/proc/self/fd")) > before:  # the test's time limit is the failure
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("way", ["close", "forget", "client"])
async def test_nothing_is_left_of_a_call(way: str) -> None:
    server = await Server.start(listening(ServerConfig(port=0, budget_bytes=64 << 20)))
    before = len(asyncio.all_tasks())
    client = AsyncAttentionClient(server.address, **to(server.address))
    call: Any = client.decode()
    stream: Any = await call.open(SPEC)
    assert server._door.inside == 1
    if way == "close":
        await call.close()
        await call.close()
        assert (await stream.stats()).length == 0
    elif way == "forget":
        stream.leave_open()
        del call, stream
        gc.collect()
    else:
        await client.close()
    while server._door.inside or len(asyncio.all_tasks()) > before + 4:
        await asyncio.sleep(0.005)
    await client.close()
    await server.stop()


def test_no_thread_is_left_of_a_call(address: str) -> None:
    with AttentionClient(address, **to(address)) as client:
        client.info()
        before = {thread.name for thread in threading.enumerate()}
        for way in ("close", "forget"):
            call: Any = client.decode()
            stream: Any = call.open(SPEC)
            assert "rondel-decode" in {thread.name for thread in threading.enumerate()}
            stream.leave_open()
            if way == "close":
                call.close()
            else:
                del call, stream
                gc.collect()
            end = time.monotonic() + 10
            while {thread.name for thread in threading.enumerate()} - before:
                assert time.monotonic() < end
                time.sleep(0.005)


def test_a_silent_server_is_given_up_at_the_deadline(connect: Callable[..., Any], proxy: Any) -> None:
    q, k, v = Token(SPEC, 9).draw()
    client = connect(proxy.address, timeout=0.5)
    with client.decode() as call:
        stream = call.open(SPEC)
        proxy.mute()
        began = time.monotonic()
        with pytest.raises(DeadlineExpired):
            stream.step(0, q[0], k[0], v[0])
        assert 0.4 < time.monotonic() - began < 5
        proxy.cut()
        stream.step(0, q[0], k[0], v[0])
        assert stream.layer_length(0) == 1
        stream.close()


def test_nobody_there(connect: Callable[..., Any]) -> None:
    began = time.monotonic()
    with connect("127.0.0.1:1").decode() as call, pytest.raises(ServerUnavailable):
        call.open(SPEC)
    assert time.monotonic() - began < 10


def test_a_stream_is_closed_when_the_server_has_said_so(connect: Callable[..., Any], proxy: Any) -> None:
    """Not when it was asked: until then closing may be tried again, as the same request."""
    for over in ("unary", "call"):
        client = connect(proxy.address, timeout=0.4)
        before = client.info().streams
        call = client.decode()
        stream = (client if over == "unary" else call).open(SPEC)
        proxy.mute()
        with pytest.raises(DeadlineExpired):
            stream.close()
        assert not stream.closed
        proxy.cut()
        stream.close()
        assert stream.closed
        assert client.info().streams == before
        call.close()
