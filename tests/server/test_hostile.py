"""Requests that no honest client sends, and limits: each a typed error, and nothing else has changed."""

import asyncio
from collections.abc import AsyncIterator, Callable

import grpc
import numpy as np
import pytest
import pytest_asyncio
from rawclient import SPEC, Client, Failure, Tokens, item

from rondel.decoder.spec import StreamSpec
from rondel.server.app import Server
from rondel.server.config import ServerConfig
from rondel.v1 import attention_pb2 as pb
from rondel.v1 import tensor_pb2
from rondel.v1.specs import spec_to_message
from rondel.v1.wire import to_tensor

INTEGERS = [-(2**63), -(2**31), -1, 2**31, 2**48 + 1, 2**63 - 1]


@pytest_asyncio.fixture
async def witness(client: Client, rng: np.random.Generator) -> AsyncIterator[pb.StreamRef]:
    """A stream of somebody else, which must be the same afterwards."""
    tokens = Tokens(rng)
    stream = await client.open()
    await client.append(stream, 0, *tokens.kv(200))
    q = tokens.q(4)
    state, out = await client.get(stream), await client.attend(stream, 0, q)
    yield stream
    assert await client.get(stream) == state
    np.testing.assert_array_equal(await client.attend(stream, 0, q), out)


@pytest_asyncio.fixture
async def target(client: Client, rng: np.random.Generator) -> AsyncIterator[pb.StreamRef]:
    """The stream that is attacked: it must be the same afterwards as well."""
    stream = await client.open()
    await client.append(stream, 0, *Tokens(rng).kv(10))
    state = await client.get(stream)
    yield stream
    assert await client.get(stream) == state


async def refused(call: object) -> Failure:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call  # type: ignore[misc]
    failed = Failure.of_call(caught.value)
    assert failed.code == grpc.StatusCode.INVALID_ARGUMENT, failed
    return failed


def append_request(stream: pb.StreamRef, tokens: Tokens) -> pb.AppendTokenRequest:
    k, v = tokens.kv(1)
    return pb.AppendTokenRequest(stream=stream, position=10, k=to_tensor(k), v=to_tensor(v))


@pytest.mark.parametrize("number", INTEGERS)
async def test_positions_and_lengths(
    client: Client, witness: pb.StreamRef, target: pb.StreamRef, tokens: Tokens, number: int
) -> None:
    if number != 2**31:  # a possible position: a gap, not an impossibility
        append = append_request(target, tokens)
        append.position = number
        await refused(client.attention.AppendToken(append))
        q = to_tensor(tokens.q(1))
        await refused(client.attention.Attend(pb.AttendRequest(stream=target, position=number, q=q)))
        await refused(client.attention.TruncateStream(pb.TruncateStreamRequest(stream=target, length=number)))
        await refused(client.fork(target, number))
        (result,) = await client.step(0, item(target, number, *tokens.qkv(1)))
        assert Failure.of(result.status).code == grpc.StatusCode.INVALID_ARGUMENT
    for generation in INTEGERS:
        append = append_request(target, tokens)
        append.generation = generation
        with pytest.raises(grpc.aio.AioRpcError, match="generation"):
            await client.attention.AppendToken(append)


@pytest.mark.parametrize("number", INTEGERS)
async def test_limits_of_forks(
    client: Client, witness: pb.StreamRef, target: pb.StreamRef, tokens: Tokens, number: int
) -> None:
    """Below 0 there is none; above all that a stream can hold it is no limit."""
    if number < 0:
        await refused(client.fork(target, 10, most=number))
        return
    fork = await client.fork(target, 10, most=number)
    stream = pb.StreamRef(handle=fork.handle)
    assert (await client.append(stream, 10, *tokens.kv(500))).committed_length == 510
    await client.close(stream)


@pytest.mark.parametrize("layer", [3, 2**31, 2**32 - 1])
async def test_layers(
    client: Client, witness: pb.StreamRef, target: pb.StreamRef, tokens: Tokens, layer: int
) -> None:
    append = append_request(target, tokens)
    append.first_layer = layer
    await refused(client.attention.AppendToken(append))
    q = to_tensor(tokens.q(1))
    await refused(client.attention.Attend(pb.AttendRequest(stream=target, layer=layer, q=q)))
    (result,) = await client.step(layer, item(target, 10, *tokens.qkv(1)))
    failed = Failure.of(result.status)
    assert (failed.reason, failed.facts["layers"]) == ("INVALID_LAYER", "3")


