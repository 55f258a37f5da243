"""What goes wrong with a Decode call, or with one operation of it, and what that does to the others; both
twins."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from restarts import Token
from transports import flags, to

from rondel.client import AsyncAttentionClient, AttentionClient
from rondel.client.cli.launch import server
from rondel.client.conversation import Ticket
from rondel.decoder.errors import (
    DeadlineExpired,
    QuotaExceeded,
    RondelError,
    ServerUnavailable,
    StreamClosed,
)
from rondel.decoder.spec import StreamSpec

SPEC = StreamSpec.uniform(layers=3, query_heads=4, kv_heads=2, head_dim=16, window=64, sinks=4, reserve=8)
LONG = StreamSpec.uniform(layers=3, query_heads=2, kv_heads=2, head_dim=16, max_length=2048)
WIDE = StreamSpec.uniform(layers=1, query_heads=32, kv_heads=1, head_dim=1, value_dim=256, max_length=64)


def test_an_operation_too_large_for_the_server_harms_no_other(connect: Callable[..., Any]) -> None:
    """It ended the call, and all that was under way there failed with its error."""
    token = Token(SPEC, 1)
    with server("--budget-bytes=67108864", "--max-message-bytes=4096", *flags()) as running:
        client = connect(running.address)
        with client.decode() as call:
            stream, other = call.open(SPEC), call.open(SPEC)
            q, k, v = token.draw(1)
            stream.step_all(q, k, v)
            generation = stream.generation
            with pytest.raises(QuotaExceeded, match="this server's max_message_bytes"):
                stream.attend(0, np.zeros((20, 4, 16), np.float32))
            stream.step_all(q, k, v)
            assert stream.generation == generation  # it is the same call
            wide = np.zeros((9, 4, 16), np.float32)
            for rows in range(1, 10):  # at any size one can say where it ends
                for each in (stream, other):
                    with suppress(RondelError):
                        each.attend(0, wide[:rows])
            stream.step_all(q, k, v)
            assert (stream.generation, other.generation) == (generation, 0)


def test_a_message_with_all_that_goes_with_it_is_within_the_limit(
    connect: Callable[..., Any], address: str
) -> None:
    client = connect(address, max_message_bytes=2048)
    with client.decode() as call:
        stream = call.open(SPEC)
        for size in range(1970, 2050, 4):
            with suppress(RondelError):  # it has no such name, or is too large
                call.open(SPEC, projections="x" * size)
            stream.step_all(*Token(SPEC, 2).draw(1))
        assert stream.generation == 0
        stream.close()


def test_a_truncate_whose_answer_was_lost_is_known_again(connect: Callable[..., Any], proxy: Any) -> None:
    """The client attached first, which it cannot: the truncate has made the generation another one."""
    client = connect(proxy.address)
    with client.decode() as call:
        stream = call.open(SPEC)
        _, k, v = Token(SPEC, 3).draw(5)
        stream.append_all(k, v)
        proxy.mute()
        cutting = threading.Timer(0.3, proxy.cut)
        cutting.start()
        stream.truncate(3)
        cutting.join()
        assert stream.length == 3
        assert stream.append_all(k, v) == 8
        stream.close()


def test_time_to_connect_and_time_to_be_answered_are_one(connect: Callable[..., Any], proxy: Any) -> None:
    client = connect(proxy.address, timeout=10)
    client.info()
    with client.decode() as call:
        call._lanes.channel._timeout = 2.0
        proxy.delay = 0.5

        def mute() -> None:
            while (lane := call._lanes._lane) is None or not lane._greeted.done():
                time.sleep(0.01)
            proxy.mute()

        muting = threading.Thread(target=mute)
        muting.start()
        began = time.monotonic()
        with pytest.raises(DeadlineExpired):
            call.attach("nobody")
        assert time.monotonic() - began < 2.4
        proxy.cut()
        muting.join()
        proxy.delay = 0.0


def test_what_nobody_waits_for_is_not_kept(connect: Callable[..., Any], proxy: Any) -> None:
    """A call that stands still, and callers that give up and come again."""
    client = connect(proxy.address)
    with client.decode() as call:
        stream = call.open(LONG)
        _, k, v = Token(LONG, 4).draw(2000)  # 1.5 MiB
        call._lanes.channel._timeout = 0.05
        proxy.mute()
        for _ in range(14):
            with pytest.raises(DeadlineExpired):
                stream.append_all(k, v)
        kept = sum(len(each.raw) for each in gc.get_objects() if isinstance(each, Ticket))
        assert kept < 6 << 20
        call._lanes.channel._timeout = 30.0
        proxy.cut()
        assert stream.append_all(k, v) == 2000
        stream.close()


async def test_a_call_that_the_server_gave_up_is_made_anew() -> None:
    """The client did not take its results for a while; that is no reason for what has time to fail."""
    with server("--decode-window-bytes=65536", "--stall-timeout-seconds=0.3", *flags()) as running:
        address = running.address
        async with AsyncAttentionClient(address, **to(address)) as client, client.decode() as call:
            streams = [await call.open(WIDE) for _ in range(12)]
            q, k, v = Token(WIDE, 5).draw(1)  # answered with 32 KiB
            steps = [asyncio.create_task(stream.step(0, q[0], k[0], v[0])) for stream in streams]
            steps[0].add_done_callback(lambda _: time.sleep(1.5))
            await asyncio.gather(*steps)
            assert any(stream.generation for stream in streams)  # it did


def test_a_stream_that_is_attached_to_while_it_is_closed_is_closed(address: str) -> None:
    """By a call of its own, which goes on over another connection."""
    with AttentionClient(address, **to(address)) as client:
        before = client.info().streams
        stream = client.open(SPEC)

        def closing() -> Any:
            steps = stream.close_steps()
            call = next(steps)
            yield from stream.take_over(None)
            while True:
                try:
                    reply = yield call
                except RondelError as error:
                    call = steps.throw(error)
                else:
                    with suppress(StopIteration):
                        call = steps.send(reply)
                        continue
                    return

        client._channel.run(closing())
        assert stream.closed
        assert client.info().streams == before
        with pytest.raises(StreamClosed):
            stream.stats()


def test_a_closed_call_makes_no_connection(address: str) -> None:
    """Not even for a thread that was about to when another one closed it."""
    with AttentionClient(address, **to(address)) as client:
        call = client.decode()
        call.close()
        with pytest.raises(ServerUnavailable, match="was closed"):
            call._lanes._connected(1.0)
        assert "rondel-decode" not in {thread.name for thread in threading.enumerate()}
