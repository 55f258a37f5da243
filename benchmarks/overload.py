"""``make overload``: what a server still does when three times as much is asked of it as it can do.

The server has one core, the generator the other. Streams are forks of one long prompt; a request is a step of
one of them, whose kernel takes ``--least-ms`` or more. In each round a closed loop finds what the server can
do, then an open loop sends as much (the peak is the better of the two), and then three times as much. Goodput
is the answers that came within their deadlines; the ratio is the median of the rounds'. Exit code 1 if a
target is missed: goodput at least 0.9 of the peak, refusals within 50 ms (p99), no kernel after its call's
deadline.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import cast

import numpy as np
from numpy.typing import NDArray

from rondel.client.aio import AsyncAttentionClient
from rondel.client.aio_stream import AsyncStream
from rondel.client.load.histogram import Histogram
from rondel.client.load.lane import Lane, feed
from rondel.client.load.player import Outcome, Player
from rondel.client.load.recorder import OK, Recorder
from rondel.client.load.schedule import Closed, Constant, Schedule
from rondel.client.load.workload import Kind
from rondel.decoder.errors import Overloaded, RondelError
from rondel.decoder.spec import StreamSpec

QUERY_HEADS, HEAD_DIM, STREAMS, DEADLINE = 64, 64, 192, 1.0
TARGETS = {"goodput_over_peak": 0.9, "refused_p99_ms": 50.0, "late_starts": 0}
Floats = NDArray[np.float32]


@dataclass
class Stepper:
    """Plays a step of its stream at a time; in place of the load generator's own player."""

    stream: AsyncStream
    refused: list[float]
    rng: np.random.Generator
    kind: Kind = Kind.STEP

    async def play(self) -> Outcome:
        """One step, and how it ended. One that failed is made again: the server knows whether it was done."""
        q, k, v = (self._row(heads) for heads in (QUERY_HEADS, 1, 1))
        begun = time.perf_counter()
        try:
            await self.stream.step(0, q, k, v)
        except RondelError as error:
            if isinstance(error, Overloaded):
                self.refused.append(time.perf_counter() - begun)
            return Outcome(Kind.STEP, 0, False, error)
        return Outcome(Kind.STEP, 1, False)

    def _row(self, heads: int) -> Floats:
        return self.rng.standard_normal((1, heads, HEAD_DIM), dtype=np.float32)


@dataclass
class Round:
    """What a load has found."""

    goodput: float
    statuses: Counter[str]
    refused: list[float] = field(default_factory=list)
    lag_ms: float = 0.0
    fastest_ms: float = 0.0


async def load(streams: list[AsyncStream], schedule: Schedule, seconds: float) -> Round:
    """Puts a load on the server, and waits for the last answer."""
    refused: list[float] = []
    rng = np.random.default_rng(0)
    start = time.perf_counter() + 0.1
    recorder = Recorder(start, start + seconds)
    lanes = [Lane(cast(Player, Stepper(stream, refused, rng)), recorder) for stream in streams]
    tasks = [asyncio.create_task(lane.run()) for lane in lanes]
    await feed(schedule, lanes, start, seconds)
    for lane in lanes:
        await lane.idle.wait()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    tallies = recorder.tallies()
    lag, service = Histogram([tallies.lag]), Histogram([tallies.service["all"]])
    return Round(
        tallies.in_time / seconds,
        recorder.statuses,
        refused,
        lag.milliseconds(99.0),
        service.milliseconds(0.0),
    )


async def opened(client: AsyncAttentionClient, tokens: int) -> list[AsyncStream]:
    """Forks of a stream of so many tokens."""
    spec = StreamSpec.uniform(
        layers=1, query_heads=QUERY_HEADS, kv_heads=1, head_dim=HEAD_DIM, max_length=1 << 21
    )
    rng = np.random.default_rng(1)
    prompt = await client.open(spec)
    for _ in range(0, tokens, 8192):
        k, v = rng.standard_normal((2, 1, 8192, 1, HEAD_DIM), dtype=np.float32)
        await prompt.append_all(k, v)
    streams = [await prompt.fork(max_new_tokens=4096) for _ in range(STREAMS)]
    await prompt.close()  # they keep what it had
    return streams


