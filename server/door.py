"""Where calls come in: every method of our services passes through here, and every error leaves here.

Methods are registered as generic handlers on raw bytes. So a message that does not parse is an error like any
other; and the accept loop of grpc.aio, which costs more for each method that is registered by name, stays
cheap.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from rondel.decoder.errors import DeadlineExpired, Draining, InvalidRequest, Overloaded, RondelError
from rondel.server.bounds import bounded_texts, check_size, check_texts
from rondel.server.duplex import Duplex
from rondel.server.errors import DETAILS_KEY, code_of, known, to_status
from rondel.server.identity import Metadata, Peer
from rondel.server.insight import Insight
from rondel.server.security import Security
from rondel.server.tenants import Tenant

log = logging.getLogger("rondel.server")

M = TypeVar("M", bound=Message)

NOTHING_DONE: Final = (Overloaded, Draining, DeadlineExpired)
"""After these a call, or an operation of one, has taken no steps of what its tenant may."""


class _Context(Protocol):
    """The part of grpc.aio.ServicerContext that the door uses, with bytes for messages."""

    def time_remaining(self) -> float | None: ...
    def invocation_metadata(self) -> Metadata: ...
    def auth_context(self) -> Peer: ...
    async def read(self) -> object: ...
    async def write(self, message: bytes) -> None: ...
    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: tuple[tuple[str, bytes], ...] = ()
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class Call:
    """What a handler may know about its call."""

    size: int
    """Bytes of the request; 0 where there are many."""
    deadline: float | None
    """When the caller stops waiting, on ``time.monotonic``; None = never."""
    received: float
    """When the request was here, on the same clock."""
    tenant: str
    """Whose call it is. Empty: everybody is one tenant."""
    _who: Tenant
    _context: _Context

    @property
    def metered(self) -> bool:
        """Whether the tenant's steps are counted."""
        return self._who.steps.rate is not None

    @contextmanager
    def steps(self, count: Callable[[M], int], request: M) -> Iterator[None]:
        """Takes a request's steps (steps.py) from what the tenant may do per second; the block carries them
        out. They are given back where nothing was done, also if the caller has left before it was begun.
        Raises QuotaExceeded, and takes none."""
        number = count(request) if self.metered else 0
        self.take(number)
        try:
            yield
        except (*NOTHING_DONE, asyncio.CancelledError) as error:
            if isinstance(error, NOTHING_DONE) or isinstance(error.__cause__, NOTHING_DONE):
                self._who.steps.owe(-number)
            raise

    def take(self, number: int) -> None:
        """:meth:`steps` that are not given back; of 0, whether nothing is owed. Raises QuotaExceeded."""
        self._who.steps.take(number)

    def owe(self, number: int) -> None:
        """Takes steps whose number was not known before."""
        self._who.steps.owe(number)

    def pause(self) -> float:
        """Seconds to wait with the next piece of a long work, so that the tenant keeps to its rate."""
        return self._who.steps.pause()

    async def write(self, message: Message) -> None:
        """Sends one message of a server-streaming call; returns when the transport has room for more. Only
        the handler's own task may write, one message at a time."""
        raw = message.SerializeToString()
        del message  # a caller who reads slowly holds the bytes once, not twice
        await self._context.write(raw)


Handler = Callable[[Any, Call], Awaitable[Message | None]]


class _Requests(AsyncIterator[Message]):
    """The messages of a client-streaming call. Not a generator: nothing is left to close when the call
    ends."""

    def __init__(self, raw: AsyncIterator[bytes], read: Callable[[bytes], Message]) -> None:
        self._raw = raw
        self._read = read

    async def __anext__(self) -> Message:
        return self._read(await anext(self._raw))


