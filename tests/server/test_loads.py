"""What requests are thought to cost before they wait."""

import numpy as np
import pytest
from rawclient import SPEC, Client, Tokens, item
from transports import tenant

from rondel.decoder.session import DecoderSession
from rondel.server import loads
from rondel.server.app import Server
from rondel.server.operation import Load
from rondel.v1 import attention_pb2 as pb
from rondel.v1 import tensor_pb2
from rondel.v1.wire import to_tensor

GROUP = SPEC.groups[0]
WIDTH = GROUP.key_dim + GROUP.value_dim


def through(keys: int, rows: int) -> tuple[int, int]:
    """Bytes and multiplications of so many rows over so many keys."""
    return keys * GROUP.kv_heads * WIDTH, rows * keys * GROUP.query_heads * WIDTH


def of_step(server: Server, request: pb.StepRequest) -> Load:
    def look_up(number: int) -> DecoderSession | None:
        return server.streams.look_up(tenant(), request.items[number].stream.handle)

    return loads.of_step(request, look_up)


def of_attend(server: Server, request: pb.AttendRequest) -> Load:
    return loads.of_attend(request, server.streams.look_up(tenant(), request.stream.handle))


async def test_a_step_costs_what_its_stream_holds(client: Client, server: Server, tokens: Tokens) -> None:
    stream = await client.open()
    for held in (0, 10, 30):
        request = pb.StepRequest(items=[item(stream, held, *tokens.qkv(2))])
        assert of_step(server, request) == Load("step", 1, *through(held + 2, 2))
        if held < 30:
            await client.append(stream, held, *tokens.kv(10 if held == 0 else 20))
    await client.append(stream, 30, *tokens.kv(400))
    request = pb.StepRequest(items=[item(stream, 430, *tokens.qkv(1))])
    assert of_step(server, request) == Load("step", 1, *through(64 + 4, 1))  # window and sinks


async def test_many_items_are_told_by_some(client: Client, server: Server, tokens: Tokens) -> None:
    stream = await client.open()
    await client.append(stream, 0, *tokens.kv(20))
    request = pb.StepRequest(items=[item(stream, 20, *tokens.qkv(1)) for _ in range(100)])
    load = of_step(server, request)
    size, products = through(21, 1)
    assert load.items == 100
    assert load.bytes == pytest.approx(100 * size, rel=0.01)
    assert load.products == pytest.approx(100 * products, rel=0.01)


async def test_an_attend_and_an_append(client: Client, server: Server, tokens: Tokens) -> None:
    stream = await client.open()
    k, v = tokens.kv(20)
    append = pb.AppendTokenRequest(stream=stream, k=to_tensor(k), v=to_tensor(v))
    assert loads.of_append(append) == Load("append", 3, k.nbytes + v.nbytes, 0)
    await client.append(stream, 0, k, v)
    attend = pb.AttendRequest(stream=stream, q=to_tensor(tokens.q(5)))
    assert of_attend(server, attend) == Load("attend", 1, *through(20, 5))
    attend.explain = True
    assert of_attend(server, attend).kind == "explain"


@pytest.mark.parametrize("shape", [[], [-5, 4, 16], [1 << 62], [0, 0, 0], [-(1 << 63)]])
@pytest.mark.parametrize("layer", [0, 7, (1 << 32) - 1])
async def test_nonsense_costs_nothing_to_speak_of(
    client: Client, server: Server, shape: list[int], layer: int
) -> None:
    tensor = tensor_pb2.Tensor(shape=shape, data=b"12345678")
    for stream in (await client.open(), pb.StreamRef(handle="nobody's"), pb.StreamRef()):
        step = pb.StepRequest(layer=layer, items=[pb.StepItem(stream=stream, q=tensor)])
        for load in (
            of_step(server, step),
            of_attend(server, pb.AttendRequest(stream=stream, layer=layer, q=tensor)),
            loads.of_append(pb.AppendTokenRequest(stream=stream, k=tensor, v=tensor)),
        ):
            assert 0 <= load.bytes <= 1 << 20
            assert 0 <= load.products <= 1 << 20
    assert of_step(server, pb.StepRequest()).products == 0


async def test_an_estimate_is_no_use_of_the_stream(client: Client, server: Server, tokens: Tokens) -> None:
    stream = await client.open()
    entry = server.streams.of(tenant()).get(stream.handle, 0)
    used = entry.last_used
    request = pb.StepRequest(items=[item(stream, 0, *tokens.qkv(1))])
    of_step(server, request)
    assert entry.last_used == used


async def test_the_model_learns_from_real_steps(
    client: Client, server: Server, rng: np.random.Generator
) -> None:
    tokens = Tokens(rng)
    stream = await client.open()
    for position in range(40):
        await client.step(0, item(stream, position, *tokens.qkv(1)))
        for layer in (1, 2):
            await client.step(layer, item(stream, position, *tokens.qkv(1)))
    load = Load("step", 1, *through(40, 1))
    seconds = server.scheduler._worker.ask(lambda dispatch: dispatch.estimate(load))
    assert 1e-6 < seconds < 0.5
