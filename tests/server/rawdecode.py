"""A Decode call made of the generated stub, and operations in one line each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Self

import grpc
from rawclient import SPEC, Client, Failure, Floats

from rondel.decoder.spec import StreamSpec
from rondel.v1 import attention_pb2 as pb
from rondel.v1.specs import spec_to_message
from rondel.v1.wire import from_tensor, to_tensor


class Decode:
    """A call, and its results by op_id. It tells of what it has received with whatever it sends."""

    def __init__(self, client: Client, *, timeout: float | None = None) -> None:
        self.call: Any = client.attention.Decode(timeout=timeout)
        self.hello = pb.DecodeHello()
        self.away: pb.DecodeGoAway | None = None
        self.results: dict[int, pb.DecodeResult] = {}
        self.order: list[int] = []
        self.messages = 0
        self.op_id = 0
        self.awake = asyncio.Event()
        """Nothing is read while it is not set, but for what is being waited for."""
        self.awake.set()
        self._changed = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        try:
            self.hello = (await self.call.read()).hello
        except BaseException:
            self.call.cancel()  # grpc.aio itself goes on with a call that nobody has any more
            raise
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.call.cancel()
        if self._reading is not None:
            await asyncio.wait([self._reading])
            if not self._reading.cancelled():
                self._reading.exception()

    def op(self, ref: int = 0, *, timeout_ms: int = 0, **request: Any) -> pb.DecodeOperation:
        """The next operation: ``op(3, append=...)``."""
        self.op_id += 1
        return pb.DecodeOperation(op_id=self.op_id, stream_ref=ref, timeout_ms=timeout_ms, **request)

    def opening(self, ref: int, spec: StreamSpec = SPEC, request_id: str = "") -> pb.DecodeOperation:
        return self.op(ref, open=pb.OpenStreamRequest(spec=spec_to_message(spec), request_id=request_id))

    def stepping(self, layer: int, *items: pb.StepItem, timeout_ms: int = 0) -> pb.DecodeOperation:
        return self.op(step=pb.StepRequest(layer=layer, items=items), timeout_ms=timeout_ms)

    async def send(self, *operations: pb.DecodeOperation, tell: bool = True) -> None:
        """Operations in one message."""
        received = self.order[-1] if tell and self.order else 0
        await self.call.write(pb.DecodeRequest(operations=operations, received_op_id=received))

    async def wait(self, op_ids: Iterable[int]) -> list[pb.DecodeResult]:
        """The results of operations. The call's own failure, if it has one."""
        wanted = list(op_ids)
        while missing := [op_id for op_id in wanted if op_id not in self.results]:
            changed = self._changed
            if self._over():
                await self.ended()
                raise AssertionError(f"the call has ended without the results of {missing}")
            await changed.wait()
        return [self.results[op_id] for op_id in wanted]

    async def ask(self, *operations: pb.DecodeOperation) -> list[pb.DecodeResult]:
        """The results of operations that are sent now."""
        await self.send(*operations)
        return await self.wait(operation.op_id for operation in operations)

    async def open(self, ref: int, spec: StreamSpec = SPEC) -> pb.StreamRef:
        (result,) = await self.ask(self.opening(ref, spec))
        assert not result.status.code, result.status.message
        return pb.StreamRef(handle=result.open.handle, epoch=result.open.epoch)

    async def step(self, layer: int, *items: pb.StepItem) -> list[pb.StepResult]:
        (result,) = await self.ask(self.stepping(layer, *items))
        assert not result.status.code, result.status.message
        return list(result.step.results)

    async def ended(self) -> None:
        """Returns when the server has ended the call; raises what it has failed with."""
        assert self._reading is not None
        await self._reading

    def _over(self) -> bool:
        return self._reading is not None and self._reading.done()

    async def _read(self) -> None:
        try:
            while await self.awake.wait() and (response := await self.call.read()) is not grpc.aio.EOF:
                self.messages += 1
                for result in response.results:
                    assert result.op_id not in self.results
                    self.results[result.op_id] = result
                    self.order.append(result.op_id)
                if response.HasField("go_away"):
                    self.away = response.go_away
                self._change()
        finally:
            self._change()

    def _change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def part(
    ref: int, position: int, q: Floats, k: Floats, v: Floats, *, generation: int = 0, lse: bool = False
) -> pb.StepItem:
    """One stream's part of a step."""
    return pb.StepItem(
        stream_ref=ref,
        generation=generation,
        position=position,
        q=to_tensor(q),
        k=to_tensor(k),
        v=to_tensor(v),
        return_lse=lse,
    )


def tokens_of(position: int, k: Floats, v: Floats, *, generation: int = 0, layer: int = 0) -> Any:
    """The request of an append: k and v [layers, tokens, heads, dim]."""
    return pb.AppendTokenRequest(
        generation=generation, position=position, first_layer=layer, k=to_tensor(k), v=to_tensor(v)
    )


def out(result: pb.StepResult) -> Floats:
    """The output of an item that did not fail."""
    assert not result.status.code, result.status.message
    return from_tensor(result.out, name="out")


def failed(result: pb.DecodeResult | pb.StepResult) -> Failure:
    """What went wrong with an operation or an item."""
    assert result.status.code
    return Failure.of(result.status)