def bad_tensors(good: tensor_pb2.Tensor) -> list[tensor_pb2.Tensor]:
    """What can be wrong with a tensor of 4 axes or 3, in each of its numbers."""
    bad = []
    for axis in range(len(good.shape)):
        for number in [*INTEGERS, 0, 7]:
            tensor = tensor_pb2.Tensor.FromString(good.SerializeToString())
            tensor.shape[axis] = number
            bad.append(tensor)
            if number == 0:
                empty = tensor_pb2.Tensor.FromString(tensor.SerializeToString())
                empty.data = b""
                bad.append(empty)
    for change in (
        {"data": good.data[:-1]},
        {"data": good.data + b"\0"},
        {"data": b""},
        {"dtype": tensor_pb2.DTYPE_FLOAT16},
        {"dtype": tensor_pb2.DTYPE_INT8},
        {"dtype": tensor_pb2.DTYPE_UNSPECIFIED},
        {"dtype": 99},
        {"shape": [*good.shape, 1]},
        {"shape": list(good.shape)[1:]},
        {"shape": []},
        {"shape": [1] * 1000},
        {"shape": list(good.shape)[::-1]},
    ):
        fields = {"dtype": good.dtype, "shape": list(good.shape), "data": good.data} | change
        bad.append(tensor_pb2.Tensor(**fields))
    for value in (np.nan, np.inf, -np.inf, 2e15, -2e15):
        array = np.frombuffer(good.data, np.float32).copy()
        array[-1] = value
        bad.append(tensor_pb2.Tensor(dtype=good.dtype, shape=good.shape, data=array.tobytes()))
    bad.append(tensor_pb2.Tensor())
    return bad


async def test_tensors(client: Client, witness: pb.StreamRef, target: pb.StreamRef, tokens: Tokens) -> None:
    k, v = tokens.kv(1)
    q = tokens.q(1)
    for name in ("k", "v"):
        good = append_request(target, tokens)
        for tensor in bad_tensors(getattr(good, name)):
            request = pb.AppendTokenRequest.FromString(good.SerializeToString())
            getattr(request, name).CopyFrom(tensor)
            await refused(client.attention.AppendToken(request))
    for tensor in bad_tensors(to_tensor(q)):
        await refused(client.attention.Attend(pb.AttendRequest(stream=target, q=tensor)))
    good_item = item(target, 10, q, k[0], v[0])
    for name in ("q", "k", "v"):
        for tensor in bad_tensors(getattr(good_item, name)):
            broken = pb.StepItem.FromString(good_item.SerializeToString())
            getattr(broken, name).CopyFrom(tensor)
            (result,) = await client.step(0, broken)
            assert Failure.of(result.status).code == grpc.StatusCode.INVALID_ARGUMENT, tensor


Change = Callable[[pb.OpenStreamRequest], object]


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r.ClearField("spec"),
        lambda r: r.spec.ClearField("groups"),
        lambda r: setattr(r.spec.groups[0], "query_heads", 0),
        lambda r: setattr(r.spec.groups[0], "query_heads", 3),
        lambda r: setattr(r.spec.groups[0], "kv_heads", 2**31),
        lambda r: setattr(r.spec.groups[0], "key_dim", 2**32 - 1),
        lambda r: setattr(r.spec.groups[0], "value_dim", 0),
        lambda r: setattr(r.spec.groups[0], "window", 0),
        lambda r: setattr(r.spec.groups[0], "window", 2**31),
        lambda r: r.spec.groups[0].ClearField("window"),
        lambda r: setattr(r.spec.groups[0], "sinks", 2**31),
        lambda r: setattr(r.spec.groups[0], "reserve", 2**31),
        lambda r: setattr(r.spec.groups[0], "storage", 17),
        lambda r: setattr(r.spec.groups[0], "scale", float("nan")),
        lambda r: setattr(r.spec.groups[0], "scale", -1.0),
        lambda r: setattr(r.spec, "max_length", -1),
        lambda r: setattr(r.spec, "max_length", 2**63 - 1),
        lambda r: r.spec.groups[0].layers.append(2**31),
        lambda r: r.spec.groups[0].layers.append(9),
        lambda r: r.spec.groups.add().CopyFrom(r.spec.groups[0]),
        lambda r: setattr(r, "request_id", "x" * 129),
    ],
)
async def test_specifications(client: Client, server: Server, witness: pb.StreamRef, change: Change) -> None:
    before = server.arena.stats()
    request = pb.OpenStreamRequest(spec=spec_to_message(SPEC))
    change(request)
    await refused(client.attention.OpenStream(request))
    assert server.arena.stats() == before


