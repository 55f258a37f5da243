"""An Attend that is cut into pieces."""

import asyncio
import threading
from typing import Any

import grpc
import numpy as np
import pytest
from rawclient import Client, Failure, Tokens, item
from transports import tenant

from rondel.decoder.errors import DeadlineExpired
from rondel.decoder.options import AttendOptions
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec
from rondel.server import attending, stepping
from rondel.server.app import Server
from rondel.server.stepping import Asked, Stepping
from rondel.v1 import attention_pb2 as pb
from rondel.v1.options import options_to_message
from rondel.v1.wire import to_tensor

SHAPE: dict[str, Any] = {"layers": 1, "query_heads": 4, "kv_heads": 2, "head_dim": 16, "value_dim": 8}
SPECS = {
    "causal": StreamSpec.uniform(window=64, reserve=40, sinks=4, **SHAPE),
    "memory": StreamSpec.uniform(causal=False, max_length=200, **SHAPE),
    "two-sided": StreamSpec.uniform(
        causal=False, window=16, window_right=8, reserve=60, max_length=200, **SHAPE
    ),
}
ROWS = 37


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Pieces of five rows; the numbers of rows that were attended from at a time."""
    seen: list[int] = []
    whole = DecoderSession.attend

    def attend(session: DecoderSession, layer: int, q: np.ndarray, **options: object) -> object:
        seen.append(len(q))
        return whole(session, layer, q, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(DecoderSession, "attend", attend)
    monkeypatch.setattr(attending, "row_products", lambda group, keys: 1)
    monkeypatch.setattr(attending, "PIECE_PRODUCTS", 5)
    return seen


async def reply(client: Client, request: pb.AttendRequest) -> pb.AttendResponse:
    return await client.attention.Attend(request)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("position", [None, 80])
async def test_pieces_give_the_bits_of_the_whole(
    client: Client,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
    pieces: list[int],
    name: str,
    position: int | None,
) -> None:
    spec = SPECS[name]
    if name == "memory":
        position = None
    tokens = Tokens(rng, spec)
    stream = await client.open(spec)
    await client.append(stream, 0, *tokens.kv(120))
    bias = rng.standard_normal((4, ROWS, 120)).astype(np.float32)
    for options in (None, AttendOptions(bias=bias, softcap=5.0)):
        request = pb.AttendRequest(
            stream=stream,
            position=position,
            q=to_tensor(tokens.q(ROWS)),
            return_lse=True,
            options=None if options is None else options_to_message(options),
        )
        cut = await reply(client, request)
        assert pieces == [5] * 7 + [2]
        with monkeypatch.context() as context:
            context.setattr(attending, "PIECE_PRODUCTS", 1 << 60)
            whole = await reply(client, request)
        assert pieces[8:] == [ROWS]
        assert cut == whole
        pieces.clear()


@pytest.mark.parametrize("fault", ["gap", "before", "axes", "value", "options", "layer"])
async def test_pieces_fail_as_the_whole_does(
    client: Client,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
    pieces: list[int],
    fault: str,
) -> None:
    spec = SPECS["causal"]
    tokens = Tokens(rng, spec)
    stream = await client.open(spec)
    await client.append(stream, 0, *tokens.kv(400))
    q = tokens.q(ROWS)
    request = pb.AttendRequest(stream=stream, q=to_tensor(q), return_lse=True)
    match fault:
        case "gap":
            request.position = 380
        case "before":
            request.position = 20
        case "axes":
            request.q.CopyFrom(to_tensor(q[:, :, None]))
        case "value":
            q[-1] = np.nan
            request.q.CopyFrom(to_tensor(q))
        case "options":
            bias = np.zeros((1, ROWS + 1, 400), np.float32)
            request.options.CopyFrom(options_to_message(AttendOptions(bias=bias)))
        case "layer":
            request.layer = 3
    failures = []
    for products in (attending.PIECE_PRODUCTS, 1 << 60):
        monkeypatch.setattr(attending, "PIECE_PRODUCTS", products)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await reply(client, request)
        failures.append(Failure.of_call(caught.value))
    assert failures[0] == failures[1]


async def test_a_call_that_is_cancelled_stops_within_a_piece(
    client: Client, server: Server, tokens: Tokens, pieces: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, leave = threading.Event(), threading.Event()
    stream = await client.open()
    await client.append(stream, 0, *tokens.kv(60))
    whole = DecoderSession.attend

    def slow(session: DecoderSession, layer: int, q: np.ndarray, **options: object) -> object:
        entered.set()
        assert leave.wait(20)
        return whole(session, layer, q, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(DecoderSession, "attend", slow)
    call = asyncio.ensure_future(client.attend(stream, 0, tokens.q(50)))
    assert await asyncio.to_thread(entered.wait, 20)
    call.cancel()
    while server._door.inside:
        await asyncio.sleep(0.002)
    leave.set()
    await client.get(stream)
    assert pieces == [5]


class Late:
    """The time of the request of this number passes when it has been looked at so often."""

    def __init__(self, number: int, looks: int) -> None:
        self.number, self.looks = number, looks

    def check(self, number: int = 0) -> None:
        if number == self.number:
            self.looks -= 1
            if self.looks < 0:
                raise DeadlineExpired("too late")


def asked(requests: list[pb.StepRequest]) -> list[Asked]:
    return [Asked(tenant(), request, pb.StepResponse()) for request in requests]


async def test_a_step_is_looked_at_once_more_before_its_kernel(
    client: Client, server: Server, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the rules need of the time may be the last of it; the others of the batch do not mind."""
    streams = [await client.open() for _ in range(3)]
    kernels: list[int] = []
    run_steps = stepping.run_steps
    monkeypatch.setattr(
        stepping, "run_steps", lambda steps: (kernels.append(len(steps)), run_steps(steps))[1]
    )
    requests = [pb.StepRequest(items=[item(stream, 0, *tokens.qkv(1))]) for stream in streams]
    joint = Stepping(server.config, server.streams, Late(1, 1))
    responses = await server.scheduler.run(lambda: joint(asked(requests)), cost=0)
    assert kernels == [2]
    codes = [grpc.StatusCode.OK, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.OK]
    assert [each.results[0].status.code for each in responses] == [code.value[0] for code in codes]
    assert [list((await client.get(stream)).layer_lengths) for stream in streams] == [
        [1, 0, 0],
        [0, 0, 0],
        [1, 0, 0],
    ]


@pytest.mark.parametrize("looks", range(6))
async def test_a_request_of_which_something_is_stored_is_carried_out_whole(
    client: Client, server: Server, tokens: Tokens, looks: int
) -> None:
    """A stream that is named again has what waits carried out; the rest of those requests must follow."""
    one, two = [await client.open() for _ in range(2)]
    first, second = tokens.qkv(1), tokens.qkv(1)
    requests = [
        pb.StepRequest(items=[item(one, 0, *first)]),
        pb.StepRequest(items=[item(two, 0, *first), item(one, 1, *second)]),
        pb.StepRequest(items=[item(two, 1, *second)]),
    ]
    joint = Stepping(server.config, server.streams, Late(1, looks))
    responses = await server.scheduler.run(lambda: joint(asked(requests)), cost=0)
    statuses = [[result.status.code for result in response.results] for response in responses]
    lengths = [(await client.get(stream)).layer_lengths[0] for stream in (one, two)]
    assert statuses[1] == ([0, 0] if looks >= 2 else [4, 4])
    assert lengths == ([2, 2] if looks >= 2 else [1, 0])
