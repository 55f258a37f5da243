"""AttentionService: what goes over the wire is what a session in this process gives."""

import numpy as np
import pytest
from rawclient import SPEC, Client, Failure, Tokens, item

from rondel.decoder import kernels, pool
from rondel.decoder.cache.arena import Arena
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec
from rondel.server.app import Server
from rondel.v1 import attention_pb2 as pb
from rondel.v1 import spec_pb2, tensor_pb2
from rondel.v1.specs import spec_to_message
from rondel.v1.wire import from_tensor, to_tensor


@pytest.fixture
def local() -> DecoderSession:
    return DecoderSession(SPEC, Arena(budget=64 << 20))


async def test_open_tells_what_is_in_force(client: Client, server: Server) -> None:
    reply = await client.attention.OpenStream(pb.OpenStreamRequest(spec=spec_to_message(SPEC)))
    assert len(reply.handle) >= 20
    assert reply.epoch == server.streams.epoch >= 1
    assert reply.generation == reply.committed_length == 0
    assert reply.max_chunk == 9
    assert reply.bytes_reserved == server.arena.stats().reserved or reply.bytes_reserved > 0
    assert reply.spec == spec_to_message(SPEC, in_force=True)
    assert reply.spec.groups[0].storage == spec_pb2.STORAGE_TYPE_INT8
    assert reply.idle_lease_ms == 3_600_000


async def test_a_stream_that_never_wraps_has_no_max_chunk(client: Client) -> None:
    spec = StreamSpec.uniform(layers=1, query_heads=1, kv_heads=1, head_dim=8, max_length=100)
    reply = await client.attention.OpenStream(pb.OpenStreamRequest(spec=spec_to_message(spec)))
    assert not reply.HasField("max_chunk")


@pytest.mark.every_transport
async def test_steps_equal_those_of_a_session(client: Client, tokens: Tokens, local: DecoderSession) -> None:
    stream = await client.open()
    for position in range(300):  # wraps
        k, v = tokens.kv(1)
        for layer in range(3):
            q = tokens.q(1)
            expected, lse = local.step(layer, q, k[layer], v[layer], return_lse=True)
            (result,) = await client.step(layer, item(stream, position, q, k[layer], v[layer], lse=True))
            assert result.status.code == 0
            assert not result.duplicate
            assert result.layer_length == position + 1
            assert result.committed_length == local.length
            np.testing.assert_array_equal(from_tensor(result.out, name="out"), expected)
            np.testing.assert_array_equal(from_tensor(result.lse, name="lse"), lse)


async def test_append_and_attend_equal_those_of_a_session(
    client: Client, tokens: Tokens, local: DecoderSession
) -> None:
    stream = await client.open()
    position = 0
    for count in (1, 9, 100, 1, 64, 200):
        k, v = tokens.kv(count)
        local.append_all(k, v)
        reply = await client.append(stream, position, k, v)
        position += count
        assert (reply.committed_length, reply.layer_length, reply.duplicate) == (position, position, False)
        rows = min(count, 9)
        for layer in range(3):
            q = tokens.q(rows)
            np.testing.assert_array_equal(await client.attend(stream, layer, q), local.attend(layer, q))


async def test_an_append_is_atomic_over_its_layers(client: Client, tokens: Tokens) -> None:
    stream = await client.open()
    k, v = tokens.kv(4)
    v[2, 3, 1, 7] = np.nan
    with pytest.raises(Exception, match="finite"):
        await client.append(stream, 0, k, v)
    state = await client.get(stream)
    assert list(state.layer_lengths) == [0, 0, 0]
    assert state.high_water == 0
    v[2, 3, 1, 7] = 0
    assert (await client.append(stream, 0, k, v)).committed_length == 4


async def test_a_run_of_layers_can_be_appended(client: Client, tokens: Tokens) -> None:
    stream = await client.open()
    k, v = tokens.kv(2)
    reply = await client.append(stream, 0, k[1:], v[1:], layer=1)
    assert (reply.committed_length, reply.layer_length) == (0, 2)
    assert list((await client.get(stream)).layer_lengths) == [0, 2, 2]
    reply = await client.append(stream, 0, k[:1], v[:1])
    assert (reply.committed_length, reply.layer_length) == (2, 2)


async def test_other_float_types_are_widened(client: Client, tokens: Tokens, local: DecoderSession) -> None:
    stream = await client.open()
    k, v = tokens.kv(5)
    await client.attention.AppendToken(
        pb.AppendTokenRequest(
            stream=stream,
            k=to_tensor(k.astype(np.float16)),
            v=to_tensor(v, dtype=tensor_pb2.DTYPE_BFLOAT16),
        )
    )
    local.append_all(
        k.astype(np.float16).astype(np.float32),
        from_tensor(to_tensor(v, dtype=tensor_pb2.DTYPE_BFLOAT16), name="v"),
    )
    q = tokens.q(5)
    np.testing.assert_array_equal(await client.attend(stream, 1, q, 0), local.attend(1, q, position=0))


