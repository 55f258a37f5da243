"""Turns callers away before their messages are read.

gRPC reads the request of a unary call before the handler hears of it, up to the largest message that there
may be. Somebody who has no token must not fill the server's memory so: for such a call the method is made a
streaming one, whose handler ends it without reading anything.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from rondel.decoder.errors import Unauthenticated
from rondel.server.identity import Identity

Entry = Callable[[Any, Any], Awaitable[bytes | None]]


class Gate(grpc.GenericRpcHandler):
    """In front of the handlers of a service, whose entries raise for themselves when they are reached."""

    def __init__(self, inside: grpc.GenericRpcHandler, identity: Identity) -> None:
        self._inside = inside
        self._identity = identity

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The handler of a call."""
        handler = self._inside.service(handler_call_details)
        if handler is None or not self._identity.asks:
            return handler
        try:
            self._identity.claimed(handler_call_details.invocation_metadata)
        except Unauthenticated:
            return grpc.stream_stream_rpc_method_handler(_unread(handler))
        return handler


def _unread(handler: Any) -> Entry:
    """What ends a call by its own entry. The types of ``handler`` know no asyncio."""
    unary: Entry | None = handler.unary_unary or handler.unary_stream
    streaming: Entry | None = handler.stream_unary or handler.stream_stream

    async def refuse(requests: AsyncIterator[bytes], context: Any) -> None:
        if unary is not None:
            await unary(b"", context)
        elif streaming is not None:
            await streaming(requests, context)

    return refuse
