"""The bare echo: a grpc.aio server that does nothing but answer with as many bytes as it was asked for.

`python -m service.echo PATH CORE` listens on a free TCP port and on the unix socket PATH, prints the port,
and ends with its standard input. What its calls cost is what gRPC costs in Python, and no server of ours can
be below it: handlers take and give raw bytes, and the reply is there already.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from functools import cache
from typing import Any, Final

import grpc

SIZE_BYTES: Final = 4
"""The reply's size is the first number of a request, little-endian."""
UNARY: Final = "/echo.Echo/Unary"
STREAM: Final = "/echo.Echo/Stream"
OPTIONS: Final = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.so_reuseport", 0),
)


def request(size: int, reply_size: int) -> bytes:
    """``size`` bytes that ask for ``reply_size``. Raises ValueError for fewer than SIZE_BYTES."""
    if size < SIZE_BYTES:
        raise ValueError(f"a request has at least {SIZE_BYTES} bytes, got {size}")
    return reply_size.to_bytes(SIZE_BYTES, "little") + bytes(size - SIZE_BYTES)


@cache
def _reply(prefix: bytes) -> bytes:
    return bytes(int.from_bytes(prefix, "little"))


async def _unary(message: bytes, context: Any) -> bytes:
    return _reply(message[:SIZE_BYTES])


async def _stream(messages: Any, context: Any) -> None:
    while (message := await context.read()) is not grpc.aio.EOF:
        await context.write(_reply(message[:SIZE_BYTES]))


async def _serve(path: str) -> None:
    server = grpc.aio.server(options=OPTIONS)
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Unary": grpc.unary_unary_rpc_method_handler(_unary),
        "Stream": grpc.stream_stream_rpc_method_handler(_stream),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("echo.Echo", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    print(port, flush=True)
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.to_thread(sys.stdin.read)
    await server.stop(0)


if __name__ == "__main__":
    os.sched_setaffinity(0, {int(sys.argv[2])})
    asyncio.run(_serve(sys.argv[1]))
