"""Forks of remote streams and named prefixes, with both clients."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from transports import to

from rondel.client import AttentionClient
from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import (
    InvalidRequest,
    InvalidSpec,
    QuotaExceeded,
    SessionBusy,
    StreamClosed,
    StreamNotFound,
)
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import LayerGroup, StreamSpec

WINDOWED = StreamSpec.uniform(
    layers=2, query_heads=6, kv_heads=2, head_dim=16, window=64, sinks=4, reserve=16
)
MIXED = StreamSpec(
    groups=(
        LayerGroup(layers=(0, 2), query_heads=4, kv_heads=2, key_dim=16, value_dim=8, window=32),
        LayerGroup(layers=(1,), query_heads=4, kv_heads=1, key_dim=24, value_dim=24, centring=True),
    ),
    max_length=300,
)


def tokens(spec: StreamSpec, rng: np.random.Generator, layer: int, count: int) -> tuple[Any, Any, Any]:
    """q, k, v for a layer."""
    group = spec.group(layer)
    heads = (group.query_heads, group.key_dim), (group.kv_heads, group.key_dim), (
        group.kv_heads, group.value_dim
    )  # fmt: skip
    q, k, v = (rng.standard_normal((count, *shape), np.float32) for shape in heads)
    return q, k, v


def stacked(rng: np.random.Generator, count: int) -> tuple[Any, Any, Any]:
    """q, k, v for both layers of WINDOWED."""
    q, k, v = (np.stack(x) for x in zip(*(tokens(WINDOWED, rng, n, count) for n in range(2)), strict=True))
    return q, k, v


def same(got: Any, expected: Any) -> None:
    assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("spec", [WINDOWED, MIXED], ids=["windowed", "mixed"])
def test_a_remote_fork_equals_the_sessions_fork(client: Any, spec: Any, rng: np.random.Generator) -> None:
    """Layers that are ahead are ahead in the fork, too; and the fork of a fork is one more stream."""
    before = client.info()
    stream, session = client.open(spec), DecoderSession(spec, Arena(64 << 20))
    for layer, count in (*((layer, 60) for layer in range(spec.layers)), (0, 5)):
        _, k, v = tokens(spec, rng, layer, count)
        assert stream.append(layer, k, v) == session.append(layer, k, v)
    forks = [(stream, session), (stream.fork(), session.fork())]
    forks.append((forks[1][0].fork(max_new_tokens=9), forks[1][1].fork(max_new_tokens=9)))
    for far, near in forks:
        assert (far.length, far.generation, far.max_chunk) == (near.length, 0, near.max_chunk)
        assert [far.layer_length(n) for n in range(spec.layers)] == [
            near.layer_length(n) for n in range(spec.layers)
        ]
        for layer in range(spec.layers):
            q, k, v = tokens(spec, rng, layer, 4)
            same(far.step(layer, q, k, v), near.step(layer, q, k, v))
        assert far.stats().bytes_shared == near.stats().bytes_shared
    stream.close()
    far, near = forks[2]
    far.truncate(60)
    near.truncate(60)
    q, k, v = tokens(spec, rng, 0, 10)
    for one in (far, near):
        with pytest.raises(QuotaExceeded):
            one.append(0, k, v)
    same(far.step(0, q[:3], k[:3], v[:3]), near.step(0, q[:3], k[:3], v[:3]))
    for far, _ in forks:
        far.close()
    after = client.info()
    assert (after.reserved, after.resident, after.shared) == (before.reserved, before.resident, before.shared)


def test_a_prefix_outlives_the_client_that_named_it(
    client: Any, address: str, rng: np.random.Generator
) -> None:
    q, k, v = stacked(rng, 100)
    with AttentionClient(address, **to(address)) as first:
        stream = first.open(WINDOWED)
        stream.append_all(k, v)
        rules = f"rules {stream.handle}"
        handle = stream.fork(prefix_name=rules).handle
    before = client.info().streams
    local = DecoderSession(WINDOWED, Arena(64 << 20))
    local.append_all(k, v)
    for options in ({}, {"max_new_tokens": 30}):
        with client.open(from_prefix=rules, **options) as begun:
            assert (begun.spec.layers, begun.length) == (2, 100)
            with local.fork() as twin:
                q, k, v = stacked(rng, 20)
                same(begun.step_all(q, k, v), twin.step_all(q, k, v))
            assert begun.handle != handle
    with client.open(WINDOWED, from_prefix=rules) as begun, pytest.raises(InvalidRequest):
        begun.fork(prefix_name=rules)
    with pytest.raises(InvalidRequest):
        client.open(MIXED, from_prefix=rules)
    assert client.info().streams == before
    with client.open(from_prefix=rules) as begun:
        begun.fork(prefix_name="others").close()
    with pytest.raises(StreamNotFound):
        client.open(from_prefix="others")


def test_a_fork_whose_reply_was_lost_is_made_once(
    connect: Callable[..., Any], proxy: Any, address: str, rng: np.random.Generator
) -> None:
    with AttentionClient(address, **to(address)) as direct:
        stream = connect(proxy.address).open(WINDOWED)
        _, k, v = stacked(rng, 10)
        stream.append_all(k, v)
        before = direct.info().streams

        def cut() -> None:
            while direct.info().streams == before:  # the test's time limit is the failure
                time.sleep(0.005)
            proxy.cut()

        proxy.mute()
        cutter = threading.Thread(target=cut)
        cutter.start()
        with stream.fork() as fork:
            assert (fork.length, fork.layer_length(1)) == (10, 10)
            assert direct.info().streams == before + 1
        cutter.join(30)


@pytest.mark.parametrize("most", [-1, 1.5, "3", True, np.float32(2)], ids=repr)
def test_impossible_forks(client: Any, most: Any) -> None:
    with client.open(WINDOWED) as stream:
        with pytest.raises(InvalidRequest):
            stream.fork(max_new_tokens=most)
        with pytest.raises(InvalidRequest):
            stream.fork(prefix_name=7)
        with pytest.raises(InvalidRequest):
            stream.fork(prefix_name="x" * 129)
        with pytest.raises(InvalidRequest):
            client.open(WINDOWED, max_new_tokens=3)
        with pytest.raises(InvalidSpec):
            client.open()
        with pytest.raises(TypeError):
            client.open(WINDOWED, prefix="x")
        with stream.alone(), pytest.raises(SessionBusy):
            stream.fork()
        with stream.fork(max_new_tokens=10**30) as fork:
            assert fork.length == 0
    with pytest.raises(StreamClosed):
        stream.fork()
