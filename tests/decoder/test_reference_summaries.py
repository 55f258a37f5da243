"""Entropy and the largest weights, by hand and by their properties."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loops import draw

from rondel.decoder import reference
from rondel.decoder.errors import InvalidRequest


def stages_of(scores: list[float], **options: Any) -> reference.Stages:
    """One row, one head, with these scores."""
    return reference.explain(np.ones((1, 1, 1)), np.array(scores)[:, None, None], **options)


def test_entropy_by_hand() -> None:
    stages = stages_of([math.log(1), math.log(2), math.log(5)])
    want = -sum(w * math.log(w) for w in (1 / 8, 2 / 8, 5 / 8))
    assert reference.entropy(stages)[0, 0] == pytest.approx(want, abs=1e-14)
    assert reference.entropy(stages_of([0.3] * 7))[0, 0] == pytest.approx(math.log(7), abs=1e-14)


def test_entropy_of_a_certain_row_and_of_one_that_sees_nothing() -> None:
    assert reference.entropy(stages_of([4.0, 5e3, -7.0]))[0, 0] == 0
    assert reference.entropy(stages_of([4.0]))[0, 0] == 0
    assert reference.entropy(stages_of([4.0, 5.0], ranges=[]))[0, 0] == 0
    assert not np.signbit(reference.entropy(stages_of([4.0]))).any()


@pytest.mark.parametrize("null", [-50.0, 0.0, 900.0])
def test_entropy_leaves_the_null_logit_out(null: float) -> None:
    scores = [0.5, -1.0, 2.0]
    assert reference.entropy(stages_of(scores, null_logit=[null])) == reference.entropy(stages_of(scores))


@given(st.integers(1, 12), st.floats(0, 1e4), st.integers(0, 2**32 - 1))
def test_entropy_lies_between_certain_and_all_alike(m: int, spread: float, seed: int) -> None:
    q, k, _ = draw(3, m, 4, 2, dk=3, dv=1, seed=seed)
    stages = reference.explain(q * spread, k, window=5)
    entropy = reference.entropy(stages)
    assert entropy.shape == (3, 4)
    seen = (stages.masked > -np.inf).sum(axis=-1).T
    assert (entropy >= 0).all()
    assert (entropy <= np.log(np.maximum(seen, 1)) + 1e-12).all()
    with np.errstate(divide="ignore", invalid="ignore"):
        want = -np.nansum(stages.weights * np.log(stages.weights), axis=-1).T
    np.testing.assert_allclose(entropy, want, atol=1e-9)


def test_the_largest_weights_and_ties() -> None:
    stages = stages_of([1.0, 3.0, 2.0, 3.0, 0.0], key_positions=[4, 6, 7, 9, 20], position=20)
    positions, weights = reference.top_k(stages, 3)
    assert positions.dtype == np.int64
    assert positions.tolist() == [[[6, 9, 7]]]
    np.testing.assert_array_equal(weights[0, 0], stages.weights[0, 0, [1, 3, 2]])


def test_fewer_visible_keys_than_asked_for() -> None:
    """A visible key whose weight underflowed is still a key; a hidden one is not."""
    positions, weights = reference.top_k(stages_of([0.0, 5e3, 7.0, -1.0], ranges=[(0, 2), (3, 4)]), 5)
    assert positions.tolist() == [[[1, 0, 3, -1, -1]]]
    assert weights.tolist() == [[[1, 0, 0, 0, 0]]]
    positions, weights = reference.top_k(stages_of([1.0], ranges=[]), 2)
    assert positions.tolist() == [[[-1, -1]]]
    assert not weights.any()


@given(st.integers(1, 6), st.integers(0, 9), st.integers(0, 2**32 - 1))
def test_top_k_is_a_sort(count: int, m: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    q, k = (
        rng.integers(-1, 2, size=(2, 4, 2)).astype(float),
        rng.integers(-1, 2, size=(m, 2, 2)).astype(float),
    )
    stages = reference.explain(q, k, window=4)
    positions, weights = reference.top_k(stages, count)
    assert positions.shape == weights.shape == (2, 4, count)
    for n, h in np.ndindex(2, 4):
        seen = [(-stages.weights[h, n, j], j) for j in range(m) if stages.masked[h, n, j] > -np.inf]
        want = [*sorted(seen)[:count], *[(0.0, -1)] * count][:count]
        assert positions[n, h].tolist() == [j for _, j in want]
        np.testing.assert_array_equal(weights[n, h], [-w for w, _ in want])


def test_none_of_the_largest_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="count must be at least 1, got 0"):
        reference.top_k(stages_of([1.0]), 0)
