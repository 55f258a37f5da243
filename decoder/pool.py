"""How many threads the kernels use: one native pool for the process, parked when there is nothing to do.

The number is that of the cores in force (affinity mask and control group quota, not the host's cores), or
what the environment variable ``RONDEL_THREADS`` says. Results do not depend on it, to the bit.
"""

from __future__ import annotations

import atexit
import os
from typing import Final

from rondel.decoder.errors import ForkedProcess, InvalidSpec
from rondel.decoder.kernels import _pool
from rondel.decoder.machine import cores

MAX_THREADS: Final = 256


def threads() -> int:
    """Threads that a kernel call may use, the caller's included."""
    return _pool.threads()


def set_threads(count: int) -> None:
    """Use this many threads from the next call on. Waits for a call that is running.

    Raises:
        InvalidSpec: not an integer from 1 to MAX_THREADS.
        ForkedProcess: the threads belong to the process that this one was forked from.
    """
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_THREADS:
        raise InvalidSpec(
            f"threads must be an integer from 1 to {MAX_THREADS}, got {count!r}", field="threads"
        )
    if not _pool.resize(count):
        raise ForkedProcess("the kernel threads belong to the process that this one was forked from")


def _wanted() -> int:
    forced = os.environ.get("RONDEL_THREADS", "")
    if not forced:
        return min(cores().in_force, MAX_THREADS)
    if not forced.isdecimal():
        raise InvalidSpec(
            f"RONDEL_THREADS must be an integer from 1 to {MAX_THREADS}, got {forced!r}", field="threads"
        )
    return int(forced)


def _end() -> None:
    if not _pool.forked():
        _pool.resize(1)


set_threads(_wanted())
atexit.register(_end)
