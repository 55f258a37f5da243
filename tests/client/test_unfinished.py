"""Calls that end half-way: made again they put nothing in twice, and what nobody heard of is closed."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from transports import to

from rondel.client import AsyncAttentionClient, AttentionClient, calls, operations
from rondel.client.calls import Call
from rondel.client.limits import Limits
from rondel.client.opened import Opened
from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import DeadlineExpired, PositionConflict, RollbackTooDeep, SequenceGap
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec
from rondel.v1 import attention_pb2 as pb

SPEC = StreamSpec.uniform(layers=3, query_heads=2, kv_heads=1, head_dim=8, window=64, sinks=2, reserve=8)


def stack(rng: np.random.Generator, tokens: int) -> tuple[Any, Any, Any]:
    return tuple(rng.standard_normal((3, tokens, heads, 8), np.float32) for heads in (2, 1, 1))


@contextmanager
def failing(stream: Any, number: int, *, sent: bool) -> Iterator[None]:
    """The ``number``-th call from now on fails; ``sent``: the server has carried it out."""
    channel, left = stream._channel, number
    send = channel.send

    def fail(call: Call) -> Any:
        nonlocal left
        left -= 1
        reply = send(call) if left or sent else None
        if left == 0:
            raise DeadlineExpired("no answer in time")
        return reply

    async def fail_later(call: Call) -> Any:
        nonlocal left
        left -= 1
        reply = await send(call) if left or sent else None
        if left == 0:
            raise DeadlineExpired("no answer in time")
        return reply

    channel.send = fail_later if inspect.iscoroutinefunction(send) else fail
    try:
        yield
    finally:
        channel.send = send


@pytest.mark.parametrize("sent", [False, True])
@pytest.mark.parametrize("before", [0, 5, 500])
@pytest.mark.parametrize("whole", ["step_all", "append_all"])
def test_a_call_for_all_layers_is_made_again(
    connect: Callable[..., Any], address: str, rng: np.random.Generator, whole: str, before: int, sent: bool
) -> None:
    """Wherever it stopped, with 9 tokens at a time once the rings have wrapped."""
    _, k0, v0 = stack(rng, before)
    q, k, v = stack(rng, 20)
    given = (q, k, v) if whole == "step_all" else (k, v)
    alone = DecoderSession(SPEC, Arena(budget=8 << 20))
    alone.append_all(k0, v0)
    want = getattr(alone, whole)(*given)
    client = connect(address)
    for number in range(1, 12):
        with client.open(SPEC) as stream:
            stream.append_all(k0, v0)
            calls = 0
            with failing(stream, number, sent=sent):
                try:
                    got = getattr(stream, whole)(*given)
                except DeadlineExpired:
                    calls = 1
            if calls:
                got = getattr(stream, whole)(*given)
            assert np.array_equal(got, want)
            assert stream.length == before + 20
            assert set(stream.stats().layer_lengths) == {before + 20}
            assert np.array_equal(stream.step_all(q, k, v), alone.fork().step_all(q, k, v))
        if not calls:
            return  # the whole call took fewer


def test_other_tokens_are_refused_and_a_truncate_leads_back(
    connect: Callable[..., Any], address: str, rng: np.random.Generator
) -> None:
    q, k, v = stack(rng, 4)
    other = stack(rng, 4)
    with connect(address).open(SPEC) as stream:
        with failing(stream, 3, sent=False), pytest.raises(DeadlineExpired):
            stream.step_all(q, k, v)
        with pytest.raises(PositionConflict):
            stream.step_all(*other)
        stream.truncate(0)
        alone = DecoderSession(SPEC, Arena(budget=8 << 20))
        assert np.array_equal(stream.step_all(*other), alone.step_all(*other))


def test_layers_that_are_not_level_are_refused(
    connect: Callable[..., Any], address: str, rng: np.random.Generator
) -> None:
    """As a session does: nothing has changed, and the other layers' calls make them level."""
    q, k, v = stack(rng, 4)
    with connect(address).open(SPEC) as stream:
        stream.append(0, k[0], v[0])
        for given in ((q, k, v), (k, v)):
            with pytest.raises(SequenceGap, match="not level"):
                (stream.step_all if len(given) == 3 else stream.append_all)(*given)
        assert list(stream.stats().layer_lengths) == [4, 0, 0]
        for layer in (1, 2):
            stream.append(layer, k[layer], v[layer])
        stream.step_all(q, k, v)
        assert stream.length == 8


def test_steps_of_one_layer_end_what_was_unfinished(
    connect: Callable[..., Any], address: str, rng: np.random.Generator
) -> None:
    """A caller who goes on layer by layer has given the whole call up."""
    q, k, v = stack(rng, 4)
    with connect(address).open(SPEC) as stream:
        with failing(stream, 2, sent=False), pytest.raises(DeadlineExpired):
            stream.step_all(q, k, v)
        for layer in (1, 2):
            stream.step(layer, q[layer], k[layer], v[layer])
        assert stream.length == 4
        stream.step_all(q, k, v)
        assert stream.length == 8
        with pytest.raises(SequenceGap):
            stream.truncate(9)
        assert not issubclass(SequenceGap, RollbackTooDeep)


async def test_cancelled_opens_leave_no_stream(address: str) -> None:
    with AttentionClient(address, **to(address)) as direct:
        before = direct.info().streams
        async with AsyncAttentionClient(address, **to(address)) as client:
            await client.info()
            cut = 0
            for number in range(60):
                try:
                    await asyncio.wait_for(client.open(SPEC), 0.0002 * (number % 12 + 1))
                except TimeoutError:
                    cut += 1
            assert cut
            kept = len(client._opened)
            stream = await client.open(SPEC)  # clears up what the cancelled ones have left
            assert direct.info().streams == before + kept + 1
            await stream.close()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.open(SPEC), 0.0001)
        assert direct.info().streams == before


def test_an_open_that_nobody_heard_of_is_undone_by_one_at_a_time() -> None:
    """Closed by one task, it would be opened anew by another, and stay if that one was cancelled then."""
    opened, limits = Opened(), Limits(1 << 20)
    limits.start = 7
    lost = pb.OpenStreamRequest(request_id="lost")
    opened.unanswered.append(lost)
    one, other = (operations.open_stream(SPEC, limits, opened) for _ in range(2))
    assert next(one).request == lost
    assert next(other).request != lost
    assert one.send(pb.OpenStreamResponse(handle="found", start_id=7)).method is calls.CLOSE
    one.close()  # before that was answered
    assert opened.unanswered == [lost]
    other.close()
    assert len(opened.unanswered) == 2


def test_an_opened_stream_that_the_client_cannot_learn_the_limits_of_is_undone() -> None:
    opened, limits = Opened(), Limits(1 << 20)
    limits.start = 7
    steps = operations.open_stream(SPEC, limits, opened)
    request = next(steps).request
    assert steps.send(pb.OpenStreamResponse(handle="new", start_id=8)).method is calls.INFO
    steps.close()
    assert opened.unanswered == [request]