async def test_items_of_a_step_are_independent(client: Client, tokens: Tokens) -> None:
    spec = StreamSpec.uniform(layers=1, query_heads=4, kv_heads=2, head_dim=16, value_dim=8, window=64)
    good, behind = await client.open(spec), await client.open(spec)
    gone = pb.StreamRef(handle="nowhere")
    q, k, v = tokens.qkv(1)
    bad = k.copy()
    bad[0, 0, 0] = np.inf
    fourth = await client.open(spec)
    results = await client.step(
        0,
        item(gone, 0, q, k, v),
        item(behind, 5, q, k, v),
        item(good, 0, q, k, v),
        item(fourth, 0, q, bad, v),
    )
    assert [result.status.code != 0 for result in results] == [True, True, False, True]
    assert [(await client.get(s)).committed_length for s in (behind, good, fourth)] == [0, 1, 0]
    assert results[2].committed_length == 1
    assert not results[0].HasField("out")
    alone = await client.open(spec)
    (single,) = await client.step(0, item(alone, 0, q, k, v))
    assert single.out == results[2].out


async def test_get_tells_the_streams_numbers(client: Client, tokens: Tokens, local: DecoderSession) -> None:
    stream = await client.open()
    k, v = tokens.kv(500)
    local.append_all(k, v)
    await client.append(stream, 0, k, v)
    stats, state = local.stats(), await client.get(stream)
    assert state.committed_length == state.high_water == 500
    assert state.min_length == stats.min_length == 492
    assert state.bytes_resident == stats.bytes_resident
    assert state.bytes_reserved == stats.bytes_reserved
    assert state.bits_per_value == stats.bits_per_value
    assert state.pages == stats.pages
    assert state.max_chunk == 9


@pytest.mark.filterwarnings("ignore::rondel.decoder.quality.QualityWarning")
async def test_get_tells_how_the_keys_suit_the_storage_and_the_log_once_if_they_do_not(
    client: Client, tokens: Tokens, local: DecoderSession, caplog: pytest.LogCaptureFixture
) -> None:
    stream = await client.open()
    request = pb.GetStreamRequest(stream=stream, quality=True)
    k, v = tokens.kv(500)
    for start, outlying in ((0, 1.0), (250, 50.0)):
        part = slice(start, start + 250)
        k[:, part, 1, 5] *= outlying
        assert not (await client.attention.GetStream(request)).HasField("quality") or start
        local.append_all(k[:, part], v[:, part])
        await client.append(stream, start, k[:, part], v[:, part])
        assert not (await client.get(stream)).HasField("quality")
        for _ in range(2):
            told = (await client.attention.GetStream(request)).quality
            wanted = local.stats(quality=True).quality
            assert wanted is not None
            assert wanted.worrying == (outlying > 1.0)
            found = (told.score_error, told.worst_layer, told.outlier_ratio, told.capped_channels)
            assert found == (wanted.score_error, wanted.worst_layer, wanted.outlier_ratio, 0)
        assert caplog.text.count("do not suit its storage") == wanted.worrying


async def test_truncate_starts_a_new_generation(client: Client, tokens: Tokens) -> None:
    stream = await client.open()
    k, v = tokens.kv(10)
    await client.append(stream, 0, k, v)
    reply = await client.attention.TruncateStream(pb.TruncateStreamRequest(stream=stream, length=6))
    assert (reply.generation, reply.committed_length) == (1, 6)
    assert (await client.append(stream, 6, k, v, generation=1)).committed_length == 16


async def test_the_server_describes_itself(client: Client, server: Server, tokens: Tokens) -> None:
    before = await client.info()
    assert before.tier == kernels.TIER
    assert before.version
    assert before.threads == pool.threads()
    assert before.limits.max_message_bytes == server.config.max_message_bytes
    assert before.limits.max_step_items == server.config.max_step_items
    assert before.memory.budget == 64 << 20
    assert before.memory.reserved == before.memory.resident == before.streams == 0
    stream = await client.open()
    await client.append(stream, 0, *tokens.kv(1))
    during = await client.info()
    assert during.streams == 1
    assert 0 < during.memory.resident <= during.memory.reserved
    closed = await client.close(stream)
    assert closed.committed_length == 1
    assert closed.bytes_released > 0
    assert (await client.info()).memory == before.memory


async def test_a_stream_twice_in_a_step(client: Client, tokens: Tokens) -> None:
    stream = await client.open()
    q, k, v = tokens.qkv(2)
    other = pb.StreamRef(handle=stream.handle)  # without the epoch: the same stream all the same
    items = [item(stream, 0, q[:1], k[:1], v[:1]), item(other, 1, q[1:], k[1:], v[1:])]
    first, second = await client.step(0, *items)
    assert (first.status.code, first.layer_length) == (0, 1)
    failed = Failure.of(second.status)
    assert (failed.reason, failed.message) == ("INVALID_REQUEST", "a stream may occur once in a call")
    assert failed.facts["field"] == "stream"
    assert list((await client.get(stream)).layer_lengths) == [1, 0, 0]
