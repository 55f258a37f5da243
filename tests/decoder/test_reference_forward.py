"""The specification against loops in plain Python and numbers worked by hand, never against a kernel."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import draw, looped

from rondel.decoder import reference
from rondel.decoder.reference import Array

repeatable = settings(deadline=None, derandomize=True, database=None)

Q = np.array([[[2.0, 1.0]]])
K = np.array([[1.0, 0], [0, 2], [2, 2], [-1, 1]])[:, None]
V = np.array([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]])[:, None]


def weights_of(q: Array, k: Array, **options: Any) -> Array:
    """Weights read off through one-hot values: [N, Hq, M]."""
    m, hkv = k.shape[:2]
    return reference.attend(q, k, np.repeat(np.eye(m)[:, None], hkv, axis=1), **options)[0]


def test_worked_lookup() -> None:
    weights = weights_of(Q, K)[0, 0]
    np.testing.assert_allclose(weights, [0.053, 0.053, 0.888, 0.006], atol=1e-3)
    out, lse = reference.attend(Q, K, V)
    np.testing.assert_allclose(out[0, 0], [0.059, 0.059, 0.894], atol=1e-3)
    logits = np.array([2, 2, 6, -1]) / math.sqrt(2)
    assert lse[0, 0] == pytest.approx(math.log(np.exp(logits).sum()), abs=1e-12)
    np.testing.assert_allclose(weights_of(Q, K, scale=1.0)[0, 0], [0.018, 0.018, 0.964, 0.001], atol=1e-3)


@pytest.mark.parametrize(
    ("window", "sinks", "position"), [(None, 0, 4), (3, 0, 4), (3, 2, 4), (1, 0, 0), (2, 1, -2), (9, 9, 2)]
)
@pytest.mark.parametrize(("hq", "hkv"), [(1, 1), (3, 3), (4, 2), (6, 2), (5, 1)])
def test_against_loops(window: int | None, sinks: int, position: int, hq: int, hkv: int) -> None:
    q, k, v = draw(3, 7, hq, hkv, dk=5, dv=2, seed=hq)
    rng = np.random.default_rng(1)
    bias, mask, null = rng.normal(size=(hq, 3, 7)), rng.random((3, 7)) < 0.7, rng.normal(size=hq)
    shape = {"position": position, "window": window, "sinks": sinks}
    for extra in (
        {},
        {"softcap": 0.8},
        {"bias": bias},
        {"mask": mask},
        {"null_logit": null},
        {"temperature": 0.3},
        {"alibi": null},
        {"window_right": 2},
        {"ranges": [(1, 3), (2, 4), (6, 9)]},
        {"softcap": 2.0, "bias": bias, "mask": mask, "null_logit": null},
        {
            "softcap": 2.0,
            "temperature": 3.0,
            "bias": bias,
            "alibi": null,
            "ranges": [(0, 6)],
            "window_right": 1,
        },
    ):
        got = reference.attend(q, k, v, scale=0.7, **shape, **extra)
        want = looped(q, k, v, scale=0.7, **shape, **extra)
        np.testing.assert_allclose(got[0], want[0], rtol=0, atol=1e-13)
        np.testing.assert_allclose(got[1], want[1], rtol=0, atol=1e-13)


@pytest.mark.parametrize("group", [1, 2, 3, 4, 7, 8])
@pytest.mark.parametrize("kv_heads", [1, 2, 3])
def test_query_head_reads_its_kv_head(group: int, kv_heads: int) -> None:
    q, k, _ = draw(2, 4, group * kv_heads, kv_heads, dk=3, dv=1)
    v = np.broadcast_to(10.0 + np.arange(kv_heads)[None, :, None], (4, kv_heads, 1))
    out, _ = reference.attend(q, k, v)
    for head in range(group * kv_heads):
        np.testing.assert_allclose(out[:, head], 10.0 + head // group)


@pytest.mark.parametrize("ranges", [None, [], [(0, 7)], [(2, 2), (3, 5), (4, 6)]])
def test_without_order_against_loops(ranges: list[tuple[int, int]] | None) -> None:
    q, k, v = draw(3, 7, 4, 2, dk=5, dv=2)
    options: dict[str, Any] = {"position": 1, "causal": False, "ranges": ranges, "alibi": [0.5, -0.25, 0, 2]}
    got, got_lse = reference.attend(q, k, v, scale=0.7, **options)
    want, want_lse = looped(q, k, v, scale=0.7, **options)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-13)
    np.testing.assert_allclose(got_lse, want_lse, rtol=0, atol=1e-13)


def test_keys_by_position() -> None:
    """A ring that dropped tokens gives what the whole sequence gives, once the window hides them."""
    q, k, v = draw(2, 20, 2, 1, dk=4, dv=4)
    whole = reference.attend(q, k, v, window=5, sinks=2)
    held = np.r_[0:2, 14:20]
    some = reference.attend(q, k[held], v[held], key_positions=held, window=5, sinks=2)
    np.testing.assert_allclose(some[0], whole[0], atol=1e-15)
    np.testing.assert_allclose(some[1], whole[1], atol=1e-15)


def test_default_position_is_the_last_rows() -> None:
    q, k, v = draw(3, 8, 1, 1, dk=4, dv=4)
    np.testing.assert_array_equal(reference.attend(q, k, v)[0], reference.attend(q, k, v, position=5)[0])


def test_order_of_the_stages() -> None:
    """Scale and temperature, softcap, bias, masks, softmax: worked by hand on one pair of numbers."""
    q, k = np.array([[[3.0]]]), np.array([[[2.0]], [[4.0]], [[5.0]]])
    stages = reference.explain(
        q, k, scale=0.5, temperature=2.0, softcap=1.5, bias=[10.0, 20.0, 30.0], mask=[True, True, False]
    )
    np.testing.assert_allclose(stages.raw[0, 0], [1.5, 3.0, 3.75])
    np.testing.assert_allclose(stages.capped[0, 0], [1.5 * math.tanh(s) for s in (1, 2, 2.5)])
    np.testing.assert_allclose(
        stages.masked[0, 0], [10 + 1.5 * math.tanh(1), 20 + 1.5 * math.tanh(2), -np.inf]
    )
    e = np.exp(stages.masked[0, 0])
    np.testing.assert_allclose(stages.weights[0, 0], e / e.sum())
    assert stages.lse[0, 0] == pytest.approx(math.log(e.sum()))
    np.testing.assert_array_equal(reference.scores(q, k, scale=0.5, temperature=2.0), stages.raw)
    np.testing.assert_array_equal(
        reference.scores(q, k, scale=0.5, temperature=2.0, softcap=1.5), stages.capped
    )


def test_stages_are_what_attend_uses() -> None:
    q, k, v = draw(3, 6, 4, 2, dk=3, dv=5)
    options: dict[str, Any] = {
        "window": 3,
        "sinks": 1,
        "alibi": [0.1, 0.2, 0.3, 0.4],
        "null_logit": [0, 1, 2, 3],
    }
    stages = reference.explain(q, k, **options)
    out, lse = reference.attend(q, k, v, **options)
    np.testing.assert_array_equal(reference.weighted_sum(stages.weights, v), out)
    np.testing.assert_array_equal(stages.lse, lse)
    np.testing.assert_array_equal(reference.weights(q, k, **options), stages.weights)
    np.testing.assert_array_equal(stages.weights, weights_of(q, k, **options).transpose(1, 0, 2))
    np.testing.assert_allclose(stages.weights.sum(axis=-1).T, 1 - stages.null_weight, rtol=1e-13)
    assert list(stages.positions) == [3, 4, 5]
    assert list(stages.key_positions) == [0, 1, 2, 3, 4, 5]


def test_temperature_is_a_smaller_scale() -> None:
    q, k, v = draw(2, 6, 2, 1, dk=4, dv=4)
    cool, cool_lse = reference.attend(q, k, v, scale=0.5, temperature=0.25)
    same, same_lse = reference.attend(q, k, v, scale=2.0)
    np.testing.assert_array_equal(cool, same)
    np.testing.assert_array_equal(cool_lse, same_lse)


def test_softcap_holds_scores_and_leaves_small_ones() -> None:
    q, k, _ = draw(2, 6, 2, 1, dk=4, dv=1)
    assert np.abs(reference.scores(q, k, scale=1e3, softcap=5.0)).max() <= 5.0
    small = reference.scores(q, k, scale=1e-3)
    np.testing.assert_allclose(reference.scores(q, k, scale=1e-3, softcap=5.0), small, rtol=1e-5)


def test_rows_that_see_nothing() -> None:
    q, k, v = draw(4, 2, 2, 1, dk=3, dv=3)
    out, lse = reference.attend(q, k, v)
    assert not out[:2].any()
    assert np.isneginf(lse[:2]).all()
    assert np.isfinite(lse[2:]).all()
    for hidden in ({"mask": np.zeros((4, 2), bool)}, {"bias": np.full((4, 2), -np.inf)}):
        out, lse = reference.attend(q, k, v, causal=False, null_logit=[0.0, 50.0], **hidden)
        assert not out.any()
        assert np.isneginf(lse).all()
    out, lse = reference.attend(q, k[:0], v[:0])
    assert out.shape == (4, 2, 3)
    assert not out.any()
    assert np.isneginf(lse).all()


def test_a_row_that_sees_nothing_leaves_all_to_the_null_logit() -> None:
    q, k, _ = draw(1, 2, 2, 1, dk=3, dv=1)
    hidden = {"mask": np.zeros((1, 2), bool)}
    np.testing.assert_array_equal(reference.explain(q, k, **hidden).null_weight, [[0, 0]])
    np.testing.assert_array_equal(reference.explain(q, k, null_logit=[-3, 5], **hidden).null_weight, [[1, 1]])
    np.testing.assert_array_equal(reference.explain(q, k, null_logit=[-np.inf, 5]).null_weight[0, 0], 0)


def test_null_logit_takes_weight_and_leaves_lse() -> None:
    q, k, v = draw(1, 5, 2, 2, dk=3, dv=3)
    plain, lse = reference.attend(q, k, v)
    for null in (-1e4, -2.0, 0.0, 3.0, 1e4):
        out, same = reference.attend(q, k, v, null_logit=[null, null])
        np.testing.assert_array_equal(same, lse)
        share = 1 - 1 / (1 + np.exp(np.clip(null - lse, -700, 700)))
        np.testing.assert_allclose(out, plain * (1 - share)[..., None], atol=1e-12)


def test_huge_scores_do_not_overflow() -> None:
    q, k, v = draw(1, 6, 1, 1, dk=4, dv=4)
    out, lse = reference.attend(q * 1e15, k * 1e15, v)
    assert np.isfinite(out).all()
    assert np.isfinite(lse).all()
    np.testing.assert_allclose(out[0, 0], v[np.argmax(k[:, 0] @ q[0, 0]), 0])


@repeatable
@given(st.integers(1, 30), st.integers(1, 12), st.floats(0.01, 30), st.integers(0, 2**32 - 1))
def test_invariants(m: int, dim: int, spread: float, seed: int) -> None:
    q, k, v = draw(2, m, 2, 1, dk=dim, dv=dim, seed=seed)
    weights = weights_of(q * spread, k, causal=False)
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights.sum(axis=-1), 1, rtol=1e-12)
    out, lse = reference.attend(q * spread, k, v, causal=False)
    assert (out <= v.max(axis=0) + 1e-12).all()
    assert (out >= v.min(axis=0) - 1e-12).all()
    assert (np.linalg.norm(out, axis=-1) <= np.linalg.norm(v, axis=-1).max() + 1e-12).all()
    heads, _ = reference.attend(q * spread, k, v, causal=False, null_logit=[0.5, 1.5])
    low, high = np.minimum(v.min(axis=0), 0), np.maximum(v.max(axis=0), 0)
    assert (heads <= high + 1e-12).all(), "beside a null logit the hull includes zero"
    assert (heads >= low - 1e-12).all()
    moved, moved_lse = reference.attend(q * spread, k, v, causal=False, bias=np.full((2, m), 7.25))
    np.testing.assert_allclose(moved, out, atol=1e-12)
    np.testing.assert_allclose(moved_lse, lse + 7.25, atol=1e-12)


def test_limits_are_the_hard_lookup_and_the_mean() -> None:
    q, k, v = draw(1, 9, 1, 1, dk=4, dv=4)
    hard, _ = reference.attend(q, k, v, scale=1e6)
    np.testing.assert_allclose(hard[0, 0], v[np.argmax(k[:, 0] @ q[0, 0]), 0], atol=1e-12)
    mean, lse = reference.attend(q, k, v, scale=0.0)
    np.testing.assert_allclose(mean[0, 0], v.mean(axis=(0, 1)), atol=1e-12)
    assert lse[0, 0] == pytest.approx(math.log(9))
    warm, _ = reference.attend(q, k, v, temperature=1e12)
    np.testing.assert_allclose(warm, mean, atol=1e-10)
