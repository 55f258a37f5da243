"""Watches a worker, and has health say what it sees."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from rondel.server.health import LIVENESS, Health
from rondel.server.scheduler import Scheduler

log = logging.getLogger("rondel.server")

_TURN_SECONDS: Final = 1.0


async def watch(
    scheduler: Scheduler, name: str, services: tuple[str, ...], health: Health, stuck_seconds: float
) -> None:
    """Until a worker is gone, which is for good. One that is inside a piece of work for longer than
    ``stuck_seconds`` (0 = never) does not serve until it goes on; that is no reason to end the process."""
    stuck, cause = False, f"the {name} worker is stuck"
    turn = min(_TURN_SECONDS, stuck_seconds / 4) if stuck_seconds else None
    while not scheduler.ended.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(scheduler.ended.wait(), turn)
        seconds = scheduler.busy_seconds
        if stuck_seconds and not stuck and seconds > stuck_seconds:
            stuck = True
            log.critical("the %s worker has been inside one operation for %.1f s", name, seconds)
            health.fail(cause, [service for service in services if service != LIVENESS])
        elif stuck and seconds <= stuck_seconds:
            stuck = False
            log.warning("the %s worker goes on", name)
            health.recover(cause)
    log.critical("the %s worker has ended", name)
    health.fail(f"the {name} worker has ended", services)