async def measure(address: str, least_ms: float, rounds: int, seconds: float) -> dict[str, float]:
    """All rounds; a table on the way."""
    client = AsyncAttentionClient(address, timeout=30.0)
    streams, fastest_ms = await calibrated(client, least_ms)
    client._channel._timeout = DEADLINE
    print(f"{fastest_ms:.1f} ms a step, {STREAMS} streams, {1e3 * DEADLINE:.0f} ms to the deadline")
    print(
        f"{'':9}{'asked/s':>9}{'good/s':>9}{'refused':>9}{'failed':>9}{'refused p99':>13}{'lag p99 ms':>12}"
    )
    ratios: list[float] = []
    refused: list[float] = []
    for _ in range(rounds):
        can = shown("closed", None, await load(streams, Closed(concurrency=8), seconds))
        as_much = shown("peak", can, await load(streams, Constant(rate=can), seconds))
        found = await load(streams, Constant(rate=3 * can), seconds)
        ratios.append(shown("overload", 3 * can, found) / max(can, as_much))
        refused += found.refused
    return {"goodput_over_peak": round(median(ratios), 3), "refused_p99_ms": round(_p99_ms(refused), 1)}


async def calibrated(client: AsyncAttentionClient, least_ms: float) -> tuple[list[AsyncStream], float]:
    """Streams that are long enough for such kernels, and how long a step takes at its fastest."""
    tokens = 65536
    while True:
        streams = await opened(client, tokens)
        await load(streams[:1], Closed(concurrency=1), 0.5)
        alone = await load(streams[:1], Closed(concurrency=1), 1.0)
        # With the way there and back, which is not the kernel's time.
        if alone.fastest_ms >= 1.5 + 1.2 * least_ms:
            return streams, alone.fastest_ms
        await asyncio.gather(*(stream.close() for stream in streams))
        tokens *= 2


def shown(name: str, asked: float | None, found: Round) -> float:
    """A line of the table; the goodput."""
    failed = sum(count for status, count in found.statuses.items() if status not in (OK, Overloaded.reason))
    print(
        f"{name:9}{'' if asked is None else f'{asked:.1f}':>9}{found.goodput:9.1f}{len(found.refused):9d}"
        f"{failed:9d}{_p99_ms(found.refused):13.1f}{found.lag_ms:12.1f}"
    )
    return found.goodput


def _p99_ms(seconds: list[float]) -> float:
    return 1e3 * float(np.percentile(seconds, 99)) if seconds else 0.0


def main() -> int:
    """0 = all targets are met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--least-ms", type=float, default=20.0, help="of kernel time for a request")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each load")
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("two cores are needed: one for the server, one for the generator")
    script = str(Path(__file__).with_name("pinned_server.py"))
    command = [sys.executable, script, str(cores[0])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        if server.stdout is None:
            raise SystemExit("the server has no output")
        try:
            address = json.loads(server.stdout.readline())["address"]
            os.sched_setaffinity(0, {cores[1]})
            result = asyncio.run(measure(address, arguments.least_ms, arguments.rounds, arguments.seconds))
        finally:
            server.send_signal(signal.SIGTERM)
        counts = json.loads(server.stdout.readlines()[-1])
    print(counts)
    result["late_starts"] = counts["late_starts"] + counts["late_kernels"]
    print(json.dumps(result))
    met = result["goodput_over_peak"] >= TARGETS["goodput_over_peak"]
    met = met and result["refused_p99_ms"] <= TARGETS["refused_p99_ms"]
    return int(not (met and result["late_starts"] <= TARGETS["late_starts"]))


if __name__ == "__main__":
    sys.exit(main())
