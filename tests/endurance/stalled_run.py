"""``make stalled-readers``: what readers who take nothing hold of the server's memory and others' time."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np
from active import Active
from readers import OfDecodes, OfExports, Readers
from rich.console import Console
from watched import Watched

PER_EXPORT = 512 << 10
"""Bytes of memory that the reader of an export may hold: some copies of a reply of 128 KiB."""
MOST_RATIO = 1.5
RATE = 150.0
"""Steps of others per second."""
err = Console(stderr=True, highlight=False)


@dataclass(slots=True)
class Measured:
    """What was measured; times in milliseconds."""

    growth: int = 0
    """Most bytes by which the server's memory grew, but for what the streams' own tokens take."""
    alone: list[float] = field(default_factory=list)
    """p99 of others' steps, round by round."""
    beside: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """The median of the rounds': one in which the machine does something else says nothing."""
        pairs = zip(self.alone, self.beside, strict=True)
        return round(median(beside / alone for alone, beside in pairs), 3)


async def measure(server: Watched, readers: Readers, rounds: int, seconds: float) -> Measured:
    """Others are served alone and beside stalled readers, by turns."""
    found = Measured()
    async with readers, Active(server.address, 8) as active:
        await active.on_time(seconds, RATE)
        gc.collect()
        gc.freeze()  # no pauses of our own
        before = await asyncio.to_thread(server.vitals)
        for round_ in range(rounds):
            found.alone.append(percentile(await active.on_time(seconds, RATE)))
            await readers.begin()
            await idle(server)  # all that they may have has been made
            found.beside.append(percentile(await active.on_time(seconds, RATE)))
            now = await asyncio.to_thread(server.vitals)
            found.growth = max(found.growth, now.rss - before.rss - (now.resident - before.resident))
            readers.end()
            gone = replace(before, fds=now.fds)  # the connections stay for the next round
            await asyncio.to_thread(server.settled, gone, 30.0)
            err.print(
                f"round {round_ + 1} of {rounds}: {found.growth / readers.count / 2**10:.0f} KiB each, "
                f"p99 {found.alone[-1]:.2f} ms alone, {found.beside[-1]:.2f} ms beside"
            )
    return found


async def idle(server: Watched) -> None:
    """Returns when the server has nothing to do; after half a minute in any case."""
    before = await asyncio.to_thread(server.vitals)
    for _ in range(60):
        await asyncio.sleep(0.5)
        now = await asyncio.to_thread(server.vitals)
        if now.cpu_seconds - before.cpu_seconds <= 0.03:
            return
        before = now


def percentile(seconds: list[float]) -> float:
    """p99 in milliseconds."""
    return round(1e3 * float(np.percentile(seconds, 99)), 3)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--readers", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each half of a round")
    arguments = parser.parse_args()
    count = arguments.readers
    numbers: dict[str, float] = {"readers": count}
    failed = False
    for name, kind in (("export", OfExports), ("decode", OfDecodes)):
        err.print(f"{count} stalled readers: {name}")
        with Watched(budget_bytes=1 << 30, log_level="warning") as server:
            readers = kind(server.address, count)
            found = asyncio.run(measure(server, readers, arguments.rounds, arguments.seconds))
        most = PER_EXPORT if isinstance(readers, OfExports) else readers.window
        failed |= found.growth > most * count or found.ratio > MOST_RATIO
        numbers |= {
            f"{name}_bytes_per_reader": found.growth // count,
            f"{name}_bytes_allowed": most,
            f"{name}_p99_ms_alone": median(found.alone),
            f"{name}_p99_ms_beside": median(found.beside),
            f"{name}_p99_ratio": found.ratio,
        }
    sys.stdout.write(json.dumps(numbers) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
