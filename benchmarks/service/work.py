"""The work that is measured: streams of one shape at a steady depth, and their steps as bytes of the wire."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import grpc.aio
import numpy as np

from rondel.decoder.spec import StreamSpec
from rondel.v1 import attention_pb2 as pb
from rondel.v1.specs import spec_to_message
from rondel.v1.wire import to_tensor
from service.drive import unary
from shapes import Floats, Shape

OPEN = "/rondel.v1.AttentionService/OpenStream"
APPEND = "/rondel.v1.AttentionService/AppendToken"
CLOSE = "/rondel.v1.AttentionService/CloseStream"
STEP = "/rondel.v1.AttentionService/Step"
DECODE = "/rondel.v1.AttentionService/Decode"
_CHUNK: Final = 1024


def spec_of(shape: Shape) -> StreamSpec:
    """A stream of one layer whose window is the depth, so that any number of steps cost the same."""
    return StreamSpec.uniform(
        layers=1,
        query_heads=shape.query_heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.dim,
        window=shape.keys,
        reserve=0,
    )


def tokens(shape: Shape, count: int, seed: int) -> tuple[Floats, Floats, Floats]:
    """q, k, v of so many tokens, Gaussian."""
    rng = np.random.default_rng(seed)
    q, k, v = (
        rng.standard_normal((count, heads, shape.dim), dtype=np.float32)
        for heads in (shape.query_heads, shape.kv_heads, shape.kv_heads)
    )
    return q, k, v


@dataclass(slots=True)
class Remote:
    """A stream on the server, and where it stands."""

    ref: pb.StreamRef
    position: int


async def open_streams(channel: grpc.aio.Channel, shape: Shape, count: int) -> list[Remote]:
    """Streams that hold ``shape.keys`` tokens each."""
    _, k, v = tokens(shape, shape.keys, 1)
    found = []
    for _ in range(count):
        request = pb.OpenStreamRequest(spec=spec_to_message(spec_of(shape)))
        raw = await unary(channel, OPEN)(request.SerializeToString())
        opened = pb.OpenStreamResponse.FromString(raw)
        ref = pb.StreamRef(handle=opened.handle, epoch=opened.epoch)
        for start in range(0, shape.keys, _CHUNK):
            part = slice(start, start + _CHUNK)
            append = pb.AppendTokenRequest(
                stream=ref, position=start, k=to_tensor(k[None, part]), v=to_tensor(v[None, part])
            )
            await unary(channel, APPEND)(append.SerializeToString())
        found.append(Remote(ref, shape.keys))
    return found


async def close_streams(channel: grpc.aio.Channel, streams: Sequence[Remote]) -> None:
    """Ends them."""
    for stream in streams:
        await unary(channel, CLOSE)(pb.CloseStreamRequest(stream=stream.ref).SerializeToString())


class Steps:
    """Step requests of some streams, each call's one position further on."""

    def __init__(self, shape: Shape) -> None:
        self._q, self._k, self._v = (to_tensor(array) for array in tokens(shape, 1, 2))

    def item(self, stream: Remote) -> pb.StepItem:
        """The stream's next token; it is taken to be there afterwards."""
        stream.position += 1
        return pb.StepItem(stream=stream.ref, position=stream.position - 1, q=self._q, k=self._k, v=self._v)

    def request(self, streams: Sequence[Remote]) -> bytes:
        """One Step of one layer."""
        return pb.StepRequest(items=[self.item(stream) for stream in streams]).SerializeToString()

    def each(self, streams: Sequence[Remote]) -> list[bytes]:
        """A Step of its own for each."""
        return [self.request([stream]) for stream in streams]


def check(raw: bytes) -> None:
    """Raises SystemExit for a reply with an item that failed."""
    for result in pb.StepResponse.FromString(raw).results:
        if result.status.code or not result.out.data:
            raise SystemExit(f"wrong answer: {result.status.message or 'no output'}")
