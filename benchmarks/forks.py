"""`make bench-forks`: what a thousand continuations of one prompt cost, in bytes and in time.

The shape is SmolLM2-135M's: 30 layers, 9 query heads over 3 kv heads of 64. Time is that of a fork and its
first step on all layers, which copies the page begun in each of them, beside a step of a stream that shares
nothing; in turns, so that what else the machine does falls on both alike. A table, then one JSON object on
the last line.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.table import Table

from rondel.decoder import kernels, pool
from rondel.decoder.cache.arena import Arena
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec
from shapes import Floats
from timing import Timing

LAYERS: Final = 30
NEW: Final = 40
"""Tokens that each continuation may take."""
CHUNK: Final = 500

Token = tuple[Floats, Floats, Floats]


def spec_for(prompt: int) -> StreamSpec:
    """A stream that holds the prompt and what follows it."""
    return StreamSpec.uniform(layers=LAYERS, query_heads=9, kv_heads=3, head_dim=64, max_length=prompt + NEW)


def fill(session: DecoderSession, prompt: int) -> None:
    """Append the prompt, the same for the same length."""
    rng = np.random.default_rng(prompt)
    for start in range(0, prompt, CHUNK):
        shape = (LAYERS, min(CHUNK, prompt - start), 3, 64)
        session.append_all(*(rng.standard_normal(shape, dtype=np.float32) for _ in "kv"))


def token() -> Token:
    """q, k, v of one token in all layers."""
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((LAYERS, 1, heads, 64), dtype=np.float32) for heads in (9, 3, 3))
    return q, k, v


@dataclass(slots=True)
class Times:
    """Samples of each part."""

    alone: Timing = field(default_factory=Timing)
    """A step of a stream that shares nothing."""
    fork: Timing = field(default_factory=Timing)
    first: Timing = field(default_factory=Timing)
    """The fork's first step."""
    second: Timing = field(default_factory=Timing)
    close: Timing = field(default_factory=Timing)


def timed(timing: Timing, call: Callable[[], Any]) -> Any:
    """The call's result; a sample more."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = call()
    timing.cpu.append(time.process_time() - cpu)
    timing.wall.append(time.perf_counter() - wall)
    return result


def times(prompt: int, rounds: int) -> Times:
    """Fork and step beside a step alone.

    Raises:
        SystemExit: they do not give the same answer.
    """
    spec, found, (q, k, v) = spec_for(prompt), Times(), token()
    arena = Arena(256 << 20)
    with DecoderSession(spec, arena) as parent, DecoderSession(spec, arena) as other:
        fill(parent, prompt)
        fill(other, prompt)
        for _ in range(rounds):
            want = timed(found.alone, partial(other.step_all, q, k, v))
            other.truncate(prompt)
            fork = timed(found.fork, partial(parent.fork, max_new_tokens=NEW))
            got = timed(found.first, partial(fork.step_all, q, k, v))
            timed(found.second, partial(fork.step_all, q, k, v))
            timed(found.close, fork.close)
            if got.tobytes() != want.tobytes():
                raise SystemExit("wrong answer: a fork's step is not the step of a stream alone")
    return found


def sizes(prompt: int, forks: int) -> dict[str, int]:
    """Bytes of a prompt and its continuations: at first, and when each has taken a step."""
    spec, (_, k, v) = spec_for(prompt), token()
    with DecoderSession(spec, Arena(1 << 30)) as alone:
        whole = alone.stats().bytes_reserved
    arena = Arena(4 * whole + forks * (whole // 4))
    with DecoderSession(spec, arena) as parent:
        fill(parent, prompt)
        of_prompt = arena.stats().resident
        children = [parent.fork(max_new_tokens=NEW) for _ in range(forks)]
        found = {
            "prompt": of_prompt,
            "a_stream_alone_reserves": whole,
            "a_fork_reserves": children[0].stats().bytes_reserved,
            "forks_resident_at_first": arena.stats().resident - of_prompt,
        }
        for child in children:
            child.append_all(k, v)
        found["forks_resident_after_a_step"] = arena.stats().resident - of_prompt
        found["shared"] = arena.stats().shared
        for child in children:
            child.close()
    left = arena.stats()
    if (left.reserved, left.resident, left.shared) != (0, 0, 0):
        raise SystemExit(f"wrong sum: {left} is left when all are closed")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks/forks.py", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--prompt", type=int, default=2_000, help="tokens of the prompt (2000)")
    parser.add_argument("--forks", type=int, default=1_000, help="continuations (1000)")
    parser.add_argument("--rounds", type=int, default=200, help="samples of each time (200)")
    options = parser.parse_args(argv)
    console = Console(width=118)
    pool.set_threads(1)
    found, spent = sizes(options.prompt, options.forks), times(options.prompt, options.rounds)
    console.print(f"tier {kernels.TIER}, one thread, {options.rounds} rounds")
    title = f"{options.forks:,} forks of a prompt of {options.prompt:,} tokens"
    table = Table("bytes", "MiB", title=title, title_justify="left", title_style="bold")
    for name, count in found.items():
        table.add_row(name.replace("_", " "), f"{count / 2**20:,.2f}")
    console.print(table)
    table = Table("time", title="one token, all layers", title_justify="left", title_style="bold")
    for column in ("median µs", "CPU µs"):
        table.add_column(column, justify="right")
    parts = {name: getattr(spent, name) for name in ("alone", "fork", "first", "second", "close")}
    for name, timing in parts.items():
        table.add_row(name, f"{timing.us:,.0f}", f"{timing.cpu_us:,.0f}")
    console.print(table)
    both = (spent.fork.us + spent.first.us) / spent.alone.us
    summary = {
        "prompt_tokens": options.prompt,
        "forks": options.forks,
        "bytes": found,
        "us": {name: round(timing.us, 1) for name, timing in parts.items()},
        "fork_and_first_step_over_step": round(both, 3),
        "checked": True,
    }
    print(json.dumps(summary))
    return 0


if __name__ == "__main__":
    sys.exit(main())
