"""Servers that stop, are killed and come back: clients go on where they were.

No token is lost or doubled: what a stream answers is always what a session answers that never stopped.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pairs import SPEC, Pair
from restarts import Comings, Token

from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import DeadlineExpired, ServerUnavailable, StaleGeneration, StreamNotFound
from rondel.decoder.session import DecoderSession


@pytest.fixture
def comings(tmp_path: Path) -> Iterator[Comings]:
    server = Comings(tmp_path)
    server.start()
    yield server
    server.close()


@pytest.fixture(params=["unary", "call"])
def over(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("kills", [(1,), pytest.param((0, 1, 2, 2, 0), marks=pytest.mark.slow)])
def test_a_killed_server_s_streams_go_on(
    connect: Callable[..., Any], comings: Comings, over: str, kills: tuple[int, ...]
) -> None:
    """Killed between tokens, and between the layers of a token, before and after the ring is full. The client
    is told nothing of it: the first call after the start finds out."""
    client = connect(comings.address)
    with client.decode() as call:
        opener = call if over == "call" else client
        pairs = [Pair(opener, seed) for seed in range(3)]
        for pair, tokens in zip(pairs, (3, 60, 100), strict=True):
            pair.tokens(tokens)
        for done in kills:
            for pair in pairs:
                pair.begin(2)
                for layer in range(done):
                    pair.layer(layer)
            comings.kill()
            comings.start()
            for pair in pairs:
                for layer in range(done, SPEC.layers):
                    pair.layer(layer)
                pair.tokens(3)
        assert client.info().streams == 3
        for pair in pairs:
            assert pair.stream.stats().length == pair.stream.length
            pair.stream.close()
        assert client.info().streams == 0


@pytest.mark.slow
def test_a_call_waits_for_a_server_that_comes_back(connect: Callable[..., Any], comings: Comings) -> None:
    """Within its time; a server that is about to stop, one that is not there, and one that is there again are
    all the same to the caller."""
    client = connect(comings.address)
    with client.decode() as call:
        pair = Pair(call, 1)
        pair.tokens(5)
        pair.begin(1)
        pair.layer(0)
        for layer, number in ((1, signal.SIGTERM), (2, signal.SIGKILL)):
            assert comings.end(number) in (0, -signal.SIGKILL)
            starting = threading.Timer(0.5, comings.start)
            starting.start()
            pair.layer(layer)
            starting.join()
        pair.tokens(3)
        comings.kill()
    patient = connect(comings.address, timeout=1.0)
    with patient.decode() as call, pytest.raises(ServerUnavailable):
        call.open(SPEC)


@pytest.mark.slow
def test_a_step_of_many_goes_on_with_all_of_them(
    connect: Callable[..., Any], comings: Comings, over: str
) -> None:
    client = connect(comings.address)
    with client.decode() as call:
        opener = call if over == "call" else client
        streams = [opener.open(SPEC) for _ in range(6)]
        sessions = [DecoderSession(SPEC, Arena(budget=16 << 20)) for _ in streams]
        tokens = [Token(SPEC, seed) for seed in range(6)]
        for turn in range(8):
            drawn = [token.draw() for token in tokens]
            for layer in range(SPEC.layers):
                if (turn, layer) in {(2, 1), (4, 0), (5, 2)}:
                    comings.kill()
                    comings.start()
                parts = [tuple(array[layer] for array in each) for each in drawn]
                if over == "call":
                    outcomes = call.step(
                        layer, [(stream, *part) for stream, part in zip(streams, parts, strict=True)]
                    )
                else:
                    outcomes = client.step_batch(layer, streams, *map(list, zip(*parts, strict=True)))
                for session, part, outcome in zip(sessions, parts, outcomes, strict=True):
                    assert np.array_equal(outcome.out, session.step(layer, *part))
        for stream in streams:
            assert stream.length == 8
            stream.close()


@pytest.mark.slow
def test_appends_whole_calls_forks_truncates_and_seals_go_on(
    connect: Callable[..., Any], comings: Comings
) -> None:
    token, session = Token(SPEC, 3), DecoderSession(SPEC, Arena(budget=16 << 20))
    client = connect(comings.address)
    with client.decode() as call:
        stream = call.open(SPEC)
        q, k, v = token.draw(50)
        stream.append_all(k, v)
        session.append_all(k, v)
        for layer in (0, 1):  # uncommitted, in pieces of their own
            for row in (slice(0, 2), slice(2, 5)):
                stream.append(layer, k[layer, row], v[layer, row])
                session.append(layer, k[layer, row], v[layer, row])
        fork = stream.fork()
        comings.kill()
        comings.start()
        assert fork.append(2, k[2, :5], v[2, :5]) == 55
        assert stream.append(2, k[2, :5], v[2, :5]) == session.append(2, k[2, :5], v[2, :5]) == 55
        assert (stream.length, fork.length) == (55, 55)
        assert np.array_equal(stream.step_all(q, k, v), session.step_all(q, k, v))
        comings.kill()
        comings.start()
        stream.truncate(100)
        session.truncate(100)
        comings.kill()
        comings.start()
        assert np.array_equal(stream.attend(1, q[1, :3]), session.attend(1, q[1, :3]))
        stream.seal()
        comings.kill()
        comings.start()
        assert np.array_equal(stream.attend(1, q[1, :3]), session.attend(1, q[1, :3]))
        for each in (stream, fork):
            each.close()
        assert client.info().streams == 0


@pytest.mark.slow
def test_a_stream_that_somebody_else_took_is_not_taken_back(
    connect: Callable[..., Any], comings: Comings, over: str
) -> None:
    """Not even over a connection that had to be made anew."""
    first, second = connect(comings.address), connect(comings.address)
    with first.decode() as call:
        pair = Pair(call if over == "call" else first, 4)
        pair.tokens(4)
        taken = second.attach(pair.stream.handle)
        pair.begin(1)
        for _ in range(2):
            with pytest.raises(StaleGeneration):
                pair.layer(0)
        comings.kill()
        comings.start()
        _, k, v = Token(SPEC, 5).draw(3)
        assert taken.append_all(k, v) == 7
        generation = taken.generation
        for _ in range(2):
            with pytest.raises(StaleGeneration):
                pair.layer(0)
        assert taken.append_all(k, v) == 10
        assert taken.generation == generation


@pytest.mark.slow
def test_another_server_does_not_have_the_stream(
    connect: Callable[..., Any], tmp_path: Path, over: str
) -> None:
    """Without its file it is gone, and the caller is told."""
    server = Comings(tmp_path)
    server.start()
    client = connect(server.address)
    with client.decode() as call:
        pair = Pair(call if over == "call" else client, 6)
        pair.tokens(2)
        server.kill()
        (tmp_path / "arena").unlink()
        server.start()
        pair.begin(1)
        with pytest.raises(StreamNotFound):
            pair.layer(0)
        pair.stream.close()
        assert pair.stream.closed
    server.close()


@pytest.mark.slow
def test_a_client_learns_the_limits_of_a_server_that_was_started_anew(
    connect: Callable[..., Any], comings: Comings
) -> None:
    """Its file's epoch stays, its limits need not."""
    client = connect(comings.address)
    before = client.info()
    stream = client.open(SPEC)
    assert len(list(stream.chunks(30, first=0))) < 10
    comings.kill()
    comings.start(max_message_bytes=2048)
    other = client.open(SPEC)
    assert client.info().epoch == before.epoch
    assert client.info().max_message_bytes == 2048
    assert len(list(other.chunks(30, first=0))) >= 10
    with client.decode() as call:
        assert len(list(call.open(SPEC).chunks(30, first=0))) >= 10


@pytest.mark.slow
def test_time_is_counted_once(connect: Callable[..., Any], comings: Comings) -> None:
    """A call that finds its server gone does not take the time of all its tries, but its own."""
    client = connect(comings.address, timeout=1.5)
    with client.decode() as call:
        pair = Pair(call, 7)
        pair.tokens(2)
        comings.kill()
        pair.begin(1)
        with pytest.raises((ServerUnavailable, DeadlineExpired)):
            pair.layer(0)
        comings.start()
        pair.layer(0)
