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

from rondel.decoder.errors import RondelError
from rondel.decoder.quality import QualityWarning
from rondel.server import logs
from rondel.server.app import LAST_SECONDS, Server
from rondel.server.config import ServerConfig
from rondel.server.notify import Notifier

log = logging.getLogger("rondel.server")

_HANGING_SECONDS: Final = 5.0
"""So long after the last moment of a stop a process that has not ended is ended by a thread that needs no
interpreter."""


Read = Callable[[], ServerConfig]


def serve(
    config: ServerConfig,
    *,
    on_ready: Callable[[Server], None] | None = None,
    read_again: Read | None = None,
) -> None:
    """Runs a server until SIGTERM or SIGINT, then stops it. ``on_ready`` is called when it is serving. For a
    process of its own, on the main thread.

    At SIGTERM health says NOT_SERVING, and ``pre_stop_seconds`` later the stop begins; at SIGINT it begins at
    once. From then the process ends within ``drain_seconds`` and 2 seconds, whatever its workers do: when one
    of them cannot be waited for, at once and with exit code 0. A second signal ends it at once with exit code
    128 + signal. At SIGHUP the server takes what it can from the configuration that ``read_again`` gives,
    unless the terminal that it was started from is gone: then it stops.

    Raises:
        InvalidSpec: an address is in use, or cannot be listened on.
        ArenaFileError: the arena's file cannot be used.
        ModelError, BudgetExceeded: the model or a file of projections cannot be used.
    """
    # The log tells it with the stream's handle.
    warnings.simplefilter("ignore", QualityWarning)
    logs.configure(config)
    if config.admin_port is not None:
        from prometheus_client import disable_created_metrics

        # A series more for each, which no dashboard reads.
        disable_created_metrics()  # type: ignore[no-untyped-call]
    try:
        with asyncio.Runner(loop_factory=_loop_factory(config)) as runner:
            left_behind = runner.run(_Process(config, on_ready, read_again).run())
    finally:
        faulthandler.cancel_dump_traceback_later()
    if left_behind:
        # The interpreter's own end could wait for that thread, or crash in it.
        logging.shutdown()
        sys.stdout.flush()
        os._exit(0)


def _loop_factory(config: ServerConfig) -> Callable[[], asyncio.AbstractEventLoop]:
    if config.event_loop == "asyncio":
        return asyncio.new_event_loop
    from uvloop import new_event_loop  # here, because only a server's process needs it

    return new_event_loop


class _Process:
    """The server, and what signals do to it."""

    def __init__(
        self, config: ServerConfig, on_ready: Callable[[Server], None] | None, read_again: Read | None
    ) -> None:
        self._config = config
        self._on_ready = on_ready
        self._read_again = read_again
        self._notifier = Notifier()
        self._stopping = asyncio.Event()
        self._pre_stop = 0.0
        self._serving = False
        self._had_terminal = os.isatty(0)

    async def run(self) -> bool:
        """Whether a worker is still at work at the end."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number)
        self._server = server = Server(self._config)
        loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        beginning = asyncio.create_task(server.begin())
        stop_wanted = asyncio.create_task(self._stopping.wait())
        try:
            async with self._notifier.starting():
                await asyncio.wait((beginning, stop_wanted), return_when=asyncio.FIRST_COMPLETED)
            if beginning.done():
                await beginning
                self._serving = True
                self._notifier.ready()
                if self._on_ready is not None:
                    self._on_ready(server)
                async with self._notifier.watched(lambda: server.live):
                    await stop_wanted
                    if self._pre_stop:
                        server.withdraw()
                        await asyncio.sleep(self._pre_stop)
            else:
                beginning.cancel()
                await asyncio.gather(beginning, return_exceptions=True)
        finally:
            stop_wanted.cancel()
            await server.stop()
        return server.working

    def _stop(self, number: signal.Signals) -> None:
        if self._stopping.is_set():
            log.warning("second %s: ending at once", number.name)
            os._exit(128 + number)
        config = self._server.config
        self._pre_stop = config.pre_stop_seconds if number == signal.SIGTERM else 0.0
        log.info("%s: stopping", number.name)
        self._notifier.stopping()
        seconds = self._pre_stop + config.drain_seconds + LAST_SECONDS + _HANGING_SECONDS
        faulthandler.dump_traceback_later(math.ceil(seconds), exit=True)
        self._stopping.set()

    def _hang_up(self) -> None:
        if self._had_terminal and not os.isatty(0):
            self._stop(signal.SIGHUP)
            return
        if not self._serving or self._stopping.is_set():
            log.info("SIGHUP: ignored, since the server is only starting or stopping")
            return
        self._notifier.reloading()
        try:
            config = self._server.config if self._read_again is None else self._read_again()
            changes = self._server.reload(config)
        except RondelError as error:
            self._server.observatory.reloaded(False)
            log.error("SIGHUP: nothing was changed: %s", error)
        else:
            logs.set_level(self._server.config.log_level)
            self._server.observatory.reloaded(True)
            log.info("SIGHUP: %s", changes)
        self._notifier.ready()
