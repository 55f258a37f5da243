"""A server that tells of its inside when a line comes on standard input, and stops when that ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading

from rondel.server.app import Server
from rondel.server.config import ServerConfig
from rondel.server.process import serve


async def inside(server: Server) -> dict[str, int]:
    """What cannot be read from /proc."""
    stats = server.arena.stats()
    return {
        "tasks": len(asyncio.all_tasks()) - 1,  # this one
        "calls": server._door.inside,
        "waiting_bytes": server.scheduler.waiting_bytes,
        "streams": len(server.streams),
        "reserved": stats.reserved,
        "resident": stats.resident,
    }


def tell(value: object) -> None:
    """One line of JSON."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def answer(server: Server, loop: asyncio.AbstractEventLoop) -> None:
    """Tell of the inside for every line that is read."""
    # Not sys.stdin: a thread that waits in it makes the interpreter abort when it ends.
    while got := os.read(0, 4096):
        for _ in range(got.count(b"\n")):
            tell(asyncio.run_coroutine_threadsafe(inside(server), loop).result())
    os.kill(os.getpid(), signal.SIGTERM)


def begin(server: Server) -> None:
    loop = asyncio.get_running_loop()
    threading.Thread(target=answer, args=(server, loop), daemon=True, name="watched").start()
    tell({"addresses": server.addresses, "pid": os.getpid()})


if __name__ == "__main__":
    serve(ServerConfig(**json.loads(sys.argv[1])), on_ready=begin)
