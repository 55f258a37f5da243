"""A client's day on every transport. All tests of clients run on each with ``make test-transports``."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from transports import Transport

from rondel.client import GenerationClient
from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import SequenceGap, StreamClosed
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec

SPEC = StreamSpec.uniform(layers=2, query_heads=4, kv_heads=2, head_dim=32, window=100, reserve=8)


@pytest.mark.every_transport
def test_a_day(
    connect: Callable[..., Any], running: str, transport: Transport, rng: np.random.Generator
) -> None:
    client, generation = connect(running), connect(running, GenerationClient)
    assert running.startswith("unix:") == (transport.name == "unix")
    assert client.info().tenant.name == transport.tenant
    twin = DecoderSession(SPEC, Arena(64 << 20))
    q = rng.standard_normal((2, 300, 4, 32), np.float32)
    k, v = rng.standard_normal((2, 2, 300, 2, 32), np.float32)
    with client.open(SPEC) as stream:
        np.testing.assert_array_equal(stream.step_all(q, k, v), remote(twin, q, k, v))
        np.testing.assert_array_equal(stream.attend(1, q[1, -3:]), twin.attend(1, q[1, -3:]))
        (outcome,) = client.step_batch(0, [stream], [q[0, :1]], [k[0, :1]], [v[0, :1]])
        np.testing.assert_array_equal(outcome.out, twin.step(0, q[0, :1], k[0, :1], v[0, :1]))
        fork = stream.fork()
        fork.truncate(296)
        with pytest.raises(SequenceGap):
            fork.truncate(297)
        snapshot = io.BytesIO()
        fork.export(snapshot)
        snapshot.seek(0)
        back = client.import_stream(snapshot)
        assert {each.handle for each in client.list_streams()} == {
            each.handle for each in (stream, fork, back)
        }
        back.close()
        fork.close()
        with pytest.raises(StreamClosed):
            client.export_stream(fork.handle, io.BytesIO())
    assert client.list_streams() == []
    text = "".join(generation.generate("hello", max_tokens=5).text())
    assert text == "".join(generation.generate("hello", max_tokens=5).text())


def remote(twin: DecoderSession, q: Any, k: Any, v: Any) -> Any:
    """What a stream of a server makes of all layers, in the pieces that it takes."""
    parts = [twin.step_all(q[:, part], k[:, part], v[:, part]) for part in twin.chunks(q.shape[1])]
    return np.concatenate(parts, axis=1)
