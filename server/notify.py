"""What systemd is told by a service of Type=notify: ready, reloading, stopping, alive (sd_notify(3))."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final

log = logging.getLogger("rondel.server")

_MORE_SECONDS: Final = 30
"""So much more time a start asks for, again and again: reading a large arena may take minutes."""


class Notifier:
    """Sends states to the socket that NOTIFY_SOCKET names; without one it does nothing."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        name = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{name[1:]}" if name.startswith("@") else name
        microseconds = environment.get("WATCHDOG_USEC", "")
        ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._watchdog = int(microseconds) / 1e6 if ours and microseconds.isdecimal() else 0.0

    def ready(self) -> None:
        """It serves, or serves again after reloading."""
        self._send("READY=1")

    def reloading(self) -> None:
        """The configuration is being read again."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """It has begun to stop."""
        self._send("STOPPING=1")

    @contextlib.asynccontextmanager
    async def starting(self) -> AsyncIterator[None]:
        """Asks for more time for as long as the block runs."""
        async with self._every(_MORE_SECONDS / 2, self._ask_for_time):
            yield

    @contextlib.asynccontextmanager
    async def watched(self, live: Callable[[], bool]) -> AsyncIterator[None]:
        """Within the block the watchdog hears from us, as long as this loop runs and ``live()`` is true."""

        def ping() -> None:
            if live():
                self._send("WATCHDOG=1")

        async with self._every(self._watchdog / 2, ping):
            yield

    def _ask_for_time(self) -> None:
        self._send(f"EXTEND_TIMEOUT_USEC={_MORE_SECONDS * 1_000_000}")

    @contextlib.asynccontextmanager
    async def _every(self, seconds: float, tell: Callable[[], None]) -> AsyncIterator[None]:
        async def telling() -> None:
            while True:
                tell()
                await asyncio.sleep(seconds)

        if not (self._address and seconds):
            yield
            return
        task = asyncio.create_task(telling())
        try:
            yield
        finally:
            task.cancel()

    def _send(self, state: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto(state.encode(), self._address)
        except OSError as error:
            log.warning("systemd could not be told %s: %s", state.partition("=")[0], error)
