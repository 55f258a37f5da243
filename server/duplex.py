"""Both directions of a bidirectional call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from google.protobuf.message import Message


class _Context(Protocol):
    """The part of grpc.aio.ServicerContext that is used, with bytes for messages."""

    async def read(self) -> object: ...
    async def write(self, message: bytes) -> None: ...


class Duplex:
    """A call's messages, as bytes. At any moment one task may read and one may write: a second writer would
    leave the client without a status (grpc issue 24758)."""

    def __init__(self, context: _Context) -> None:
        self._context = context
        self.on_drain: Callable[[], None] | None = None
        """Called when the server begins to stop; the handler is then to come to an end."""
        self.on_answer: Callable[[Message, Message], None] | None = None
        """Called with every operation of the call and its result."""

    async def read(self) -> bytes | None:
        """The next message; None: there are no more. The client has half-closed the call, or has left: a
        cancellation looks the same here, and only shows a moment later, as one of the handler's task."""
        raw = await self._context.read()
        return raw if isinstance(raw, bytes) else None

    async def write(self, raw: bytes) -> None:
        """Sends a message; returns when the transport has room for more."""
        await self._context.write(raw)

    def drain(self) -> None:
        """Has the handler come to an end, if it wants to know."""
        if self.on_drain is not None:
            self.on_drain()