@pytest.mark.parametrize("handle", ["", "x" * 129, "é" * 65])
async def test_impossible_handles(client: Client, handle: str) -> None:
    assert (await refused(client.get(pb.StreamRef(handle=handle)))).reason == "INVALID_REQUEST"


async def test_unknown_streams(client: Client, target: pb.StreamRef) -> None:
    other_epoch = pb.StreamRef(handle=target.handle, epoch=target.epoch + 1)
    for stream in (pb.StreamRef(handle="nobody"), other_epoch):
        for call in (client.get(stream), client.close(stream)):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            failed = Failure.of_call(caught.value)
            assert (failed.code, failed.reason) == (grpc.StatusCode.NOT_FOUND, "STREAM_NOT_FOUND")
    assert await client.get(pb.StreamRef(handle=target.handle))


async def test_step_as_a_whole(client: Client, server: Server, target: pb.StreamRef, tokens: Tokens) -> None:
    assert "1024" in (await refused(client.step(0))).message
    many = [item(pb.StreamRef(handle=f"h{n}"), 0, *tokens.qkv(1)) for n in range(1025)]
    await refused(client.step(0, *many))


async def test_bytes_that_are_no_message(client: Client, witness: pb.StreamRef) -> None:
    for method in ("OpenStream", "AppendToken", "Attend", "Step", "ForkStream", "GetStream", "CloseStream"):
        call = client.channel.unary_unary(f"/rondel.v1.AttentionService/{method}")
        failed = await refused(call(b"\xff\xff\xff\xff garbage"))
        assert failed.reason == "INVALID_REQUEST"


async def test_an_unknown_method_is_unimplemented(client: Client) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.channel.unary_unary("/rondel.v1.AttentionService/Explode")(b"")
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_chunks_beyond_the_limit(client: Client, tokens: Tokens) -> None:
    stream = await client.open()
    await client.append(stream, 0, *tokens.kv(500))
    state = await client.get(stream)
    k, v = tokens.kv(10)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.append(stream, 500, k[:1], v[:1])
    failed = Failure.of_call(caught.value)
    assert (failed.reason, failed.facts["limit"]) == ("CHUNK_TOO_LONG", "9")
    assert await client.get(stream) == state
    assert (await client.append(stream, 500, k, v)).committed_length == 510


# One of several tenants is not told what there is.
@pytest.mark.only_transport("tcp", "tls", "unix")
async def test_the_budget_is_hard(client: Client, server: Server, witness: pb.StreamRef) -> None:
    large = StreamSpec.uniform(layers=8, query_heads=8, kv_heads=8, head_dim=128, window=1024)
    attempts = await asyncio.gather(*(client.open(large) for _ in range(50)), return_exceptions=True)
    opened = [attempt for attempt in attempts if isinstance(attempt, pb.StreamRef)]
    refusals = [attempt for attempt in attempts if isinstance(attempt, grpc.aio.AioRpcError)]
    assert len(opened) + len(refusals) == 50
    failed = Failure.of_call(refusals[0])
    assert (failed.reason, failed.code) == ("BUDGET_EXCEEDED", grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert int(failed.facts["requested"]) > int(failed.facts["available"])
    assert opened
    await client.close(opened.pop())
    await client.open(large)


class TestSmallLimits:
    @pytest.fixture
    def config(self) -> ServerConfig:
        return ServerConfig(port=0, budget_bytes=64 << 20, max_streams=3, idle_lease_seconds=0.3)

    async def test_the_number_of_streams(self, client: Client) -> None:
        streams = [await client.open() for _ in range(3)]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.open()
        failed = Failure.of_call(caught.value)
        assert (failed.reason, failed.code) == ("QUOTA_EXCEEDED", grpc.StatusCode.RESOURCE_EXHAUSTED)
        await client.close(streams[0])
        await client.open()

    async def test_an_idle_stream_is_closed_and_a_used_one_is_not(
        self, client: Client, server: Server
    ) -> None:
        idle, used = await client.open(), await client.open()
        while (await client.info()).streams == 2:
            await client.get(used)
            await asyncio.sleep(0.02)
        await client.get(used)
        with pytest.raises(grpc.aio.AioRpcError, match="closed"):
            await client.get(idle)
