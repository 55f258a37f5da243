import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rondel.decoder.errors import ValueRange
from rondel.decoder.lm.distributions import compare, kl_divergence, log_softmax, same_top, surprise

LOGITS = arrays(np.float32, (3, 7), elements=st.floats(-60, 60, width=32))


def test_by_hand() -> None:
    p = np.log([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]])
    q = np.log([[0.25, 0.5, 0.25], [0.1, 0.2, 0.7]])
    got = compare(p, q, np.array([1, 2]))
    # 0.5 ln 2 - 0.25 ln 2 + 0; and 0 - 0.1 ln 2 + 0.8 ln (8/7)
    np.testing.assert_allclose(got.kl, [0.25 * math.log(2), 0.8 * math.log(8 / 7) - 0.1 * math.log(2)])
    assert got.same_top.tolist() == [False, True]
    np.testing.assert_allclose(got.surprise_p, [-math.log(0.25), -math.log(0.8)])
    np.testing.assert_allclose(got.surprise_q, [-math.log(0.5), -math.log(0.7)])


def test_probabilities_of_known_logits() -> None:
    logits = np.log(np.array([[1, 2, 5], [3, 3, 2]], np.float32)) + np.array([[40], [-7]], np.float32)
    np.testing.assert_allclose(
        np.exp(log_softmax(logits)), [[0.125, 0.25, 0.625], [0.375, 0.375, 0.25]], 1e-5
    )


def test_equal_logits_tie_to_the_lower_id() -> None:
    p = log_softmax(np.array([[1, 1, 0]], np.float32))
    assert same_top(p, log_softmax(np.array([[2, 1, 1]], np.float32))).all()
    assert not same_top(p, log_softmax(np.array([[1, 2, 2]], np.float32))).any()


@given(LOGITS, LOGITS)
def test_divergence_is_none_from_itself_and_never_negative(one: np.ndarray, other: np.ndarray) -> None:
    p, q = log_softmax(one), log_softmax(other)
    np.testing.assert_allclose(np.exp(p).sum(axis=-1), 1.0, rtol=1e-12)
    assert not kl_divergence(p, p).any()
    assert (kl_divergence(p, q) > -1e-13).all()
    np.testing.assert_allclose(log_softmax(one + np.float32(3)), p, atol=2e-5)


def test_the_far_ends_of_float32_stay_finite() -> None:
    p = log_softmax(np.array([[3e38, -3e38]], np.float32))
    q = log_softmax(np.array([[-3e38, 3e38]], np.float32))
    assert np.isfinite(kl_divergence(p, q)).all()
    np.testing.assert_allclose(surprise(p, np.array([1])), 6e38, rtol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite_are_refused(bad: float) -> None:
    logits = np.zeros((3, 4), np.float32)
    logits[1, 2] = bad
    with pytest.raises(ValueRange, match="not finite"):
        log_softmax(logits)
