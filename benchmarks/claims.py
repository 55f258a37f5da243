"""The other numbers that are promised: prefill, append, two threads, many streams, context.

One function each, that returns a ratio.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from checking import SIXTEEN, Oracle
from ours import SessionRow, Stored, all_threads, arena_for, spec_of
from peers import contestants
from rondel.decoder import pool
from rondel.decoder.batch import Step, StepResult, run_steps
from rondel.decoder.session import DecoderSession
from shapes import CONTEXT, Floats, Problem, Shape, draw
from timing import interleave, ratio

PREFILL = Shape("prefill", 32, 8, 128, 4_096)
PREFILL_ROWS = 512
APPEND = Shape("append", 32, 8, 128, 4_096)
APPEND_LAYERS = 32
LONG = Shape("two threads", 8, 1, 128, 65_536)
STREAMS = 64
SHORT = Shape("many streams", 32, 8, 128, 2_048)


@dataclass(frozen=True, slots=True)
class Prefill:
    """512 query rows: times faster than PyTorch's fastest, microseconds, and what it took beyond ``out``."""

    ratio: float | None
    us: float
    extra_bytes: int


def _last_rows(problem: Problem, start: int, stop: int) -> Problem:
    """The causal problem whose rows are rows ``start`` to ``stop`` - 1 of this one."""
    keys = problem.shape.keys - len(problem.q) + stop
    return Problem(problem.shape, problem.q[start:stop], problem.k[:keys], problem.v[:keys])


def prefill(rounds: int, threads: int) -> Prefill:
    """Int8 against PyTorch SDPA float32 with the same mask, aligned at the end."""
    problem = draw(PREFILL, rows=PREFILL_ROWS)
    stored, oracle = Stored(problem, "int8"), Oracle()
    rows = [SessionRow(stored), *(row for row in contestants(["torch"])[0] if "float32" in row.name)]
    for row in rows:
        row.prepare(problem, threads)
        row.run()
        for start in (0, PREFILL_ROWS // 2, PREFILL_ROWS - 2):
            part = _last_rows(row.computed_from(), start, start + 2)
            oracle.check(row.name, row.answer()[start : start + 2], part, row.tolerance)
    extra = _peak_growth(rows[0].run) - problem.q.nbytes
    timings = interleave({row.name: row.run for row in rows}, rounds)
    for row in rows:
        row.close()
    stored.close()
    mine, *others = timings.values()
    return Prefill(min((ratio(other, mine) for other in others), default=None), mine.us, extra)


def _peak_growth(call: Callable[[], object]) -> int:
    """How many bytes the process grew at most while the call ran."""
    call()
    ctypes.CDLL(None).malloc_trim(0)  # or the call would find its memory where the last one left it
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from now
    before = _status("VmRSS")
    call()
    return _status("VmHWM") - before


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))


def append_share(rounds: int, threads: int) -> float:
    """Appending one token to all layers, as a part of attending in each of them."""
    problem = draw(APPEND)
    spec = spec_of(APPEND, "int8", layers=APPEND_LAYERS, room=4096)
    pool.set_threads(threads)
    with DecoderSession(spec, arena_for(spec)) as session:
        k, v = (np.repeat(x[None], APPEND_LAYERS, axis=0) for x in (problem.k, problem.v))
        session.append_all(k, v)

        def attend() -> None:
            for layer in range(APPEND_LAYERS):
                session.attend(layer, problem.q)

        k, v = (np.ascontiguousarray(x[:, :1]) for x in (k, v))
        timings = interleave(
            {"append": lambda: session.append_all(k, v), "attend": attend},
            rounds,
            before=lambda name: session.truncate(APPEND.keys),
        )
    return ratio(timings["append"], timings["attend"])


def two_threads(rounds: int) -> float | None:
    """How many times faster one long stream with one kv head is on two threads than on one."""
    if all_threads() < 2:
        return None
    problem = draw(LONG)
    stored, oracle = Stored(problem, "int8"), Oracle()
    rows = [SessionRow(stored, threads=count) for count in (1, 2)]
    for row in rows:
        row.prepare(problem, 1)
        row.run()
        oracle.check(row.name, row.answer(), row.computed_from(), row.tolerance)
    width = {row.name: row.threads or 1 for row in rows}
    timings = interleave(
        {row.name: row.run for row in rows}, rounds, before=lambda name: pool.set_threads(width[name])
    )
    stored.close()
    one, two = timings.values()
    return ratio(one, two)


def many_streams(rounds: int, threads: int) -> float:
    """The rate per byte of 64 streams of 2,048 tokens in one call, as a part of one stream of 131,072.

    The last of these tokens is the one that each step brings.
    """
    pool.set_threads(threads)
    whole = Shape("one stream", SHORT.query_heads, SHORT.kv_heads, SHORT.dim, SHORT.keys * STREAMS)
    spec, long_spec = (spec_of(shape, "int8") for shape in (SHORT, whole))
    problem = draw(SHORT)
    arena, long_arena = arena_for(spec, STREAMS), arena_for(long_spec)
    sessions = [DecoderSession(spec, arena) for _ in range(STREAMS)]
    long = DecoderSession(long_spec, long_arena)
    for session in sessions:
        session.append(0, problem.k, problem.v)
        long.append(0, problem.k, problem.v)
    q, k, v = problem.q, problem.k[:1], problem.v[:1]
    steps = [Step(session, 0, q, k, v) for session in sessions]

    def before(name: str) -> None:
        for session in (long, *sessions):
            session.truncate(session.spec.length_limit - 2)  # a call to warm up, and one that counts

    oracle = Oracle()
    before("one")
    results = [long.step(0, q, k, v), *map(_out, run_steps(steps))]
    for session, out in zip(
        (long, sessions[0], sessions[-1]), (results[0], results[1], results[-1]), strict=True
    ):
        stored = session.read(0, 0, session.length)
        oracle.check("many streams", out, Problem(SHORT, q, *stored), SIXTEEN)
    calls: dict[str, Callable[[], object]] = {
        "one": lambda: long.step(0, q, k, v),
        "many": lambda: run_steps(steps),
    }
    timings = interleave(calls, rounds, before=before, warm_seconds=0, sample_seconds=0)
    for session in (long, *sessions):
        session.close()
    return ratio(timings["one"], timings["many"])


def worst_doubling(rounds: int, threads: int) -> float:
    """By how much twice the context takes longer, at most: 4 query heads per kv head, 8 kv heads and 1.

    All lengths in the same rounds; the median of a step's ratios.
    """
    pool.set_threads(threads)
    worst = 0.0
    for kv_heads in (8, 1):
        with ExitStack() as stack:
            calls: dict[str, Callable[[], object]] = {}
            for keys in CONTEXT:
                problem = draw(Shape(f"{keys}", 4 * kv_heads, kv_heads, 128, keys))
                stored = Stored(problem, "int8")
                stack.callback(stored.close)
                calls[f"{keys}"] = partial(stored.session.attend, 0, problem.q)
            curve = interleave(calls, rounds)
        for shorter, longer in pairwise(curve.values()):
            worst = max(worst, ratio(longer, shorter))
    return worst


def _out(result: StepResult | Exception) -> Floats:
    if isinstance(result, Exception):
        raise result
    return result.out
