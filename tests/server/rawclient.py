"""A raw client made of the generated stubs, and what tests send with it."""

import asyncio
from dataclasses import dataclass

import grpc
import numpy as np
import pytest
from google.rpc import error_details_pb2, status_pb2
from numpy.typing import NDArray

from rondel.decoder.spec import StreamSpec
from rondel.server.app import Server
from rondel.v1 import attention_pb2 as pb
from rondel.v1 import generation_pb2
from rondel.v1.attention_pb2_grpc import AttentionServiceStub
from rondel.v1.generation_pb2_grpc import GenerationServiceStub
from rondel.v1.specs import spec_to_message
from rondel.v1.wire import from_tensor, to_tensor

Floats = NDArray[np.float32]

SPEC = StreamSpec.uniform(
    layers=3, query_heads=4, kv_heads=2, head_dim=16, value_dim=8, window=64, sinks=4, reserve=8
)


@dataclass(frozen=True)
class Failure:
    """What a client sees of an error."""

    code: grpc.StatusCode
    reason: str
    facts: dict[str, str]
    message: str
    status: status_pb2.Status

    @classmethod
    def of(cls, status: status_pb2.Status) -> "Failure":
        info = error_details_pb2.ErrorInfo()
        assert status.details[0].Unpack(info)
        assert info.domain == "rondel"
        code = next(code for code in grpc.StatusCode if code.value[0] == status.code)
        return cls(code, info.reason, dict(info.metadata), status.message, status)

    @classmethod
    def of_call(cls, error: grpc.aio.AioRpcError) -> "Failure":
        trailer = dict(error.trailing_metadata())
        failure = cls.of(status_pb2.Status.FromString(trailer["grpc-status-details-bin"]))
        assert error.code() == failure.code
        assert error.details() == failure.message
        return failure


class Client:
    """The stubs, and requests in one line each."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.attention = AttentionServiceStub(channel)
        self.generation = GenerationServiceStub(channel)

    async def open(self, spec: StreamSpec = SPEC, request_id: str = "") -> pb.StreamRef:
        reply = await self.attention.OpenStream(
            pb.OpenStreamRequest(spec=spec_to_message(spec), request_id=request_id)
        )
        return pb.StreamRef(handle=reply.handle, epoch=reply.epoch)

    async def append(
        self,
        stream: pb.StreamRef,
        position: int,
        k: Floats,
        v: Floats,
        *,
        generation: int = 0,
        layer: int = 0,
    ) -> pb.AppendTokenResponse:
        return await self.attention.AppendToken(
            pb.AppendTokenRequest(
                stream=stream,
                generation=generation,
                position=position,
                first_layer=layer,
                k=to_tensor(k),
                v=to_tensor(v),
            )
        )

    async def attend(
        self,
        stream: pb.StreamRef,
        layer: int,
        q: Floats,
        position: int | None = None,
        *,
        generation: int = 0,
    ) -> Floats:
        reply = await self.attention.Attend(
            pb.AttendRequest(
                stream=stream, generation=generation, layer=layer, q=to_tensor(q), position=position
            )
        )
        return from_tensor(reply.out, name="out")

    async def step(self, layer: int, *items: pb.StepItem) -> list[pb.StepResult]:
        reply = await self.attention.Step(pb.StepRequest(layer=layer, items=items))
        return list(reply.results)

    async def get(self, stream: pb.StreamRef) -> pb.GetStreamResponse:
        return await self.attention.GetStream(pb.GetStreamRequest(stream=stream))

    async def close(self, stream: pb.StreamRef, request_id: str = "") -> pb.CloseStreamResponse:
        return await self.attention.CloseStream(pb.CloseStreamRequest(stream=stream, request_id=request_id))

    async def fork(
        self,
        stream: pb.StreamRef,
        length: int,
        *,
        generation: int = 0,
        request_id: str = "",
        most: int | None = None,
        prefix: str = "",
    ) -> pb.OpenStreamResponse:
        reply = await self.attention.ForkStream(
            pb.ForkStreamRequest(
                stream=stream,
                generation=generation,
                length=length,
                request_id=request_id,
                max_new_tokens=most,
                prefix_name=prefix,
            )
        )
        return reply.stream

    async def info(self) -> pb.GetServerInfoResponse:
        return await self.attention.GetServerInfo(pb.GetServerInfoRequest())


def item(
    stream: pb.StreamRef,
    position: int,
    q: Floats,
    k: Floats,
    v: Floats,
    *,
    generation: int = 0,
    lse: bool = False,
) -> pb.StepItem:
    """One stream's part of a step."""
    return pb.StepItem(
        stream=stream,
        generation=generation,
        position=position,
        q=to_tensor(q),
        k=to_tensor(k),
        v=to_tensor(v),
        return_lse=lse,
    )


class Tokens:
    """Random q, k, v of a specification whose layers are alike."""

    def __init__(self, rng: np.random.Generator, spec: StreamSpec = SPEC) -> None:
        self._rng = rng
        self._group = spec.groups[0]
        self._layers = spec.layers

    def _draw(self, *shape: int) -> Floats:
        return self._rng.standard_normal(shape).astype(np.float32)

    def q(self, tokens: int) -> Floats:
        return self._draw(tokens, self._group.query_heads, self._group.key_dim)

    def kv(self, tokens: int) -> tuple[Floats, Floats]:
        group = self._group
        return (
            self._draw(self._layers, tokens, group.kv_heads, group.key_dim),
            self._draw(self._layers, tokens, group.kv_heads, group.value_dim),
        )

    def qkv(self, tokens: int) -> tuple[Floats, Floats, Floats]:
        k, v = self.kv(tokens)
        return self.q(tokens), k[0], v[0]


class Answer:
    """All events of a generation."""

    def __init__(self, events: list[generation_pb2.GenerateResponse]) -> None:
        assert [event.WhichOneof("event") for event in events] == (
            ["started"] + ["token"] * (len(events) - 2) + ["summary"]
        )
        self.started = events[0].started
        self.tokens = [event.token for event in events[1:-1]]
        self.summary = events[-1].summary

    @property
    def ids(self) -> list[int]:
        return [token.id for token in self.tokens]

    @property
    def text(self) -> str:
        return "".join(token.text for token in self.tokens) + self.summary.text


async def ask(client: Client, request: generation_pb2.GenerateRequest) -> Answer:
    return Answer([event async for event in client.generation.Generate(request)])


async def refusal(client: Client, request: generation_pb2.GenerateRequest) -> Failure:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(client, request)
    return Failure.of_call(caught.value)


async def everything_given_back(server: Server) -> None:
    """Returns when no session is left; the test's time limit is the failure."""
    while server.arena.stats().reserved:
        await asyncio.sleep(0.005)