class Door:
    """Lets calls in, counts them, and turns errors into statuses; ``insight`` sees them go by."""

    def __init__(self, security: Security, insight: Insight | None = None) -> None:
        self._security = security
        self._insight = Insight() if insight is None else insight
        self._inside: set[asyncio.Task[Any]] = set()
        self._cut: set[asyncio.Task[Any]] = set()
        self._duplexes: set[Duplex] = set()
        self._draining = False
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def inside(self) -> int:
        """Calls at work."""
        return len(self._inside)

    def shut(self) -> None:
        """Refuses all further calls with Draining, and has the bidirectional ones come to an end."""
        self._draining = True
        for duplex in self._duplexes:
            duplex.drain()

    def cut(self) -> None:
        """Ends the calls at work with Draining."""
        for task in self._inside - self._cut:
            self._cut.add(task)
            task.cancel()

    async def wait_empty(self) -> None:
        """Returns when no call is at work."""
        await self._empty.wait()

    def handlers(self, service: ServiceDescriptor, servicer: object) -> grpc.GenericRpcHandler:
        """Serves a service by the servicer's async methods, ``OpenStream`` by ``open_stream(request, call)``.

        A unary method returns its response; a server-streaming one writes them with :meth:`Call.write`. The
        request of a client-streaming one is an async iterator, which reads a message when it is asked for
        one; that of a bidirectional one a :class:`Duplex`.
        """
        methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {}
        for method in service.methods:
            handler: Handler = getattr(servicer, snake_case(method.name))
            entry = self._insight.entry(method, self._entry(method, self._insight.handler(handler)))
            if method.client_streaming and method.server_streaming:
                methods[method.name] = grpc.stream_stream_rpc_method_handler(entry)
            elif method.client_streaming:
                methods[method.name] = grpc.stream_unary_rpc_method_handler(entry)
            elif method.server_streaming:
                methods[method.name] = grpc.unary_stream_rpc_method_handler(entry)
            else:
                methods[method.name] = grpc.unary_unary_rpc_method_handler(entry)
        return grpc.method_handlers_generic_handler(service.full_name, methods)

    def _entry(
        self, method: MethodDescriptor, handler: Handler
    ) -> Callable[[Any, _Context], Awaitable[bytes | None]]:
        request_class = GetMessageClass(method.input_type)
        texts = bounded_texts(method.input_type)

        def read(raw: bytes) -> Message:
            check_size(method.input_type, len(raw))
            request = _parse(request_class, raw)
            check_texts(request, texts)
            return request

        async def entry(raw: Any, context: _Context) -> bytes | None:
            task = _this_task()
            self._inside.add(task)
            self._empty.clear()
            tenant: Tenant | None = None
            try:
                if self._draining:
                    raise Draining("the server is shutting down")
                tenant = self._let_in(context)
                if method.client_streaming and method.server_streaming:
                    response = await self._converse(handler, context, tenant)
                elif method.client_streaming:
                    response = await handler(_Requests(aiter(raw), read), _call(0, context, tenant))
                else:
                    response = await handler(read(raw), _call(len(raw), context, tenant))
                return None if response is None else response.SerializeToString()
            except asyncio.CancelledError:
                # By the door, or because the client has left; perhaps both.
                if task not in self._cut or task.uncancel():
                    raise
                await _refuse(method, context, Draining("the server shut down before the call had ended"))
            except grpc.aio.BaseError as error:
                raise _left(method, error) from None
            except Exception as error:  # noqa: BLE001 - the one place where errors become statuses
                await _refuse(method, context, known(error))
            finally:
                if tenant is not None:
                    tenant.leave()
                self._cut.discard(task)
                self._inside.discard(task)
                if not self._inside:
                    self._empty.set()
            return None

        return entry

    def _let_in(self, context: _Context) -> Tenant:
        """Whose call it is: asked once, however long the call. Raises Unauthenticated, PermissionDenied,
        QuotaExceeded."""
        identity = self._security.identity
        tenant = self._security.tenants.get(
            identity.tenant_of(context.invocation_metadata, context.auth_context)
        )
        tenant.enter()
        return tenant

    async def _converse(self, handler: Handler, context: _Context, tenant: Tenant) -> Message | None:
        duplex = Duplex(context)
        self._duplexes.add(duplex)
        try:
            return await handler(duplex, _call(0, context, tenant))
        finally:
            self._duplexes.discard(duplex)


def snake_case(name: str) -> str:
    """``GetServerInfo`` -> ``get_server_info``."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _parse(request_class: type[Message], raw: bytes) -> Message:
    try:
        return request_class.FromString(raw)
    except DecodeError as error:
        name = request_class.DESCRIPTOR.full_name
        raise InvalidRequest(f"the request is not a {name}: {error}", field=name) from error


def _call(size: int, context: _Context, tenant: Tenant) -> Call:
    now = time.monotonic()
    remaining = context.time_remaining()
    return Call(size, None if remaining is None else now + remaining, now, tenant.name, tenant, context)


def _this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("a call is handled outside of any task")
    return task


async def _refuse(method: MethodDescriptor, context: _Context, error: RondelError) -> None:
    """Ends the call with an error; always raises, since that is how grpc.aio ends one."""
    status = to_status(error)
    try:
        await context.abort(code_of(error), status.message, ((DETAILS_KEY, status.SerializeToString()),))
    except grpc.aio.AbortError:
        raise
    except grpc.aio.BaseError as second:
        raise _left(method, second) from None


def _left(method: MethodDescriptor, error: Exception) -> asyncio.CancelledError:
    """What grpc.aio raises when a call is over before its handler: deadline, cancellation, lost connection.

    That is the client's business. As a cancellation it goes the way of every other client that leaves.
    """
    log.debug("the caller of %s has left: %r", method.full_name, error)
    return asyncio.CancelledError()


class _Departures(logging.Filter):
    """Keeps tracebacks out of the log where grpc.aio itself sends something to a client that has left."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        # Its class is in no public module.
        return type(error).__name__ != "ExecuteBatchError"


logging.getLogger("grpc._cython.cygrpc").addFilter(_Departures())
