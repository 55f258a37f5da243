"""One native call for many sessions' steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rondel.decoder.arrays import Floats
from rondel.decoder.cache.undo import Undo
from rondel.decoder.call import LayerCall
from rondel.decoder.errors import InvalidRequest
from rondel.decoder.kernels import Kernels, Query
from rondel.decoder.options import AttendOptions
from rondel.decoder.session import DecoderSession
from rondel.decoder.turn import Turn
from rondel.decoder.usual import UsualStep


@dataclass(slots=True)  # not frozen, nor its result: to make frozen ones takes a twentieth of a small step
class Step:
    """What :meth:`DecoderSession.step` takes: q [n, Hq, Dk], k [n, Hkv, Dk], v [n, Hkv, Dv], float32."""

    session: DecoderSession
    layer: int
    q: Floats
    k: Floats
    v: Floats
    options: AttendOptions | None = None


@dataclass(slots=True)
class StepResult:
    """out [n, Hq, Dv] and lse [n, Hq], float32."""

    out: Floats
    lse: Floats


@dataclass(slots=True)
class _GeneralStep:
    """A step that is no usual one: its tokens are stored and its queries wait."""

    session: DecoderSession
    call: LayerCall
    undo: Undo
    first: int
    queries: list[Query]

    @property
    def out(self) -> Floats:
        return self.call.asked[0].out

    @property
    def lse(self) -> Floats:
        return self.call.asked[0].lse

    def finish(self) -> None:
        self.call.finish()
        self.session._extent.advance(self.call.layer, self.first + len(self.call.k))

    def restore(self) -> None:
        self.undo.restore()


_Begun = UsualStep | _GeneralStep


def run_steps(steps: Sequence[Step]) -> list[StepResult | Exception]:
    """Carry out many steps; the attention of all of them is one job of the thread pool.

    Steps are independent: each gives its result, to the bit what :meth:`DecoderSession.step` gives, or the
    error that it raises, and a step with an error has changed nothing. A session may be named once; the
    second time it is busy. What is no Exception (KeyboardInterrupt) is raised, and every step is undone.
    """
    results: dict[int, StepResult | Exception] = {}
    begun: dict[Kernels, list[tuple[int, _Begun]]] = {}
    # Not an ExitStack: it would be a tenth of a small step's time.
    turns: list[Turn] = []
    undos: list[Undo | UsualStep] = []
    try:
        for number, step in enumerate(steps):
            try:
                done = _begin(step, turns, undos)
            except Exception as error:  # noqa: BLE001 - it is the answer to this step
                results[number] = error
                continue
            if isinstance(done, StepResult):
                results[number] = done
            else:
                begun.setdefault(step.session._kernels, []).append((number, done))
        for kernels, together in begun.items():
            faults = _attend(kernels, [item for _, item in together])
            for (number, item), fault in zip(together, faults, strict=True):
                results[number] = _end(item, fault)
    except BaseException:
        for undo in reversed(undos):
            undo.restore()
        raise
    finally:
        for undo in undos:
            undo.end()
        for turn in turns:
            turn.end()
    return [results[number] for number in range(len(steps))]


def _begin(step: Step, turns: list[Turn], undos: list[Undo | UsualStep]) -> _Begun | StepResult:
    """Take the session's turn and store the tokens; both are noted."""
    session = step.session
    if not isinstance(session, DecoderSession):
        raise InvalidRequest(
            f"a step's session must be a DecoderSession, got {type(session).__name__}", field="session"
        )
    kernels = session._kernels
    session._turn.begin()
    turns.append(session._turn)
    if step.options is None:
        usual = session._usual.begin(step.layer, step.q, step.k, step.v, kernels, undos)
        if usual is not None:
            return usual
    writer, rings = session._writer, session._ring(step.layer)
    call = LayerCall.of_step(step.layer, rings, step.q, step.k, step.v, step.options, kernels)
    calls = [call]
    pieces = writer.pieces(calls)
    undo = writer.undo(calls, pieces)
    undos.append(undo)
    try:
        if pieces is not None:  # a one-layer stream that wraps within the step, or a long one
            writer.carry_out(calls, pieces, kernels)
            (rows,) = call.asked
            return StepResult(rows.out, rows.lse)
        part = slice(0, len(call.k))
        first = writer.place(call, part, kernels)
        return _GeneralStep(session, call, undo, first, call.queries(session._arena.base, first, part))
    except Exception:
        undo.restore()
        raise


def _attend(kernels: Kernels, together: Sequence[_Begun]) -> list[Exception | None]:
    """Answer all queries; for each step what went wrong."""
    try:
        kernels.attend([query for item in together for query in item.queries])
    except Exception as error:  # noqa: BLE001 - whose it is will be seen
        if len(together) == 1:
            return [error]
    else:
        return [None] * len(together)
    # One by one, each needs less working space, and an error is that step's own. The bits are the same.
    return [fault for item in together for fault in _attend(kernels, [item])]


def _end(item: _Begun, error: Exception | None) -> StepResult | Exception:
    if error is None:
        try:
            item.finish()
            return StepResult(item.out, item.lse)
        except Exception as late:  # noqa: BLE001 - it is the answer to this step
            error = late
    item.restore()
    return error
