"""Answers over parts of the keys make the answer over all of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rondel import merge_partials
from rondel.decoder import reference
from rondel.decoder.errors import InvalidShape, ValueRange


@given(st.integers(0, 2**32 - 1), st.integers(1, 7), st.booleans())
def test_it_is_the_reference_rounded_once(seed: int, parts: int, null: bool) -> None:
    rng = np.random.default_rng(seed)
    outs = rng.standard_normal((parts, 3, 4, 5)).astype(np.float32)
    lses = (rng.standard_normal((parts, 3, 4)) * 30).astype(np.float32)
    lses[rng.random(lses.shape) < 0.3] = -np.inf
    outs[np.isneginf(lses)] = np.nan  # what a blind part holds is nobody's business
    logit = rng.standard_normal(4).astype(np.float32) * 10 if null else None
    got, want = merge_partials(outs, lses, logit), reference.merge_partials(outs, lses, logit)
    for one, other in zip(got, want, strict=True):
        assert one.dtype == np.float32
        np.testing.assert_allclose(one, other, rtol=2**-23, atol=1e-30)
    as_lists = merge_partials(list(outs), list(lses), logit)
    np.testing.assert_array_equal(as_lists[0], got[0])


def test_empty_parts_change_no_bit_and_no_parts_are_nothing() -> None:
    rng = np.random.default_rng(3)
    outs, lses = rng.standard_normal((2, 3, 4, 5), np.float32), rng.standard_normal((2, 3, 4), np.float32)
    empty = np.zeros((1, 3, 4, 5), np.float32), np.full((1, 3, 4), -np.inf, np.float32)
    alone = merge_partials(outs, lses)
    padded = merge_partials(np.concatenate([empty[0], outs]), np.concatenate([empty[1], lses]))
    for one, other in zip(alone, padded, strict=True):
        np.testing.assert_array_equal(one, other)
    one_part = merge_partials(outs[:1], lses[:1])
    np.testing.assert_array_equal(one_part[0], outs[0])
    np.testing.assert_array_equal(one_part[1], lses[0])
    for parts in (empty, (outs[:0], lses[:0])):
        out, lse = merge_partials(*parts, np.zeros(4, np.float32))
        assert not out.any()
        assert np.isneginf(lse).all()


@pytest.mark.parametrize(
    ("outs", "lses", "null", "error"),
    [
        (np.zeros((2, 3, 4, 5)), np.zeros((2, 3, 5)), None, InvalidShape),
        (np.zeros((3, 4, 5)), np.zeros((3, 4)), None, InvalidShape),
        ([np.zeros((3, 4, 5)), np.zeros((2, 4, 5))], np.zeros((2, 3, 4)), None, InvalidShape),
        (np.zeros((2, 3, 4, 5)), np.zeros((2, 3, 4)), np.zeros(3), InvalidShape),
        (np.zeros((2, 3, 4, 5)), np.full((2, 3, 4), np.nan), None, ValueRange),
        (np.zeros((2, 3, 4, 5)), np.full((2, 3, 4), np.inf), None, ValueRange),
        (np.full((2, 3, 4, 5), np.nan), np.zeros((2, 3, 4)), None, ValueRange),
        (np.zeros((2, 3, 4, 5)), np.zeros((2, 3, 4)), np.full(4, np.nan), ValueRange),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(
    outs: list[np.ndarray], lses: np.ndarray, null: np.ndarray | None, error: type[Exception]
) -> None:
    with pytest.raises(error, match="must"):
        merge_partials(outs, lses, null)
