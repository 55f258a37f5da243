"""Streams that a fuzzer aims at, each known to the byte before it is shot at."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass

import grpc
import grpc.aio
import numpy as np
from numpy.typing import NDArray

from rondel.decoder.rope import Rope
from rondel.decoder.spec import StreamSpec
from rondel.v1 import attention_pb2 as pb
from rondel.v1.attention_pb2_grpc import AttentionServiceStub
from rondel.v1.specs import spec_to_message
from rondel.v1.wire import to_tensor

Floats = NDArray[np.float32]
D_MODEL = 12
PROJECTIONS = "fuzz"


@dataclass(frozen=True, slots=True)
class Sort:
    """A kind of stream, and how many tokens it has."""

    name: str
    spec: StreamSpec
    tokens: int
    projections: str = ""
    sealed: bool = False

    @property
    def placed(self) -> bool:
        """Whether queries have positions."""
        return self.spec.groups[0].placed


def _spec(**options: object) -> StreamSpec:
    sizes = {"layers": 2, "query_heads": 2, "kv_heads": 1, "head_dim": 8}
    return StreamSpec.uniform(**{**sizes, **options})  # type: ignore[arg-type]


PROJECTED = _spec(window=24, sinks=2, reserve=4)
SORTS = (
    Sort("short", PROJECTED, 10, PROJECTIONS),
    Sort("wrapped", _spec(window=24, sinks=2, reserve=4), 400),
    Sort("plain", _spec(storage="float32", value_dim=5, max_length=200), 20),
    Sort("turned", _spec(window=300, reserve=3, rope=Rope(theta=500.0), centring=True), 280),
    Sort("memory", _spec(causal=False, max_length=64), 30),
    Sort("sealed", _spec(causal=False, max_length=64), 30, sealed=True),
    Sort("two-sided", _spec(causal=False, window=20, window_right=4), 9),
)


def draw(spec: StreamSpec, tokens: int, seed: int) -> tuple[Floats, Floats, Floats]:
    """q [tokens, Hq, Dk], k and v [layers, tokens, Hkv, dim]."""
    group, rng = spec.groups[0], np.random.default_rng(seed)
    q = rng.standard_normal((tokens, group.query_heads, group.key_dim), np.float32)
    k = rng.standard_normal((spec.layers, tokens, group.kv_heads, group.key_dim), np.float32)
    v = rng.standard_normal((spec.layers, tokens, group.kv_heads, group.value_dim), np.float32)
    return q, k, v


class Target:
    """A stream of a sort, opened when it is needed and replaced when a call has changed it."""

    def __init__(self, stub: AttentionServiceStub, sort: Sort) -> None:
        self.sort = sort
        self.closed = ""
        """Handle of one that was there once."""
        self._stream = pb.StreamRef()
        self._stub = stub
        self._state = b""
        self._content = b""
        self._used = 0.0

    async def ready(self) -> str:
        """The handle of the stream, which is as it always is. Raises grpc.aio.AioRpcError."""
        if not self.closed:
            self.closed = (await self._open()).handle
            await close(self._stub, self.closed)
        if not self._stream.handle:
            self._stream = await self._open()
            _, k, v = draw(self.sort.spec, self.sort.tokens, 0)
            await self._stub.AppendToken(
                pb.AppendTokenRequest(stream=self._stream, k=to_tensor(k), v=to_tensor(v)), timeout=30
            )
            if self.sort.sealed:
                await self._stub.SealStream(pb.SealStreamRequest(stream=self._stream), timeout=30)
            self._state, self._content = await self._now(), await self._bytes()
        return self._stream.handle

    async def changed(self, *, wholly: bool) -> str | None:
        """What is not as it was; ``wholly`` = every stored byte is looked at, not only the numbers."""
        try:
            if (now := await self._now()) != self._state:
                was = pb.GetStreamResponse.FromString(self._state)
                return f"{self.sort.name}: {_first_difference(was, pb.GetStreamResponse.FromString(now))}"
            if wholly and await self._bytes() != self._content:
                return f"{self.sort.name}: stored bytes"
        except grpc.aio.AioRpcError as error:
            return f"{self.sort.name}: it does not answer any more: {error.code()} {error.details()}"
        return None

    async def keep(self) -> None:
        """Use it, if it was not used for a second, so that its lease goes on."""
        if self._stream.handle and time.monotonic() > self._used + 1.0:
            await self._now()

    async def give_up(self) -> None:
        """Close it; the next :meth:`ready` opens another. Raises grpc.aio.AioRpcError for all but closed."""
        stream, self._stream = self._stream, pb.StreamRef()
        if stream.handle:
            await close(self._stub, stream.handle)

    async def _open(self) -> pb.StreamRef:
        request = pb.OpenStreamRequest(
            spec=spec_to_message(self.sort.spec), projections=self.sort.projections
        )
        return pb.StreamRef(handle=(await self._stub.OpenStream(request, timeout=30)).handle)

    async def _now(self) -> bytes:
        self._used = time.monotonic()
        reply = await self._stub.GetStream(pb.GetStreamRequest(stream=self._stream), timeout=30)
        return bytes(reply.SerializeToString(deterministic=True))

    async def _bytes(self) -> bytes:
        digest = hashlib.sha256()
        async for reply in self._stub.ExportStream(pb.ExportStreamRequest(stream=self._stream), timeout=30):
            digest.update(reply.data)
        return digest.digest()


async def close(stub: AttentionServiceStub, handle: str) -> None:
    """Close a stream that may be closed. Raises grpc.aio.AioRpcError."""
    try:
        await stub.CloseStream(pb.CloseStreamRequest(stream=pb.StreamRef(handle=handle)), timeout=30)
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.NOT_FOUND:
            raise


def _first_difference(one: pb.GetStreamResponse, other: pb.GetStreamResponse) -> str:
    for field in one.DESCRIPTOR.fields:
        if getattr(one, field.name) != getattr(other, field.name):
            return f"{field.name} was {getattr(one, field.name)}, is {getattr(other, field.name)}"
    return "nothing that can be named"
