"""With options, too, a row's bits depend on nothing but the row: not on other rows, streams or failures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from comparators import assert_same_bits
from oracle import ENGINES, Case, Stream

from rondel import AttendOptions
from rondel.decoder import rows as rows_module
from rondel.decoder.batch import Step, StepResult, run_steps

engines = pytest.mark.parametrize(("tier", "storage"), ENGINES)


def hiding(stream: Stream, rows: int, length: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """A mask in which every row and head has lost other whole pages, and some slots."""
    heads = stream.case.heads[0]
    mask = stream.rng.random((heads, rows, length)) < 0.7
    pages = stream.rng.random((heads, rows, -(-length // 128))) < 0.5
    return mask & np.repeat(pages, 128, axis=2)[..., :length]


@engines
def test_a_row_alone_is_the_row_among_others(tier: str, storage: str) -> None:
    case = Case(tier=tier, storage=storage, heads=(6, 2), window=None, max_length=2600)
    stream = Stream(case).grow(2500)
    q, mask = stream.queries(40), hiding(stream, 40, 2500)
    bias = stream.rng.standard_normal(mask.shape).astype(np.float32)
    slopes = stream.rng.uniform(0, 0.01, 6).astype(np.float32)

    def ask(part: slice) -> tuple[Any, Any]:
        options = AttendOptions(bias=bias[:, part], mask=mask[:, part], alibi=slopes, softcap=9.0)
        return stream.session.attend(0, q[part], position=2460 + part.start, options=options, return_lse=True)

    together = ask(slice(0, 40))
    for part in (slice(0, 1), slice(7, 8), slice(39, 40), slice(3, 20), slice(20, 40)):
        for got, want in zip(ask(part), together, strict=True):
            assert_same_bits(got, want[part], f"{case} rows {part}")


@engines
def test_a_batch_of_many_options_is_many_steps(tier: str, storage: str) -> None:
    case = Case(tier=tier, storage=storage, window=150, sinks=5, reserve=40)
    streams, twins = ([Stream(case, seed=seed).grow(600 + seed) for seed in range(5)] for _ in range(2))
    steps, alone = [], []
    for number, (stream, twin) in enumerate(zip(streams, twins, strict=True)):
        (k, v), q = stream.draw(3), stream.queries(3)
        options = [
            None,
            AttendOptions(mask=hiding(stream, 3, 700)),
            AttendOptions(softcap=2.0),
            AttendOptions(null_logit=np.ones(4, np.float32)),
            AttendOptions(ranges=((0, 2), (500, 590))),
        ][number]
        steps.append(Step(stream.session, 0, q, k, v, options))
        alone.append(twin.session.step(0, q, k, v, options=options, return_lse=True))
    for outcome, (out, lse) in zip(run_steps(steps), alone, strict=True):
        assert isinstance(outcome, StepResult), outcome
        assert_same_bits(outcome.out, out, "out")
        assert_same_bits(outcome.lse, lse, "lse")


@pytest.mark.parametrize("tokens", [1, 9, 700])
def test_a_step_whose_last_touch_fails_has_changed_nothing(
    monkeypatch: pytest.MonkeyPatch, tokens: int
) -> None:
    case = Case(tier=ENGINES[-1][0], storage="int8", window=150, sinks=5, reserve=40)
    stream = Stream(case).grow(600)
    (k, v), q, asked = stream.draw(tokens), stream.queries(tokens), stream.queries(3)
    before = stream.session.attend(0, asked), stream.session.stats()
    options = AttendOptions(null_logit=np.zeros(4, np.float32))

    def no_room(*_: object) -> None:
        raise MemoryError("none left")

    with monkeypatch.context() as patched:
        patched.setattr(rows_module, "null_share", no_room)
        with pytest.raises(MemoryError, match="none left"):
            stream.session.step(0, q, k, v, options=options)
        (outcome,) = run_steps([Step(stream.session, 0, q, k, v, options)])
        assert isinstance(outcome, MemoryError)
    assert stream.session.stats() == before[1]
    assert_same_bits(stream.session.attend(0, asked), before[0], "as before")
    (outcome,) = run_steps([Step(stream.session, 0, q, k, v, options)])
    assert isinstance(outcome, StepResult)
