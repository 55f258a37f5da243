"""`make bench-traffic`: what attention's time follows, bytes or arithmetic.

One query token reads the whole cache to do two multiply-adds per value and query head: its time should
follow the bytes. 512 query rows use every byte 512 times: their time should follow the multiply-adds.
Before either come the projections X·W, which cost more than attention while the rows are fewer than the
model is wide. Tables, then one JSON object on the last line.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

from checking import SAME, SIXTEEN, Oracle, WrongAnswer
from ours import CHUNK, arena_for, spec_of
from rondel.decoder import kernels, pool
from rondel.decoder.session import DecoderSession
from shapes import Floats, Problem, Shape, draw
from timing import interleave, ratio

KEYS: Final = {1: 16_384, 512: 4_096}
"""Query rows -> keys in the cache."""
HEADS: Final = 8
DIM: Final = 64
WIDTH: Final = HEADS * DIM
"""d_model of the projections."""
PROMPTS: Final = tuple(64 << i for i in range(7))


@dataclass(frozen=True, slots=True)
class Case:
    """One way to keep the keys."""

    name: str
    kv_heads: int = 8
    storage: str = "int8"
    halved: bool = False


CASES: Final = (
    Case("int8, 32/8 heads"),
    Case("float32 storage", storage="float32"),
    Case("32/32 heads, as many multiply-adds", kv_heads=32),
    Case("window halved", halved=True),
)


@dataclass(slots=True)
class Filled:
    """A case with its stream."""

    case: Case
    problem: Problem
    session: DecoderSession
    seen: int
    """Keys that the last row sees."""

    @property
    def bytes(self) -> int:
        """Bytes that the last row's visible keys take: codes and scales."""
        token = 8 * 128 if self.case.storage == "float32" else 2 * 128 + 4
        return self.seen * self.case.kv_heads * token

    @property
    def multiply_adds(self) -> int:
        """Of all rows, over the keys that each of them sees."""
        shape, rows = self.problem.shape, len(self.problem.q)
        first = shape.keys - rows
        keys = sum(min(first + row + 1, self.seen) for row in range(rows))
        return 2 * keys * shape.query_heads * shape.dim

    def run(self) -> Floats:
        """Attend with all rows."""
        return self.session.attend(0, self.problem.q)

    def check(self, oracle: Oracle) -> None:
        """The last row against the oracle. Raises WrongAnswer."""
        keys = self.problem.shape.keys
        k, v = self.session.read(0, keys - self.seen, keys)
        last = Problem(self.problem.shape, self.problem.q[-1:], k, v)
        tolerance = SAME if self.case.storage == "float32" else SIXTEEN
        oracle.check(self.case.name, self.run()[-1:], last, tolerance)


def fill(case: Case, rows: int) -> Filled:
    """A stream with KEYS[rows] tokens."""
    keys = KEYS[rows]
    shape = Shape(case.name, 32, case.kv_heads, 128, keys)
    problem = draw(shape, rows=rows)
    seen = keys // 2 if case.halved else keys
    spec = spec_of(shape, case.storage, window=seen if case.halved else None, rows=rows)
    session = DecoderSession(spec, arena_for(spec))
    for start in range(0, keys, CHUNK):
        session.append(0, problem.k[start : start + CHUNK], problem.v[start : start + CHUNK])
    return Filled(case, problem, session, seen)


def compare(rows: int, rounds: int) -> dict[str, dict[str, float]]:
    """Case -> bytes, multiply-adds and time, as multiples of the first case's."""
    filled, oracle = [fill(case, rows) for case in CASES], Oracle()
    for one in filled:
        one.check(oracle)
    timings = interleave({one.case.name: one.run for one in filled}, rounds)
    first = filled[0]
    found = {
        one.case.name: {
            "bytes": one.bytes / first.bytes,
            "multiply_adds": one.multiply_adds / first.multiply_adds,
            "time": ratio(timings[one.case.name], timings[first.case.name]),
            "us": timings[one.case.name].us,
        }
        for one in filled
    }
    for one in filled:
        one.session.close()
    return found


