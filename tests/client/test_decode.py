"""Decode calls of clients: what goes over them is what sessions in this process give; both twins."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from restarts import Token
from transports import listening, to

from rondel.client import AsyncAttentionClient, AttentionClient
from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import (
    InvalidRequest,
    InvalidShape,
    InvalidSpec,
    PositionConflict,
    QuotaExceeded,
    StaleGeneration,
    StreamClosed,
    StreamNotFound,
    ValueRange,
)
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec
from rondel.server.app import Server
from rondel.server.config import ServerConfig

SPEC = StreamSpec.uniform(layers=3, query_heads=4, kv_heads=2, head_dim=16, window=64, sinks=4, reserve=8)
LARGE = StreamSpec.uniform(layers=1, query_heads=16, kv_heads=1, head_dim=16, value_dim=256, max_length=64)


@pytest.fixture
def arena() -> Arena:
    return Arena(budget=128 << 20)


def test_a_stream_does_over_a_call_what_a_session_does(client: Any, arena: Arena) -> None:
    token = Token(SPEC, 1)
    with client.decode() as call, DecoderSession(SPEC, arena) as session:
        stream = call.open(SPEC)
        for count in (1, 5, 9, 1):
            q, k, v = token.draw(count)
            for layer in range(SPEC.layers):
                out, lse = stream.step(layer, q[layer], k[layer], v[layer], return_lse=True)
                want = session.step(layer, q[layer], k[layer], v[layer], return_lse=True)
                assert np.array_equal(out, want[0])
                assert np.array_equal(lse, want[1])
        q, k, v = token.draw(200)
        assert np.array_equal(stream.step_all(q, k, v), session.step_all(q, k, v))
        assert stream.append_all(k, v) == session.append_all(k, v)
        assert np.array_equal(stream.attend(1, q[1, :2]), session.attend(1, q[1, :2]))
        explained = stream.explain(1, q[1, :1])
        assert np.array_equal(explained.weights, session.explain(1, q[1, :1]).weights)
        stream.truncate(session.length - 3)
        session.truncate(session.length - 3)
        assert np.array_equal(stream.attend(0, q[0, :1]), session.attend(0, q[0, :1]))
        with stream.fork() as fork:
            assert np.array_equal(fork.attend(2, q[2, :1]), session.attend(2, q[2, :1]))
        stream.seal()
        assert stream.stats().sealed
        stream.close()
        assert stream.closed
    assert client.info().streams == 0


def test_a_step_of_many_gives_each_its_own_answer(client: Any, arena: Arena) -> None:
    token = Token(SPEC, 2)
    with client.decode() as call:
        streams = [call.open(SPEC) for _ in range(3)]
        drawn = [token.draw(count) for count in (1, 3, 2)]
        wrong = np.full_like(drawn[1][1][1], np.nan)
        items = [(stream, q[1], k[1], v[1]) for stream, (q, k, v) in zip(streams, drawn, strict=True)]
        items[1] = (streams[1], items[1][1], wrong, items[1][3])
        outcomes = call.step(1, items, return_lse=True)
        assert isinstance(outcomes[1].error, ValueRange)
        assert [stream.layer_length(1) for stream in streams] == [1, 0, 2]
        for index in (0, 2):
            with DecoderSession(SPEC, arena) as session:
                q, k, v = drawn[index]
                assert np.array_equal(outcomes[index].out, session.step(1, q[1], k[1], v[1]))
        assert call.step(0, []) == []
        with pytest.raises(InvalidRequest, match="tuples of a stream"):
            call.step(0, [streams[0]])
        with pytest.raises(InvalidRequest, match="once only"):
            call.step(0, [items[0], items[0]])
        for stream in streams:
            stream.close()


def test_streams_of_calls_and_of_the_client_are_the_same_thing(client: Any) -> None:
    """One may be attached to over a call, stepped in its batches, and outlives it."""
    token = Token(SPEC, 3)
    q, k, v = token.draw()
    stream = client.open(SPEC)
    stream.append_all(k, v)
    with client.decode() as call:
        (outcome,) = call.step(0, [(stream, q[0], k[0], v[0])])
        assert outcome.error is None
        other = call.open(SPEC)
        other.append_all(k, v)
    for each in (stream, other):
        assert each.append_all(k, v) > 0 if each is other else each.step(1, q[1], k[1], v[1]) is not None
    other.close()
    stream.close()
    assert client.info().streams == 0


def test_errors_arrive_as_themselves(client: Any) -> None:
    q, k, v = Token(SPEC, 4).draw()
    with client.decode() as call:
        with pytest.raises(InvalidSpec):
            call.open("nonsense")
        with pytest.raises(StreamNotFound):
            call.open(from_prefix="nobody's")
        with pytest.raises(StreamNotFound):
            call.attach("nobody")
        stream = call.open(SPEC)
        with pytest.raises(InvalidShape):
            stream.step(0, q[0], k[0][:, :1], v[0])
        stream.step(0, q[0], k[0], v[0])
        again = call.attach(stream.handle)
        with pytest.raises(StaleGeneration):
            stream.step(1, q[1], k[1], v[1])
        assert again.length == again.layer_length(0) == 0
        again.close()
        with pytest.raises(StreamClosed):
            again.step(0, q[0], k[0], v[0])
        stream.close()


def test_attaching_takes_a_stream_over(connect: Callable[..., Any], address: str, arena: Arena) -> None:
    """Whoever had it does not take it back."""
    token = Token(SPEC, 5)
    first, second = connect(address), connect(address)
    stream = first.open(SPEC)
    q, k, v = token.draw(4)
    stream.append_all(k, v)
    stream.append(0, k[0], v[0])
    taken = second.attach(stream.handle)
    assert (taken.length, taken.layer_length(0), taken.generation) == (4, 4, 1)
    for _ in range(2):
        with pytest.raises(StaleGeneration):
            stream.append(1, k[1], v[1])
        with pytest.raises(StaleGeneration):
            stream.attend(0, q[0, :1])
    stream.close()
    assert stream.closed
    assert taken.append_all(k, v) == 8
    taken.close()


async def test_what_runs_at_the_same_time_goes_together(address: str, arena: Arena) -> None:
    """A thousand steps of forty streams, as tasks."""
    tokens = [Token(SPEC, seed) for seed in range(40)]
    async with AsyncAttentionClient(address, **to(address)) as client, client.decode() as call:
        streams = await asyncio.gather(*(call.open(SPEC) for _ in tokens))

        async def drive(index: int) -> None:
            with DecoderSession(SPEC, arena) as session:
                for count in (1, 2, 1, 3, 1, 1, 1, 1):
                    q, k, v = tokens[index].draw(count)
                    for layer in range(SPEC.layers):
                        out = await streams[index].step(layer, q[layer], k[layer], v[layer])
                        assert np.array_equal(out, session.step(layer, q[layer], k[layer], v[layer]))

        await asyncio.gather(*map(drive, range(40)))
        assert [stream.length for stream in streams] == [11] * 40


def test_threads_share_a_call(address: str, arena: Arena) -> None:
    wrong: list[BaseException] = []
    with AttentionClient(address, **to(address)) as client, client.decode() as call:

        def drive(seed: int) -> None:
            try:
                token = Token(SPEC, seed)
                with call.open(SPEC) as stream, DecoderSession(SPEC, arena) as session:
                    for _ in range(8):
                        q, k, v = token.draw()
                        for layer in range(SPEC.layers):
                            out = stream.step(layer, q[layer], k[layer], v[layer])
                            assert np.array_equal(out, session.step(layer, q[layer], k[layer], v[layer]))
            except BaseException as error:  # noqa: BLE001 - told by the test's own thread
                wrong.append(error)

        threads = [threading.Thread(target=drive, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert not wrong


async def test_cancelled_operations_leave_stream_and_call_usable(address: str) -> None:
    q, k, v = Token(SPEC, 6).draw()
    async with AsyncAttentionClient(address, **to(address)) as client, client.decode() as call:
        stream = await call.open(SPEC)
        for turns in range(20):
            task = asyncio.create_task(stream.step(0, q[0], k[0], v[0]))
            for _ in range(turns):
                await asyncio.sleep(0)
            if not task.cancel():
                break
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            await stream.step(0, q[0], k[0], v[0])
        assert stream.layer_length(0) == (await stream.stats()).layer_lengths[0] == 1
        stream._lengths[0] = 0  # as a client that has lost an answer
        with pytest.raises(PositionConflict):
            await stream.step(0, q[0], -k[0], v[0])


async def test_results_beyond_the_window_keep_coming() -> None:
    """The client tells of what it has in time, also of results larger than the server's window."""
    config = ServerConfig(port=0, budget_bytes=64 << 20, decode_window_bytes=20_000, stall_timeout_seconds=5)
    server = await Server.start(listening(config))
    async with AsyncAttentionClient(server.address, **to(server.address)) as client, client.decode() as call:
        streams = await asyncio.gather(*(call.open(LARGE) for _ in range(10)))
        q, k, v = Token(LARGE, 7).draw(2)  # answered with 32 KiB
        for _ in range(5):
            await asyncio.gather(*(stream.step(0, q[0], k[0], v[0]) for stream in streams))
        assert {stream.length for stream in streams} == {10}
    await server.stop()


async def test_a_narrow_client_gets_no_more_than_it_takes(address: str) -> None:
    q, k, v = Token(SPEC, 8).draw(2)
    async with (
        AsyncAttentionClient(address, max_message_bytes=2048, **to(address)) as client,
        client.decode() as call,
    ):
        streams = await asyncio.gather(*(call.open(SPEC) for _ in range(20)))
        for layer in range(SPEC.layers):
            await asyncio.gather(*(stream.step(layer, q[layer], k[layer], v[layer]) for stream in streams))
        wide = np.zeros((40, 4, 16), np.float32)
        with pytest.raises(QuotaExceeded, match="this client's max_message_bytes"):
            await streams[0].attend(0, wide)
