"""Message limits of client and server: kept by what cuts, named by what refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from transports import flags, to

from rondel.client import AsyncAttentionClient
from rondel.client.calls import DEFAULT_MAX_MESSAGE_BYTES
from rondel.client.cli.launch import server
from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import QuotaExceeded
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import LayerGroup, StreamSpec
from rondel.server.config import ServerConfig

NARROW = 1024


@pytest.fixture(scope="module")
def narrow() -> Iterator[str]:
    """A server with the smallest message limit there can be."""
    with server(f"--max-message-bytes={NARROW}", "--budget-bytes=67108864", *flags()) as running:
        yield running.address


def spec_of(layers: int, head_dim: int, **options: Any) -> StreamSpec:
    return StreamSpec.uniform(
        layers=layers, query_heads=2, kv_heads=1, head_dim=head_dim, window=32, reserve=16, **options
    )


def arrays(spec: StreamSpec, layers: int, tokens: int, rng: np.random.Generator) -> tuple[Any, Any, Any]:
    group = spec.group(0)
    q = rng.standard_normal((layers, tokens, group.query_heads, group.key_dim), np.float32)
    k = rng.standard_normal((layers, tokens, group.kv_heads, group.key_dim), np.float32)
    v = rng.standard_normal((layers, tokens, group.kv_heads, group.value_dim), np.float32)
    return q, k, v


def test_client_and_server_have_the_same_limit_by_default() -> None:
    assert ServerConfig().max_message_bytes == DEFAULT_MAX_MESSAGE_BYTES


# The last of these leaves room for one token in a message, and almost for two.
@pytest.mark.parametrize("head_dim", [1, 2, 3, 4, 8, 16, 20, 24, 40])
def test_chunks_fit_a_narrow_server(
    head_dim: int, connect: Callable[..., Any], narrow: str, rng: np.random.Generator
) -> None:
    spec = spec_of(2, head_dim, max_length=1 << 40)
    q, k, v = arrays(spec, 2, 50, rng)
    with connect(narrow).open(spec) as stream, DecoderSession(spec, Arena(budget=16 << 20)) as session:
        expected = session.step_all(q, k, v)
        parts = list(stream.chunks(50))
        assert [part.start for part in parts] == [0, *(part.stop for part in parts[:-1])]
        for part in stream.chunks(50):
            for layer in range(2):
                args = (a[layer, part] for a in (q, k, v))
                out, lse = stream.step(layer, *args, return_lse=True)
                assert np.array_equal(out, expected[layer, part])
                assert lse.shape == out.shape[:2]
        assert stream.length == 50
        assert np.array_equal(stream.step_all(q, k, v), session.step_all(q, k, v))


@pytest.mark.parametrize("layers", [1, 3, 7])
@pytest.mark.parametrize("head_dim", [1, 16, 60])
def test_append_all_fits_a_narrow_server(
    head_dim: int, layers: int, connect: Callable[..., Any], narrow: str, rng: np.random.Generator
) -> None:
    spec = spec_of(layers, head_dim)
    q, k, v = arrays(spec, layers, 300, rng)
    with connect(narrow).open(spec) as stream, DecoderSession(spec, Arena(budget=16 << 20)) as session:
        assert stream.append_all(k, v) == session.append_all(k, v) == 300
        for layer in range(layers):
            assert np.array_equal(stream.attend(layer, q[layer, :1]), session.attend(layer, q[layer, :1]))


def test_when_not_even_one_token_fits(connect: Callable[..., Any], narrow: str) -> None:
    spec = spec_of(2, 128)
    q, k, v = arrays(spec, 2, 5, np.random.default_rng(0))
    with connect(narrow).open(spec) as stream:
        for call in (
            lambda: stream.chunks(5),
            lambda: stream.append_all(k, v),
            lambda: stream.step_all(q, k, v),
        ):
            with pytest.raises(QuotaExceeded, match=rf"one token .* max_message_bytes .* {NARROW}; raise it"):
                call()
        assert stream.stats().high_water == 0


def test_a_wide_group_among_narrow_ones_counts(connect: Callable[..., Any], narrow: str) -> None:
    spec = StreamSpec(
        groups=(
            LayerGroup(layers=(0,), query_heads=1, kv_heads=1, key_dim=4, value_dim=4, window=64, reserve=64),
            LayerGroup(
                layers=(1,), query_heads=1, kv_heads=1, key_dim=4, value_dim=90, window=64, reserve=64
            ),
        )
    )
    with connect(narrow).open(spec) as stream:
        for part in stream.chunks(20):
            for layer, group in enumerate(spec.groups):
                q = np.zeros((part.stop - part.start, 1, 4), np.float32)
                stream.step(layer, q, q, np.zeros((len(q), 1, group.value_dim), np.float32))
        assert stream.length == 20


def test_a_narrow_client_cuts_as_well(connect: Callable[..., Any], address: str) -> None:
    spec = spec_of(2, 16)
    q, k, v = arrays(spec, 2, 50, np.random.default_rng(0))
    with connect(address, max_message_bytes=NARROW).open(spec) as stream:
        assert stream.step_all(q, k, v).shape == q.shape
        assert stream.append_all(k, v) == 100


def test_the_server_s_refusal_says_so(connect: Callable[..., Any], narrow: str) -> None:
    spec = spec_of(1, 16)
    q, k, v = (array[0] for array in arrays(spec, 1, 40, np.random.default_rng(0)))
    with connect(narrow).open(spec) as stream:
        with pytest.raises(
            QuotaExceeded, match=r"the server at .* start the server with a larger"
        ) as refused:
            stream.step(0, q, k, v)
        assert refused.value.facts["side"] == "server"
        assert stream.stats().length == 0


def test_the_client_s_refusal_says_so(connect: Callable[..., Any], address: str) -> None:
    spec = spec_of(1, 16)
    _, k, v = (array[0] for array in arrays(spec, 1, 3, np.random.default_rng(0)))
    with connect(address, max_message_bytes=NARROW).open(spec) as stream:
        stream.append(0, k, v)
        many = np.concatenate([k] * 9)
        with pytest.raises(
            QuotaExceeded, match=r"this client's max_message_bytes, 1024; .* larger"
        ) as refused:
            stream.append(0, many, many)
        assert refused.value.facts["side"] == "client"
        assert stream.stats().length == 3


def test_a_reply_that_the_client_refuses(connect: Callable[..., Any], address: str) -> None:
    spec = StreamSpec.uniform(layers=1, query_heads=1, kv_heads=1, head_dim=1, value_dim=400, window=64)
    with connect(address, max_message_bytes=NARROW).open(spec) as stream:
        # As float16 it can be sent; what it is asked for comes back as float32.
        stream.append(0, np.zeros((1, 1, 1), np.float32), np.zeros((1, 1, 400), np.float16))
        with pytest.raises(QuotaExceeded, match=r"the client of .* make the client with a larger") as refused:
            stream.attend(0, np.zeros((1, 1, 1), np.float32), position=0)
        assert refused.value.facts["side"] == "client"


def test_a_larger_limit_on_both_sides_lets_larger_messages_through(connect: Callable[..., Any]) -> None:
    wide = StreamSpec.uniform(layers=1, query_heads=16, kv_heads=16, head_dim=256, max_length=512)
    q = np.zeros((400, 16, 256), np.float32)
    with (
        server("--max-message-bytes=33554432", "--budget-bytes=67108864", *flags()) as running,
        connect(running.address, max_message_bytes=32 << 20).open(wide) as stream,
    ):
        assert stream.step(0, q, q, q).shape == q.shape


def test_another_server_at_the_same_address_is_asked_again(
    connect: Callable[..., Any], tmp_path: Any, rng: np.random.Generator
) -> None:
    spec = spec_of(1, 16)
    q, k, v = arrays(spec, 1, 40, rng)
    path = tmp_path / "socket"
    with server(f"--unix-path={path}"):
        client = connect(f"unix:{path}")
        assert len(list(client.open(spec).chunks(17))) == 1
    with server(f"--unix-path={path}", f"--max-message-bytes={NARROW}"), client.open(spec) as stream:
        assert len(list(stream.chunks(17))) > 1
        assert stream.step_all(q, k, v).shape == q.shape


async def test_the_asyncio_client_takes_the_option_too(address: str) -> None:
    async with AsyncAttentionClient(address, max_message_bytes=NARROW, **to(address)) as client:
        stream = await client.open(spec_of(1, 16))
        assert max(part.stop - part.start for part in stream.chunks(17)) < 17
