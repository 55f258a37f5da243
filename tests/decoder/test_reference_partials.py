"""Attention over parts, merged, is the attention over the whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loops import draw

from rondel.decoder import reference
from rondel.decoder.errors import InvalidShape, ValueRange
from rondel.decoder.reference import Array

NEAR = 1e-12


def parts_of(q: Array, k: Array, v: Array, owner: Array, parts: int, **options: Any) -> tuple[Any, Any]:
    """(outs, lses) of the keys of each owner, each at their own positions."""
    answers = []
    for part in range(parts):
        at = np.flatnonzero(owner == part)
        answers.append(reference.attend(q, k[at], v[at], position=9, key_positions=at, **options))
    return [out for out, _ in answers], [lse for _, lse in answers]


@given(
    st.integers(1, 7),
    st.lists(st.integers(0, 6), min_size=12, max_size=12),
    st.floats(0.01, 300),
    st.sampled_from(
        [{}, {"window": 4, "sinks": 2}, {"window": 1}, {"softcap": 3.0}, {"alibi": [1, 2, -3, 0]}]
    ),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_any_split_merges_to_the_whole(
    parts: int, owners: list[int], spread: float, options: dict[str, Any], null: bool, seed: int
) -> None:
    q, k, v = draw(3, 12, 4, 2, dk=5, dv=3, seed=seed)
    logits = np.array([-30.0, 0, 1, 400]) if null else None
    outs, lses = parts_of(q * spread, k, v, np.array(owners) % parts, parts, **options)
    out, lse = reference.merge_partials(outs, lses, logits)
    want, want_lse = reference.attend(q * spread, k, v, position=9, null_logit=logits, **options)
    np.testing.assert_allclose(out, want, rtol=NEAR, atol=NEAR)
    np.testing.assert_allclose(lse, want_lse, rtol=NEAR, atol=NEAR)


def test_a_merge_may_be_merged_again() -> None:
    """One part at a time, in any order: what an online softmax does, with memory for one part."""
    q, k, v = draw(3, 12, 4, 2, dk=5, dv=3)
    outs, lses = parts_of(q, k, v, np.arange(12) % 6, 6)
    want, want_lse = reference.attend(q, k, v, position=9)
    out, lse = np.zeros((3, 4, 3)), np.full((3, 4), -np.inf)
    for part in (4, 1, 0, 5, 3, 2):
        out, lse = reference.merge_partials([out, outs[part]], [lse, lses[part]])
    np.testing.assert_allclose(out, want, rtol=NEAR, atol=NEAR)
    np.testing.assert_allclose(lse, want_lse, rtol=NEAR, atol=NEAR)


def test_two_parts_by_hand() -> None:
    out, lse = reference.merge_partials([[[[1.0]]], [[[5.0]]]], [[[np.log(3)]], [[0.0]]])
    assert out[0, 0, 0] == pytest.approx(2.0)  # three quarters of 1, one quarter of 5
    assert lse[0, 0] == pytest.approx(np.log(4))
    out, lse = reference.merge_partials([[[[1.0]]], [[[5.0]]]], [[[np.log(3)]], [[0.0]]], [np.log(4)])
    assert out[0, 0, 0] == pytest.approx(1.0)
    assert lse[0, 0] == pytest.approx(np.log(4)), "the null logit is not in lse"


@pytest.mark.parametrize("empty", [0.0, np.nan, np.inf, 1e300])
def test_empty_parts_change_no_bit(empty: float) -> None:
    q, k, v = draw(2, 5, 2, 1, dk=3, dv=3)
    out, lse = reference.attend(q, k, v)
    blank, never = np.full(out.shape, empty), np.full(lse.shape, -np.inf)
    got, got_lse = reference.merge_partials([blank, out, blank], [never, lse, never])
    np.testing.assert_array_equal(got, out)
    np.testing.assert_array_equal(got_lse, lse)


@pytest.mark.parametrize("parts", [0, 1, 3])
def test_nothing_but_empty_parts(parts: int) -> None:
    outs, lses = np.full((parts, 2, 4, 3), 7.0), np.full((parts, 2, 4), -np.inf)
    out, lse = reference.merge_partials(outs, lses, np.zeros(4))
    assert out.shape == (2, 4, 3)
    assert not out.any()
    assert lse.shape == (2, 4)
    assert np.isneginf(lse).all()


def test_far_apart_parts_do_not_overflow() -> None:
    out, lse = reference.merge_partials([[[[1.0]]], [[[5.0]]]], [[[1e300]], [[-1e300]]])
    assert out[0, 0, 0] == 1.0
    assert lse[0, 0] == 1e300


def test_parts_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(InvalidShape, match="outs must be parts of one shape"):
        reference.merge_partials([np.zeros((1, 2, 3)), np.zeros((1, 2, 4))], np.zeros((2, 1, 2)))
    with pytest.raises(InvalidShape, match=r"outs must be \[1, 1, 2, Dv\]"):
        reference.merge_partials(np.zeros((2, 1, 2, 3)), np.zeros((1, 1, 2)))
    with pytest.raises(InvalidShape, match=r"lses must be \[parts, N, Hq\], got \[0\]"):
        reference.merge_partials([], [])
    with pytest.raises(ValueRange, match="lses must hold finite numbers or -inf"):
        reference.merge_partials(np.zeros((1, 1, 2, 3)), np.full((1, 1, 2), np.nan))
    with pytest.raises(ValueRange, match="outs must hold finite numbers"):
        reference.merge_partials(np.full((1, 1, 2, 3), np.nan), np.zeros((1, 1, 2)))
