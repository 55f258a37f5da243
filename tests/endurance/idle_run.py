"""``make idle-streams``: what 10,000 streams that nobody uses take of memory and processor, and of others."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from statistics import median

import grpc
import grpc.aio
import numpy as np
from active import Active
from rich.console import Console
from watched import OWN_CHANNEL, Watched

from rondel.decoder.spec import StreamSpec
from rondel.v1 import attention_pb2 as pb
from rondel.v1.attention_pb2_grpc import AttentionServiceStub
from rondel.v1.specs import spec_to_message
from rondel.v1.wire import to_tensor

TINY = StreamSpec.uniform(layers=1, query_heads=1, kv_heads=1, head_dim=8, window=16)
AT_ONCE = 32
MOST_RATIO = 1.1
err = Console(stderr=True, highlight=False)


async def fill(address: str, count: int) -> None:
    """Open so many tiny streams, and put a few tokens into each."""
    rows = to_tensor(np.ones((1, 4, 1, 8), np.float32))
    opening = pb.OpenStreamRequest(spec=spec_to_message(TINY))
    left = iter(range(count))
    async with grpc.aio.insecure_channel(address, options=OWN_CHANNEL) as channel:
        stub = AttentionServiceStub(channel)

        async def some() -> None:
            for _ in left:
                stream = pb.StreamRef(handle=(await stub.OpenStream(opening)).handle)
                await stub.AppendToken(pb.AppendTokenRequest(stream=stream, k=rows, v=rows))

        await asyncio.gather(*(some() for _ in range(AT_ONCE)))


async def compare(beside: str, alone: str, active: int, rounds: int, seconds: float) -> tuple[float, float]:
    """Median microseconds of a step among the idle ones, and that over the one on a server of their own:
    the median of alternating rounds."""
    ratios, times = [], []
    async with Active(beside, active) as one, Active(alone, active) as other:
        for each in (one, other):
            await each.in_turn(seconds)
        for round_ in range(rounds):
            # Whoever goes first would have a machine that is a little warmer, or colder.
            order = (one, other) if round_ % 2 else (other, one)
            medians = {each: median(await each.in_turn(seconds)) for each in order}
            ratios.append(medians[one] / medians[other])
            times.append(medians[one])
    return 1e6 * median(times), median(ratios)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--active", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--idle-seconds", type=float, default=10.0)
    arguments = parser.parse_args()
    options = {"budget_bytes": 1 << 30, "max_streams": arguments.streams + 100, "log_level": "warning"}
    with Watched(**options) as crowded, Watched(**options) as alone:
        before = crowded.vitals()
        asyncio.run(fill(crowded.address, arguments.streams))
        time.sleep(1.0)
        filled = crowded.vitals()
        caches = filled.resident - before.resident
        beyond = filled.rss - before.rss - caches
        err.print(
            f"{filled.streams} streams: {beyond / arguments.streams:.0f} bytes each beyond their caches, "
            f"which have {caches / arguments.streams:.0f}"
        )
        time.sleep(arguments.idle_seconds)
        cpu = crowded.vitals().cpu_seconds - filled.cpu_seconds
        err.print(f"idle for {arguments.idle_seconds:g} s: {cpu:.2f} s of processor time")
        step, ratio = asyncio.run(
            compare(crowded.address, alone.address, arguments.active, arguments.rounds, 0.5)
        )
        err.print(f"a step of {arguments.active} active ones: {step:.0f} µs, {ratio:.3f} of that alone")
        held = crowded.vitals()
    numbers = {
        "streams": arguments.streams,
        "bytes_beyond_caches": beyond,
        "bytes_beyond_caches_per_stream": round(beyond / arguments.streams),
        "cache_bytes_per_stream": round(caches / arguments.streams),
        "reserved_bytes_per_stream": round(filled.reserved / arguments.streams),
        "idle_seconds": arguments.idle_seconds,
        "idle_cpu_seconds": round(cpu, 3),
        "active_p50_us": round(step, 1),
        "active_over_alone": round(ratio, 3),
    }
    sys.stdout.write(json.dumps(numbers) + "\n")
    return int(ratio > MOST_RATIO or held.streams < arguments.streams)


if __name__ == "__main__":
    sys.exit(main())
