"""The server as a process of its own: signals, log, exit code."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import math
import os
import signal
import sys
import warnings
from collections.abc import Callable
from typing import Final

from rondel.decoder.quality import QualityWarning
from rondel.server.app import LAST_SECONDS, Server
from rondel.server.config import ServerConfig

log = logging.getLogger("rondel.server")

_HANGING_SECONDS: Final = 5.0
"""So long after the last moment of a stop a process that has not ended is ended by a thread that needs no
interpreter."""


def serve(config: ServerConfig, *, on_ready: Callable[[Server], None] | None = None) -> None:
    """Runs a server until SIGTERM or SIGINT, then stops it. ``on_ready`` is called when it is serving. For a
    process of its own, on the main thread.

    The process ends within ``drain_seconds`` and 2 seconds, whatever its workers do: when one of them cannot
    be waited for, at once and with exit code 0. A second signal ends it at once with exit code 128 + signal.

    Raises:
        InvalidSpec: an address is in use, or cannot be listened on.
        ArenaFileError: the arena's file cannot be used.
        ModelError, BudgetExceeded: the model or a file of projections cannot be used.
    """
    # Before any object of grpc.aio exists: configuring it later can deadlock with their finalisers.
    # The log tells it with the stream's handle.
    warnings.simplefilter("ignore", QualityWarning)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        left_behind = asyncio.run(_serve(config, on_ready))
    finally:
        faulthandler.cancel_dump_traceback_later()
    if left_behind:
        # The interpreter's own end could wait for that thread, or crash in it.
        logging.shutdown()
        sys.stdout.flush()
        os._exit(0)


async def _serve(config: ServerConfig, on_ready: Callable[[Server], None] | None) -> bool:
    """Whether a worker is still at work at the end."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal(number: signal.Signals) -> None:
        if stopping.is_set():
            log.warning("second %s: ending at once", number.name)
            os._exit(128 + number)
        log.info("%s: stopping", number.name)
        seconds = config.drain_seconds + LAST_SECONDS + _HANGING_SECONDS
        faulthandler.dump_traceback_later(math.ceil(seconds), exit=True)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    server = Server(config)
    beginning = asyncio.create_task(server.begin())
    stop_wanted = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait((beginning, stop_wanted), return_when=asyncio.FIRST_COMPLETED)
        if beginning.done():
            await beginning
            if on_ready is not None:
                on_ready(server)
            await stop_wanted
        else:
            beginning.cancel()
            await asyncio.gather(beginning, return_exceptions=True)
    finally:
        stop_wanted.cancel()
        await server.stop()
    return server.working
