"""Decode calls with asyncio: steps of many streams on their way at once. The twin of sync_decode.py."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self, Unpack

import grpc.aio

from rondel.client import calls, operations
from rondel.client.aio_stream import AsyncStream
from rondel.client.batch import step_batch
from rondel.client.calls import Call, Detached
from rondel.client.channels import AsyncChannel
from rondel.client.conversation import Conversation
from rondel.client.limits import Limits
from rondel.client.opened import Opened
from rondel.client.operations import OpenOptions
from rondel.client.running import AsyncRunner
from rondel.client.values import Array, Options, StepOutcome
from rondel.decoder.errors import DeadlineExpired, Draining, RondelError, ServerUnavailable
from rondel.decoder.spec import StreamSpec

_NO_STATUS: Final = "Internal error from Core"
"""What grpc.aio says of a call that ended while a message was on its way: why is lost (grpc issue 36066)."""


class AsyncDecodeCall:
    """One long-lived call for the steps of many streams. Made by ``AsyncAttentionClient.decode``.

    Streams that are opened or attached to here send their steps, appends, attends, truncates and seals over
    it; those of tasks that run at the same time go together. It connects at the first of them, and again when
    the connection is lost or the server started anew: streams are then attached to, what of them was not
    committed is stored again, and calls under way are made again, until their time is over. Its end leaves
    the streams open; they go on with calls of their own.
    """

    def __init__(self, channel: AsyncChannel, limits: Limits, opened: Opened) -> None:
        self._lanes = Lanes(channel, limits)
        self._limits = limits
        self._opened = opened

    async def open(self, spec: StreamSpec | None = None, **options: Unpack[OpenOptions]) -> AsyncStream:
        """``AsyncAttentionClient.open``."""
        steps = operations.open_stream(spec, self._limits, self._opened, **options)
        return AsyncStream(self._lanes, await self._lanes.run(steps), self._opened, self._limits.in_force)

    async def attach(self, handle: str) -> AsyncStream:
        """``AsyncAttentionClient.attach``."""
        reply = await self._lanes.run(operations.attach_stream(handle, self._limits))
        return AsyncStream(self._lanes, reply, self._opened, self._limits.in_force)

    async def step(
        self,
        layer: int,
        items: Sequence[tuple[AsyncStream, Array, Array, Array]],
        *,
        options: Sequence[Options] | None = None,
        return_lse: bool = False,
    ) -> list[StepOutcome]:
        """``step`` one layer of many streams, (stream, q, k, v) each; each has its own output or error."""
        streams, qs, ks, vs = operations.columns(items)
        return await self._lanes.run(step_batch(layer, streams, qs, ks, vs, options, return_lse))

    async def close(self) -> None:
        """End the call. Its streams stay. Closing again does nothing."""
        await self._lanes.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Lanes(AsyncRunner):
    """Sends calls as operations of a Decode call, of another one when that has ended. What cannot be one, and
    everything once it is closed, is a call of its own."""

    def __init__(self, channel: AsyncChannel, limits: Limits) -> None:
        self._channel = channel
        self._limits = limits
        self._lane: Lane | None = None
        self._left: set[Lane] = set()
        """Those that the server is about to end."""
        self._was_there = False
        self._closed = False

    @property
    def channel(self) -> AsyncChannel:
        return self._channel

    async def send(self, call: Call) -> Any:
        attempts = self.channel.attempts(call)
        attempts.lasting = self._was_there
        while not self._closed and self._takes(call):
            left = attempts.begin()
            try:
                lane = await self._connected(left)
                attempts.lasting = True
                return await lane.ask(call, attempts.left())
            except Detached:
                if call.method not in calls.ALONE:
                    raise
                continue  # the connection that it was bound to has just ended
            except (ServerUnavailable, Draining) as failure:
                error = failure
            await self.channel.wait(attempts, error)
        return await self.channel.send(call)

    async def close(self) -> None:
        """End the call."""
        self._closed = True
        for lane in self._all():
            await lane.close()

    def __del__(self) -> None:
        # grpc.aio keeps and runs a call that nobody holds any more (grpc issue 43462).
        for lane in self._all():
            with suppress(RuntimeError):  # the loop is closed, and the call with it
                lane.cancel()

    def _all(self) -> list[Lane]:
        return [*self._left, *([] if self._lane is None else [self._lane])]

    def _takes(self, call: Call) -> bool:
        """Whether a call can be an operation. For some no stream is attached to: they do without."""
        if call.method not in calls.ALONE:
            return call.method.path in calls.KINDS
        request: Any = call.request
        return self._lane is not None and self._lane.conversation.binds(request.stream.handle)

    async def _connected(self, seconds: float) -> Lane:
        lane = self._lane
        if lane is None or not lane.conversation.usable:
            self._left = {left for left in self._all() if not left.conversation.over}
            lane = self._lane = Lane(self.channel, self._limits)
        await lane.ready(seconds)
        self._was_there = True
        return lane


class Lane:
    """One Decode call: a task reads it, another writes."""

    def __init__(self, channel: AsyncChannel, limits: Limits) -> None:
        loop = asyncio.get_running_loop()
        self._channel = channel
        self._wanted = asyncio.Event()
        self._greeted: asyncio.Future[None] = loop.create_future()
        self.conversation = Conversation(channel.target, limits, self._wanted.set, self._greeted)
        self._call = channel.converse()
        self._reading = asyncio.create_task(self._read())
        self._writing = asyncio.create_task(self._write())

    async def ready(self, seconds: float) -> None:
        """Returns when the server has said its first word. Raises what it means when there is none."""
        if not self._greeted.done():
            await _within(seconds, asyncio.shield(self._greeted), self._channel.target)

    async def ask(self, call: Call, seconds: float) -> Any:
        """The reply to a call. Raises RondelError, Detached."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        ticket = self.conversation.add(call, seconds, answer)
        try:
            return await _within(seconds, answer, self._channel.target)
        finally:
            self.conversation.drop(ticket)

    def cancel(self) -> None:
        """End it at once."""
        self._call.cancel()
        self._reading.cancel()
        self._writing.cancel()

    async def close(self) -> None:
        """End it, and wait for what it was doing: a channel that is closed under a reader leaks its
        connection (grpc issue 42125)."""
        self.cancel()
        await asyncio.gather(self._reading, self._writing, return_exceptions=True)

    async def _read(self) -> None:
        target = self._channel.target
        error: RondelError = ServerUnavailable(f"the call to {target} was cancelled", target=target)
        try:
            while (raw := await self._call.read()) is not grpc.aio.EOF:
                self.conversation.receive(raw)
            error = ServerUnavailable(f"the server at {target} has ended the call", target=target)
        except grpc.aio.AioRpcError as failure:
            error = self._channel.error(failure)
            if failure.details() == _NO_STATUS:
                error = ServerUnavailable(f"the call to {target} broke off", target=target)
        finally:
            self.conversation.end(error)
            self._call.cancel()

    async def _write(self) -> None:
        # A write that fails is the call's end, which the reader hears of with its reason.
        with suppress(grpc.aio.AioRpcError, grpc.aio.BaseError, asyncio.InvalidStateError):
            while not self.conversation.over:
                await self._wanted.wait()
                self._wanted.clear()
                while (raw := self.conversation.next_message()) is not None:
                    await self._call.write(raw)


async def _within(seconds: float, answer: asyncio.Future[Any], target: str) -> Any:
    """What is waited for. Raises DeadlineExpired."""
    try:
        async with asyncio.timeout(seconds) as waiting:
            return await answer
    except TimeoutError:
        if not waiting.expired():
            raise
        raise DeadlineExpired(
            f"the server at {target} did not answer in {seconds:g} s", target=target
        ) from None
