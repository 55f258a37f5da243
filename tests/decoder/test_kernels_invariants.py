"""Invariants of design §4 as properties, for every engine: weights, hull, norm, shift, hard lookup, mean."""

from __future__ import annotations

from typing import Any

import numpy as np
from comparators import HULL, assert_in_hull, assert_near
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle import ALWAYS, ENGINES, GAUSSIAN, LSE, Case, Floats, Stream

from rondel.decoder import reference

slowly = settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@st.composite
def streams(draw: st.DrawFn, *, most: int = 700, value_dim: int | None = None) -> Stream:
    """A filled stream of any shape on any engine."""
    tier, storage = draw(st.sampled_from(ENGINES))
    kv_heads = draw(st.integers(1, 3))
    dims = (draw(st.integers(1, 70)), draw(st.integers(1, 70)) if value_dim is None else value_dim)
    case = Case(
        tier=tier,
        storage=storage,
        heads=(kv_heads * draw(st.integers(1, 8)), kv_heads),
        dims=dims,
        window=draw(st.integers(1, 270)),
        sinks=draw(st.integers(0, 40)),
        reserve=draw(st.integers(0, 70)),
    )
    return Stream(case, seed=draw(st.integers(0, 2**32 - 1))).grow(draw(st.integers(1, most)))


def ask(stream: Stream, wanted: int, spread: float) -> Floats:
    rows = stream.case.rows(wanted, len(stream.k))
    return stream.queries(min(rows, len(stream.k))) * np.float32(spread)


@slowly
@given(streams(), st.integers(1, 9))
def test_oracle_on_gaussian_data(stream: Stream, rows: int) -> None:
    stream.check(ask(stream, rows, 1.0), bound=GAUSSIAN, lse_bound=LSE)


@slowly
@given(streams(), st.integers(1, 9), st.floats(0, 12))
def test_output_is_a_convex_combination(stream: Stream, rows: int, spread: float) -> None:
    q = ask(stream, rows, spread)
    out = stream.session.attend(0, q)
    values = stream.held(stream.seen(len(q)))[1]
    slack = HULL[stream.case.storage]
    assert_in_hull(out, values, slack, str(stream.case))
    longest = np.linalg.norm(values.astype(np.float64), axis=-1).max()
    assert np.linalg.norm(out.astype(np.float64), axis=-1).max() <= longest * (1 + slack)
    stream.check(q, bound=ALWAYS, lse_bound=None)


@slowly
@given(streams(most=200, value_dim=256), st.floats(0, 12), st.integers(0, 2**32 - 1))
def test_weights_are_positive_and_sum_to_one(shape: Stream, spread: float, seed: int) -> None:
    """Token j's value is one-hot in channel j, so the output is the weights."""
    tokens = len(shape.k)
    stream = Stream(shape.case, seed=seed)
    k, _ = stream.draw(tokens)
    one_hot = np.eye(tokens, 256, dtype=np.float32)[:, None]
    stream.append(k, np.repeat(one_hot, shape.case.heads[1], axis=1))
    q = ask(stream, 1, spread)
    out = stream.session.attend(0, q)[0].astype(np.float64)
    at = stream.seen(1)
    height = stream.held(at)[1].max(axis=-1)[:, 0].astype(np.float64)
    weights = out[:, at] / height
    hidden = np.delete(out, at, axis=1)
    assert not hidden.any(), "a token out of sight has weight"
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights.sum(axis=-1), 1.0, rtol=0, atol=HULL[stream.case.storage])
    scores = reference.scores(q, stream.held(at)[0], scale=stream.case.score_scale)
    want = reference.softmax(scores)[0][:, 0]
    assert_near(weights.astype(np.float32), want, ALWAYS[stream.case.storage], f"{stream.case}: weights")


@slowly
@given(streams(), st.floats(-8, 8))
def test_adding_a_constant_to_all_scores_changes_nothing(shape: Stream, shift: float) -> None:
    """Every key's last channel is the same constant, the largest of its row: the query's moves all scores."""
    stream = Stream(shape.case, seed=7)
    k, v = stream.draw(len(shape.k))
    k = np.clip(k, -4, 4)
    k[..., -1] = 4.0
    stream.append(k, v)
    q = ask(stream, 1, 1.0)
    moved = q.copy()
    moved[..., -1] += np.float32(shift / 4 / stream.case.score_scale)
    constant = stream.held(stream.seen(1))[0][0, 0, -1]
    out, lse = stream.session.attend(0, q, return_lse=True)
    moved_out, moved_lse = stream.session.attend(0, moved, return_lse=True)
    largest = np.abs(stream.held(stream.seen(1))[1]).max()
    bound = 2 * ALWAYS[stream.case.storage] if stream.case.storage == "int8" else 4e-6
    assert_near(moved_out, out.astype(np.float64), bound * largest, f"{stream.case}: out")
    want = lse + (moved[..., -1].astype(np.float64) - q[..., -1]) * constant * stream.case.score_scale
    assert_near(moved_lse, want, 1e-2 if stream.case.storage == "int8" else 1e-4, f"{stream.case}: lse")


@slowly
@given(streams())
def test_limits_are_the_hard_lookup_and_the_mean(stream: Stream) -> None:
    q = ask(stream, 1, 1.0)
    at = stream.seen(1)
    k, v = stream.held(at)
    name = str(stream.case)
    largest = float(np.abs(v).max())
    group = stream.case.heads[0] // stream.case.heads[1]
    mean = np.repeat(v.mean(axis=0, dtype=np.float64), group, axis=0)[None]
    bound: Any = ALWAYS[stream.case.storage] * largest
    assert_near(stream.session.attend(0, q * 0), mean, bound, f"{name}: mean")
    scores = reference.scores(q, k, scale=stream.case.score_scale)[:, 0]
    ranked = np.sort(scores, axis=-1)
    clear = np.ones(len(scores), bool) if len(at) == 1 else ranked[:, -1] - ranked[:, -2] > 0.01
    hard = np.stack([v[scores[h].argmax(), h // group] for h in range(len(scores))])[None]
    out = stream.session.attend(0, q * np.float32(1e4))
    assert_near(out[:, clear], hard[:, clear].astype(np.float64), bound, f"{name}: hard lookup")