def projections(rounds: int) -> dict[int, float]:
    """Prompt length -> time of X·W_Q, X·W_K, X·W_V as a multiple of appending and attending; one thread."""
    weights = np.random.default_rng(1).standard_normal((WIDTH, 3 * WIDTH), dtype=np.float32)
    found = {}
    for tokens in PROMPTS:
        shape = Shape(f"prompt of {tokens}", HEADS, HEADS, DIM, tokens)
        problem = draw(shape, rows=tokens)
        spec = spec_of(shape, "int8")
        x = problem.q.reshape(tokens, WIDTH)
        with DecoderSession(spec, arena_for(spec)) as session:
            attend = partial(_prompt, session, problem)
            with threadpool_limits(1, user_api="blas"):
                timings = interleave({"project": partial(np.matmul, x, weights), "attend": attend}, rounds)
        found[tokens] = ratio(timings["project"], timings["attend"])
    return found


def _prompt(session: DecoderSession, problem: Problem) -> Floats:
    session.truncate(0)
    return session.step(0, problem.q, problem.k, problem.v)


def case_table(rows: int, found: dict[str, dict[str, float]]) -> Table:
    """Multiples of the first case."""
    title = f"{rows} query row{'s' if rows > 1 else ''} over {KEYS[rows]:,} keys, multiples of the first line"
    table = Table("", title=title, title_justify="left", title_style="bold")
    for column in ("bytes read once", "multiply-adds", "time", "median µs"):
        table.add_column(column, justify="right")
    for name, one in found.items():
        numbers = [f"{one[key]:.2f}" for key in ("bytes", "multiply_adds", "time")]
        table.add_row(name, *numbers, f"{one['us']:,.0f}")
    return table


def prompt_table(found: dict[int, float]) -> Table:
    """How projections and attention share a prompt's time."""
    title = f"a prompt of N tokens, {HEADS}/{HEADS}×{DIM}: X·W_Q, X·W_K, X·W_V against attention"
    table = Table("N", title=title, title_justify="left", title_style="bold")
    for column in ("N / d_model", "projections / attention", "multiply-adds: the same"):
        table.add_column(column, justify="right")
    for tokens, multiple in found.items():
        arithmetic = 3 * WIDTH / (tokens + 1)  # 3·N·d² over 2·d·N(N+1)/2
        table.add_row(f"{tokens}", f"{tokens / WIDTH:.3g}", f"{multiple:.2f}", f"{arithmetic:.2f}")
    return table


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks/traffic.py", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=9, help="samples per case (9)")
    options = parser.parse_args(argv)
    console = Console(width=118)
    pool.set_threads(1)
    try:
        found = {rows: compare(rows, options.rounds) for rows in KEYS}
    except WrongAnswer as error:
        print(f"wrong answer: {error}", file=sys.stderr)
        return 1
    prompts = projections(options.rounds)
    console.print(f"tier {kernels.TIER}, one thread, {options.rounds} rounds")
    for rows, cases in found.items():
        console.print(case_table(rows, cases))
    console.print(prompt_table(prompts))
    dominant = [tokens for tokens, multiple in prompts.items() if multiple > 1]
    summary: dict[str, Any] = {
        "rows": {
            str(rows): {
                name: {key: round(value, 3) for key, value in one.items()} for name, one in cases.items()
            }
            for rows, cases in found.items()
        },
        "projections_over_attention": {
            str(tokens): round(multiple, 3) for tokens, multiple in prompts.items()
        },
        "projections_dominate_up_to": max(dominant, default=0),
        "d_model": WIDTH,
        "checked": True,
    }
    print(json.dumps(summary))
    return 0


if __name__ == "__main__":
    sys.exit(main())
