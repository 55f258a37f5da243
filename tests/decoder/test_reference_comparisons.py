"""Projections, the hard lookup and its limit, additive scores, rotation: against loops and worked numbers."""

from __future__ import annotations

import cmath
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loops import draw

from rondel.decoder import reference
from rondel.decoder.errors import InvalidRequest, InvalidShape

Q = np.array([[[1.0, 0.0]]])


def test_projection_gives_head_h_its_columns() -> None:
    x, w = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0, 0, 1, 10], [0, 1, 1, 100]])
    np.testing.assert_array_equal(reference.project(x, w, 2), [[[1, 2], [3, 210]], [[3, 4], [7, 430]]])
    assert reference.project(x, w).shape == (2, 1, 4)
    for bad, heads in ((w[:1], 1), (w, 3), (w, 0), (w[0], 1)):
        with pytest.raises(InvalidShape, match="w must be"):
            reference.project(x, bad, heads)
    with pytest.raises(InvalidShape, match="x must be"):
        reference.project(x[0], w)


def test_hard_lookup_takes_the_best_and_ties_share() -> None:
    k = np.array([[1.0, 9], [3, 0], [2, 0], [3, -7]])[:, None]
    v = np.array([[1.0], [10.0], [100.0], [1000.0]])[:, None]
    assert reference.hard_lookup(Q, k, v)[0, 0, 0] == 505
    assert reference.hard_lookup(Q, k, v, ranges=[(0, 3)])[0, 0, 0] == 10
    assert reference.hard_lookup(Q, k, v, ranges=[])[0, 0, 0] == 0
    for null, want in ((2.0, 505), (3.0, 1010 / 3), (3.5, 0)):
        assert reference.hard_lookup(Q, k, v, scale=1.0, null_logit=[null])[0, 0, 0] == pytest.approx(want)


@pytest.mark.parametrize("options", [{}, {"window": 3, "sinks": 1}, {"position": -1}], ids=str)
def test_cooling_tends_to_the_hard_lookup(options: dict[str, Any]) -> None:
    q, k, v = draw(3, 7, 4, 2, dk=3, dv=2)
    k[5] = k[4]  # a tie
    hard = reference.hard_lookup(q, k, v, **options)
    far = [
        np.abs(reference.attend(q, k, v, temperature=t, **options)[0] - hard).max()
        for t in (1, 0.1, 0.01, 1e-5)
    ]
    assert far == sorted(far, reverse=True)
    assert far[-1] < 1e-12


def test_all_scores_growing_alike_tend_to_the_hard_lookup() -> None:
    """With softcap, bias and null logit, which temperature leaves alone, the factor comes last."""
    q, k, v = draw(3, 7, 4, 2, dk=3, dv=2)
    null = np.array([-1.0, 0.0, 0.5, 9.0])
    options: dict[str, Any] = {"softcap": 2.0, "alibi": [0.1, 0.2, 0.3, 0.4], "null_logit": null}
    cold, _ = reference.softmax(1e6 * reference.explain(q, k, **options).masked, 1e6 * null)
    hard = reference.hard_lookup(q, k, v, **options)
    np.testing.assert_allclose(reference.weighted_sum(cold, v), hard, atol=1e-12)
    assert not hard[:, 3].any()
    assert hard[:, :2].any()


