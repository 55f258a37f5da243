"""Readers who begin and then take nothing: of exports, and of the results of Decode calls."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any, Self

import grpc.aio
import numpy as np

from rondel.decoder.spec import StreamSpec
from rondel.v1 import attention_pb2 as pb
from rondel.v1.attention_pb2_grpc import AttentionServiceStub
from rondel.v1.specs import spec_to_message
from rondel.v1.wire import to_tensor

LARGE = StreamSpec.uniform(
    layers=2, query_heads=2, kv_heads=2, head_dim=256, storage="float32", max_length=4096
)
"""With 4000 tokens 33 MiB: more than a connection takes before anything is read."""
WIDE = StreamSpec.uniform(layers=1, query_heads=4, kv_heads=1, head_dim=1, value_dim=1024, window=64)
"""Its answers are a thousand times as large as its questions."""
RESULT_BYTES = 64 << 10
PER_CONNECTION = 50
OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0))
"""Without the probe a client takes 64 KiB ahead of what it reads, not 5 MiB: the readers' memory is ours."""


class Readers:
    """Calls that were begun and are not read, on as few connections as may be."""

    def __init__(self, address: str, count: int) -> None:
        self.count = count
        self._address = address
        self._stack = AsyncExitStack()
        self._stubs: list[AttentionServiceStub] = []
        self._calls: list[Any] = []

    async def __aenter__(self) -> Self:
        await self._prepare(self._connect())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.end()
        await self._stack.aclose()

    async def begin(self) -> None:
        """Returns when each has had its first message, and the others' are on their way."""
        while len(self._stubs) * PER_CONNECTION < self.count:
            self._connect()
        turns = ((self._stubs[number % len(self._stubs)], number) for number in range(self.count))
        self._calls = await asyncio.gather(*(self._one(stub, number) for stub, number in turns))

    def end(self) -> None:
        """They leave."""
        for call in self._calls:
            call.cancel()
        self._calls = []

    def _connect(self) -> AttentionServiceStub:
        channel = grpc.aio.insecure_channel(self._address, options=OPTIONS)
        self._stack.push_async_callback(channel.close)
        self._stubs.append(AttentionServiceStub(channel))
        return self._stubs[-1]

    async def _prepare(self, stub: AttentionServiceStub) -> None:
        raise NotImplementedError

    async def _one(self, stub: AttentionServiceStub, number: int) -> Any:
        raise NotImplementedError


class OfExports(Readers):
    """All of the same stream."""

    async def _prepare(self, stub: AttentionServiceStub) -> None:
        reply = await stub.OpenStream(pb.OpenStreamRequest(spec=spec_to_message(LARGE)))
        self._stream = pb.StreamRef(handle=reply.handle)
        rows = to_tensor(np.ones((2, 500, 2, 256), np.float32))
        for position in range(0, 4000, 500):
            request = pb.AppendTokenRequest(stream=self._stream, position=position, k=rows, v=rows)
            await stub.AppendToken(request)

    async def _one(self, stub: AttentionServiceStub, number: int) -> Any:
        call = stub.ExportStream(pb.ExportStreamRequest(stream=self._stream))
        await call.read()
        return call


class OfDecodes(Readers):
    """Each has a stream of its own, and asks for twice what it may have without telling that it has it."""

    async def _prepare(self, stub: AttentionServiceStub) -> None:
        info = await stub.GetServerInfo(pb.GetServerInfoRequest())
        self.window = info.limits.decode_window_bytes
        rng = np.random.default_rng(0)
        k, v = (to_tensor(rng.standard_normal((1, 64, 1, dim), np.float32)) for dim in (1, 1024))
        self._q = to_tensor(rng.standard_normal((RESULT_BYTES // (4 * 1024 * 4), 4, 1), np.float32))
        self._streams = []
        for _ in range(self.count):
            reply = await stub.OpenStream(pb.OpenStreamRequest(spec=spec_to_message(WIDE)))
            self._streams.append(pb.StreamRef(handle=reply.handle))
            await stub.AppendToken(pb.AppendTokenRequest(stream=self._streams[-1], k=k, v=v))
        self._begun = 0

    async def begin(self) -> None:
        self._begun += 1  # and so is the generation of each stream
        await super().begin()

    async def _one(self, stub: AttentionServiceStub, number: int) -> Any:
        call = stub.Decode()
        await call.read()
        attaching = pb.AttachStreamRequest(stream=self._streams[number])
        asking = pb.AttendRequest(q=self._q, generation=self._begun)
        operations = [pb.DecodeOperation(op_id=1, stream_ref=1, attach=attaching)]
        operations += [
            pb.DecodeOperation(op_id=op_id, stream_ref=1, attend=asking)
            for op_id in range(2, 2 + 2 * self.window // RESULT_BYTES)
        ]
        for first in range(0, len(operations), 16):
            await call.write(pb.DecodeRequest(operations=operations[first : first + 16]))
        return call
