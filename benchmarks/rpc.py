"""`make bench-rpc`: what the service costs over its kernels, beside a server that only echoes.

The server is a process on one core, the client one on another. Tables, then one JSON object on the last line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from rich.console import Console

from rondel.decoder import kernels, pool
from service import added, batching
from service.batching import Batching
from service.drive import connect
from service.processes import Addresses, servers
from shapes import Shape

SMALL = Shape("small", 9, 3, 64, 128)


async def run(rondel: Addresses, bare: Addresses, rounds: int) -> dict[str, Any]:
    """All measurements."""
    async with AsyncExitStack() as stack:
        ours = await stack.enter_async_context(connect(rondel.tcp))
        echo = await stack.enter_async_context(connect(bare.tcp))
        batched = await batching.measure(ours, echo, SMALL, rounds)
    return {"batched": batched, "added": await added.measure(rondel, SMALL, rounds)}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks/rpc.py", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=30, help="rounds of everything (30)")
    options = parser.parse_args(argv)
    pool.set_threads(1)
    with servers() as (rondel, bare):
        found = asyncio.run(run(rondel, bare, options.rounds))
    console = Console(width=118)
    console.print(f"tier {kernels.TIER}, {options.rounds} rounds, {SMALL}")
    batched: Batching = found["batched"]
    print(
        json.dumps(
            {
                "step64_over_echo_ratio": round(batched.over_echo, 3),
                "added_us": found["added"],
                "gain": batched.gain,
                "echo_gain": batched.echo_gain,
                "us": {n: getattr(batched, n).us for n in ("calls", "step", "echo_calls", "echo_step")},
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