def test_additive_scores_against_loops() -> None:
    rng = np.random.default_rng(3)
    q, k = rng.normal(size=(2, 4, 3)), rng.normal(size=(5, 2, 6))
    w_q, w_k, w = rng.normal(size=(7, 3)), rng.normal(size=(7, 6)), rng.normal(size=7)
    got = reference.additive_scores(q, k, w_q, w_k, w)
    assert got.shape == (4, 2, 5)
    for h, n, m in np.ndindex(got.shape):
        want = sum(
            w[a]
            * math.tanh(
                sum(w_q[a, c] * q[n, h, c] for c in range(3))
                + sum(w_k[a, c] * k[m, h // 2, c] for c in range(6))
            )
            for a in range(7)
        )
        assert got[h, n, m] == pytest.approx(want, abs=1e-13)
    assert np.abs(got).max() <= np.abs(w).sum(), "tanh holds every score in the 1-norm of w"
    weights, _ = reference.softmax(got)
    np.testing.assert_allclose(weights.sum(axis=-1), 1)


def test_additive_shapes_are_checked() -> None:
    q, k = np.zeros((1, 1, 3)), np.zeros((2, 1, 4))
    for w_q, w_k, w, name in (
        (np.zeros((5, 4)), np.zeros((5, 4)), np.zeros(5), "w_q"),
        (np.zeros((5, 3)), np.zeros((6, 4)), np.zeros(5), "w_k"),
        (np.zeros((5, 3)), np.zeros((5, 4)), np.zeros((5, 1)), "w"),
    ):
        with pytest.raises(InvalidShape, match=f"{name} must be"):
            reference.additive_scores(q, k, w_q, w_k, w)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dim", [None, 4])
def test_rotation_is_multiplication_by_a_complex_number(dim: int | None, interleaved: bool) -> None:
    x = np.random.default_rng(4).normal(size=(3, 2, 6))
    positions, turned = [0, 5, 12_345], 6 if dim is None else dim
    got = reference.rotate(x, positions, 500.0, dim, interleaved)
    for t, h in np.ndindex(3, 2):
        for i in range(turned // 2):
            a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + turned // 2)
            angle = positions[t] * 500.0 ** (-2 * i / turned)
            want = complex(x[t, h, a], x[t, h, b]) * cmath.exp(1j * angle)
            assert complex(got[t, h, a], got[t, h, b]) == pytest.approx(want, abs=1e-12)
    np.testing.assert_array_equal(got[..., turned:], x[..., turned:])
    np.testing.assert_array_equal(got[0], x[0], "position 0 turns nothing")


@given(st.integers(0, 10_000), st.integers(0, 10_000), st.integers(0, 10_000), st.booleans())
def test_rotated_products_depend_on_the_difference(p: int, j: int, shift: int, interleaved: bool) -> None:
    rng = np.random.default_rng(5)
    q, k = rng.normal(size=(2, 1, 1, 8))

    def product(p: int, j: int) -> float:
        both = [reference.rotate(x, [at], interleaved=interleaved) for x, at in ((q, p), (k, j))]
        return float((both[0] * both[1]).sum())

    assert product(p + shift, j + shift) == pytest.approx(product(p, j), abs=1e-9)
    assert np.linalg.norm(reference.rotate(q, [p])) == pytest.approx(np.linalg.norm(q))


def test_sinks_seen_by_a_second_query_are_two_partials() -> None:
    """What a session with rope must give once the window has left the sinks: by hand, key by key."""
    window, sinks, p, m = 4, 2, 11, 12
    q, k, v = draw(1, m, 2, 1, dk=4, dv=3)
    near, far = (
        reference.rotate(q, [at], 100.0) for at in (p, int(reference.sink_position(p, window, sinks)))
    )
    stored = reference.rotate(k, range(m), 100.0)
    options: dict[str, Any] = {"window": window, "sinks": sinks, "position": p}
    outs, lses = zip(
        reference.attend(far, stored[:sinks], v[:sinks], key_positions=range(sinks), **options),
        reference.attend(near, stored[sinks:], v[sinks:], key_positions=range(sinks, m), **options),
        strict=True,
    )
    out, lse = reference.merge_partials(outs, lses)
    # The cache has 6 slots: keys 0, 1, 8, 9, 10, 11 at 0 to 5, and the row at slot 5.
    seen = [0, 1, 8, 9, 10, 11]
    in_cache = reference.rotate(k[seen], range(6), 100.0)
    want, want_lse = reference.attend(reference.rotate(q, [5], 100.0), in_cache, v[seen])
    np.testing.assert_allclose(out, want, atol=1e-12)
    np.testing.assert_allclose(lse, want_lse, atol=1e-12)


@pytest.mark.parametrize("dim", [0, 3, 8, -2])
def test_a_rotation_needs_pairs(dim: int) -> None:
    with pytest.raises(InvalidRequest, match="dim must be even, from 2 to 6"):
        reference.rotate(np.zeros((1, 1, 6)), [0], dim=dim)


def test_a_rotation_needs_a_position_per_token_and_a_base() -> None:
    with pytest.raises(InvalidShape, match="positions must be one per token"):
        reference.rotate(np.zeros((2, 1, 6)), [0])
    with pytest.raises(InvalidRequest, match="theta must be above 0"):
        reference.rotate(np.zeros((1, 1, 6)), [0], 0.0)
