"""The two ways to send: a channel that waits, and one for asyncio. Everything else of a client is shared."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import grpc
import grpc.aio

from rondel.client import calls
from rondel.client.access import Access
from rondel.client.calls import Attempts, Call, Method
from rondel.client.checks import checked_message_bytes, checked_target, checked_timeout
from rondel.client.errors import from_call
from rondel.client.running import AsyncRunner, Runner
from rondel.decoder.errors import QuotaExceeded, RondelError, ServerUnavailable


class _Connection:
    """What the two have in common: an address, and the methods that were called there."""

    def __init__(
        self, target: str, timeout: float, max_message_bytes: int, access: Access | None = None
    ) -> None:
        self.target = checked_target(target)
        self._access = access or Access()
        self._timeout = checked_timeout(timeout)
        self._largest = checked_message_bytes(max_message_bytes)
        self._methods: dict[str, Callable[..., Any]] = {}
        self._closed = False

    def _method(self, channel: Any, kind: str, call: Call) -> Callable[..., Any]:
        size = call.request.ByteSize()
        if size > self._largest:
            raise QuotaExceeded(
                f"a request of {size} bytes is larger than this client's max_message_bytes, "
                f"{self._largest}; send fewer tokens at a time, or make the client with a larger one",
                requested=size,
                limit=self._largest,
                side="client",
            )
        return self._stub(channel, kind, call.method)

    def _check_open(self) -> None:
        if self._closed:
            raise ServerUnavailable(f"the client of {self.target} was closed", target=self.target)

    def _stub(
        self, channel: Any, kind: str, method: Method[Any, Any], begin: str = "__call__"
    ) -> Callable[..., Any]:
        self._check_open()
        made = self._methods.get(method.path)
        if made is None:
            stub = getattr(channel, kind)(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.reply.FromString,
            )
            made = self._methods[method.path] = self._access.bound(getattr(stub, begin))
        return made

    def attempts(self, call: Call) -> Attempts:
        """The tries of a call, which gets its deadline by it."""
        attempts = Attempts(self._timeout, call.deadline)
        call.deadline = attempts.deadline
        return attempts

    def _meaning(self, failure: grpc.Call | grpc.aio.AioRpcError) -> RondelError:
        return from_call(failure.code(), failure.details(), failure.trailing_metadata(), target=self.target)


class Channel(_Connection, Runner):
    """A connection: sends calls, tries them again where that helps, raises what the server meant."""

    def __init__(
        self, target: str, timeout: float, max_message_bytes: int, access: Access | None = None
    ) -> None:
        super().__init__(target, timeout, max_message_bytes, access)
        options = calls.channel_options(max_message_bytes)
        self._channel: grpc.Channel = self._access.channel(grpc, target, options)

    @property
    def channel(self) -> Channel:
        return self

    def start(self, call: Call, timeout: float) -> Any:
        """Begin a server-streaming call."""
        return self._method(self._channel, "unary_stream", call)(call.request, timeout=timeout)

    def upload(self, method: Method[Any, Any]) -> Any:
        """What begins a call of a client-streaming method: a function of requests and ``timeout``."""
        return self._stub(self._channel, "stream_unary", method, "future")

    def error(self, failure: grpc.RpcError) -> RondelError:
        """What a failed call meant."""
        return self._meaning(cast(grpc.Call, failure))  # whatever a channel raises is one

    def wait(self, attempts: Attempts, error: RondelError) -> None:
        """Until a call may be tried again. Raises ``error`` when there is to be no other try."""
        if self._closed:
            raise error
        time.sleep(attempts.pause(error))

    def close(self) -> None:
        self._closed = True
        self._channel.close()

    def converse(self, messages: Iterator[bytes]) -> Any:
        """Begin a Decode call; it takes these messages as they come."""
        return self._stub(self._channel, "stream_stream", calls.DECODE)(messages)

    def send(self, call: Call) -> Any:
        send = self._method(self._channel, "unary_unary", call)
        attempts = self.attempts(call)
        while True:
            try:
                return send(call.request, timeout=attempts.begin())
            except grpc.RpcError as failure:
                error = self.error(failure)
            self.wait(attempts, error)


class AsyncChannel(_Connection, AsyncRunner):
    """A connection; made at the first call, because grpc.aio binds it to the loop that runs then."""

    def __init__(
        self, target: str, timeout: float, max_message_bytes: int, access: Access | None = None
    ) -> None:
        super().__init__(target, timeout, max_message_bytes, access)
        self._channel: grpc.aio.Channel | None = None
        self._breaks = 0

    @property
    def channel(self) -> AsyncChannel:
        return self

    def start(self, call: Call, timeout: float) -> Any:
        """Begin a server-streaming call."""
        return self._method(self._connected(), "unary_stream", call)(call.request, timeout=timeout)

    def waiting(self) -> Channel:
        """A connection of the other kind to the same server, for what grpc.aio does not do well."""
        self._check_open()
        return Channel(self.target, self._timeout, self._largest, self._access)

    def error(self, failure: grpc.aio.AioRpcError) -> RondelError:
        """What a failed call meant."""
        return self._meaning(failure)

    async def wait(self, attempts: Attempts, error: RondelError) -> None:
        """Until a call may be tried again. Raises ``error`` when there is to be no other try."""
        if self._closed:
            raise error
        await asyncio.sleep(attempts.pause(error))

    def cancelled(self, error: asyncio.CancelledError) -> BaseException:
        """What to raise: grpc.aio raises CancelledError also when only the call was cancelled."""
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            return error
        return ServerUnavailable(f"the call to {self.target} was cancelled", target=self.target)

    async def reconnect(self) -> None:
        """Break the connection: calls under way fail as ServerUnavailable, the next one connects anew."""
        broken, self._channel = self._channel, None
        self._methods.clear()
        if broken is not None:
            self._breaks += 1
            await broken.close()

    async def close(self) -> None:
        self._closed = True
        closing, self._channel = self._channel, None
        self._methods.clear()
        if closing is not None:
            await closing.close()

    def converse(self) -> Any:
        """Begin a Decode call."""
        return self._stub(self._connected(), "stream_stream", calls.DECODE)()

    async def send(self, call: Call) -> Any:
        attempts = self.attempts(call)
        while True:
            # Each time: between two tries the connection may have become another.
            send = self._method(self._connected(), "unary_unary", call)
            running = send(call.request, timeout=attempts.begin())
            try:
                return await running
            except grpc.aio.AioRpcError as failure:
                error = self.error(failure)
            except asyncio.CancelledError as cancelled:
                raise self.cancelled(cancelled) from None
            finally:
                running.cancel()  # a call that nobody waits for is neither collected nor ended by grpc.aio
                # The error's traceback holds this frame, and the frame the error. With them in that cycle the
                # connection would stay open after `close` until somebody collects it (grpc issue 42125).
                del send, running
            await self.wait(attempts, error)

    def _connected(self) -> grpc.aio.Channel:
        self._check_open()
        if self._channel is None:
            # gRPC shares connections between channels of the same options: this one makes them differ.
            options = (*calls.channel_options(self._largest), ("rondel.breaks", self._breaks))
            self._channel = self._access.channel(grpc.aio, self.target, options)
        return self._channel
