"""What can be seen of calls from outside: each is accompanied from its first byte to its status.

That is done around the door's handlers, not by interceptors of grpc.aio: those see neither the messages of a
call that reads and writes them itself, nor its tenant; and instrumentation that can be had for them breaks
such calls (open-telemetry/opentelemetry-python-contrib 3066).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from rondel.server.account import CURRENT, Account, Listener, safely
from rondel.server.duplex import Duplex
from rondel.server.errors import DETAILS_KEY

_EARLY_SECONDS: Final = 0.05

Entry = Callable[[Any, Any], Awaitable[bytes | None]]
Handler = Callable[[Any, Any], Awaitable[Any]]


class Watcher(Protocol):
    """Follows calls of all methods."""

    def begin(
        self, method: MethodDescriptor, account: Account, metadata: Callable[[], Any]
    ) -> Listener | None:
        """A call of this method has begun; who is to be told of what it does. ``metadata`` gets its request's
        metadata."""

    def answered(self, account: Account, request: Any, response: Any) -> None:
        """A handler has returned, before the answer is on its way; or an operation of a Decode call has its
        result."""

    def end(self, account: Account, listener: Listener | None) -> None:
        """The call is over; its account says how."""


class Insight:
    """Wraps the door's entries and handlers for watchers. Without any, calls are what they are without it."""

    def __init__(self, watchers: Sequence[Watcher] = ()) -> None:
        self._watchers = tuple(watchers)

    def handler(self, handler: Handler) -> Handler:
        """Wraps a servicer's method, which knows the messages."""
        if not self._watchers:
            return handler

        async def handled(request: Any, call: Any) -> Any:
            account = CURRENT.get()
            if account is None:  # called by something else than an entry
                return await handler(request, call)
            account.tenant = call.tenant
            account.request = request
            tell = partial(self._answered, account)
            if isinstance(request, Duplex):
                request.on_answer = tell
            response = await handler(request, call)
            tell(request, response)
            return response

        return handled

    def _answered(self, account: Account, request: Any, response: Any) -> None:
        for watcher in self._watchers:
            safely(watcher.answered, account, request, response)

    def entry(self, method: MethodDescriptor, entry: Entry) -> Entry:
        """Wraps what grpc.aio calls, which knows bytes and statuses."""
        if not self._watchers:
            return entry

        watchers = self._watchers
        # Looked up once: a descriptor's attributes cost as much as all else here.
        service, name = method.containing_service.full_name, method.name
        one_request = not method.client_streaming
        # In both directions messages go through the context.
        iterated = method.client_streaming and not method.server_streaming

        async def watched(raw: Any, context: Any) -> bytes | None:
            account = Account(service, name, context.peer(), time.monotonic())
            CURRENT.set(account)
            metadata = context.invocation_metadata
            began = [safely(watcher.begin, method, account, metadata) for watcher in watchers]
            account.listeners = tuple([listener for listener in began if listener is not None])
            try:
                if one_request:
                    account.received(len(raw))
                elif iterated:
                    raw = _Counted(raw, account)
                response = await entry(raw, _Context(context, account))
                if response is not None:
                    account.sent(len(response))
                return response
            except BaseException as error:
                _note_end(account, context, error)
                raise
            finally:
                for watcher, listener in zip(watchers, began, strict=True):
                    safely(watcher.end, account, listener)

        return watched


class _Context:
    """grpc.aio's context, with messages and an abort noted; everything else is its own."""

    __slots__ = ("_account", "_context")

    def __init__(self, context: Any, account: Account) -> None:
        self._context = context
        self._account = account

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def read(self) -> Any:
        message = await self._context.read()
        if message is not grpc.aio.EOF:
            self._account.received(len(message))
        return message

    async def write(self, message: bytes) -> None:
        await self._context.write(message)
        self._account.sent(len(message))

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Sequence[tuple[str, Any]] = ()
    ) -> None:
        self._account.code = code
        self._account.reason = _reason(dict(trailing_metadata).get(DETAILS_KEY, b""))
        await self._context.abort(code, details, trailing_metadata)


class _Counted(AsyncIterator[bytes]):
    """The messages of a client, noted."""

    def __init__(self, raw: Any, account: Account) -> None:
        self._raw = raw
        self._iterator: Any = None
        self._account = account

    async def __anext__(self) -> bytes:
        if self._iterator is None:
            # Not before: of a call that is refused nothing is read, and gRPC's iterator, once begun and never
            # used, warns of that when it is collected.
            self._iterator = aiter(self._raw)
        message: bytes = await anext(self._iterator)
        self._account.received(len(message))
        return message


def _note_end(account: Account, context: Any, error: BaseException) -> None:
    """How a call has ended that did not return."""
    if isinstance(error, grpc.aio.AbortError):
        return  # noted with the abort
    if isinstance(error, asyncio.CancelledError):
        # Nobody says why. An abort that came too late for the caller is no more than that either. A caller
        # whose deadline passes leaves some milliseconds before it passes here: its clock started earlier.
        remaining = context.time_remaining()
        late = remaining is not None and remaining < _EARLY_SECONDS
        account.code = grpc.StatusCode.DEADLINE_EXCEEDED if late else grpc.StatusCode.CANCELLED
    else:
        account.code = grpc.StatusCode.UNKNOWN
    account.reason = ""


def _reason(details: bytes) -> str:
    """The reason in a status, empty if there is none."""
    info = error_details_pb2.ErrorInfo()
    try:
        found = any(detail.Unpack(info) for detail in status_pb2.Status.FromString(details).details)
    except DecodeError:
        return ""
    return str(info.reason) if found else ""
