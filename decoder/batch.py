"""One native call for many sessions' steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from rondel.decoder.arrays import Floats
from rondel.decoder.call import LayerCall
from rondel.decoder.errors import RondelError
from rondel.decoder.kernels import Kernels, Query
from rondel.decoder.session import DecoderSession


@dataclass(frozen=True, slots=True)
class Step:
    """What :meth:`DecoderSession.step` takes: q [n, Hq, Dk], k [n, Hkv, Dk], v [n, Hkv, Dv], float32."""

    session: DecoderSession
    layer: int
    q: Floats
    k: Floats
    v: Floats


@dataclass(frozen=True, slots=True)
class StepResult:
    """out [n, Hq, Dv] and lse [n, Hq], float32."""

    out: Floats
    lse: Floats


def run_steps(steps: Sequence[Step]) -> list[StepResult | RondelError]:
    """Carry out many steps; the attention of all of them is one job of the thread pool.

    Steps are independent: each gives its result, to the bit what :meth:`DecoderSession.step` gives, or the
    error that it raises, and a step with an error has changed nothing. A session may be named once; the
    second time it is busy.
    """
    results: list[StepResult | RondelError | None] = [None] * len(steps)
    begun: list[tuple[DecoderSession, LayerCall, int]] = []
    queries: dict[Kernels, list[Query]] = defaultdict(list)
    with ExitStack() as turns:
        for i, step in enumerate(steps):
            try:
                results[i] = _begin(step, turns, begun, queries)
            except RondelError as error:
                results[i] = error
        for kernels, together in queries.items():
            kernels.attend(together)
        for session, call, end in begun:
            session._extent.advance(call.layer, end)
    return [result for result in results if result is not None]


def _begin(
    step: Step,
    turns: ExitStack,
    begun: list[tuple[DecoderSession, LayerCall, int]],
    queries: dict[Kernels, list[Query]],
) -> StepResult:
    session = step.session
    turns.enter_context(session._turn)
    call = session._step_call(step.layer, step.q, step.k, step.v)
    (rows,) = call.asked
    parts = list(session._parts([call]))
    if len(parts) > 1:  # a one-layer stream that wraps within the step
        session._apply([call])
    else:
        first = session._place(call, slice(0, len(call.k)))
        queries[session._kernels].append(session._query(call.rings, call.layer, first, rows))
        begun.append((session, call, first + len(call.k)))
    return StepResult(rows.out, rows.lse)
