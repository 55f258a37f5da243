"""The comparators and the covering list can fail: each is shown to."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from comparators import assert_in_hull, assert_near, assert_same_bits, covering
from oracle import ENGINES, Case, Stream


def test_near_accepts_the_bound_and_no_more() -> None:
    want = np.array([[1.0, -2.0], [0.0, -np.inf]])
    got = (want + np.array([[0.001, -0.001], [0, 0]])).astype(np.float32)
    assert 0.99 < assert_near(got, want, 0.001001, "x") <= 1.0
    with pytest.raises(AssertionError, match=r"x: 2\d?\.?\d* of the bound at \(0, \d\).*2 of 4 are beyond"):
        assert_near(got, want, 0.0005, "x")
    assert assert_near(want.astype(np.float32), want, 0.0, "exact") == 0.0


def test_near_takes_a_bound_per_element() -> None:
    want = np.zeros(3)
    got = np.array([1e-3, 0, 0], np.float32)
    assert_near(got, want, np.array([2e-3, 0, 0]), "x")
    with pytest.raises(AssertionError, match=r"inf of the bound at \(0,\)"):
        assert_near(got, want, np.array([0, 2e-3, 2e-3]), "x")


@pytest.mark.parametrize(
    ("got", "text"),
    [
        (np.array([1, np.nan], np.float32), r"NaN at \(1,\)"),
        (np.array([1, np.inf], np.float32), "inf of the bound"),
        (np.array([1, -np.inf], np.float32), "inf of the bound"),
        (np.array([1, 2], np.float64), "dtype float64"),
        (np.array([[1, 2]], np.float32), r"shape \(1, 2\), expected \(2,\)"),
    ],
    ids=["nan", "inf", "-inf", "dtype", "shape"],
)
def test_near_refuses(got: np.ndarray, text: str) -> None:
    with pytest.raises(AssertionError, match=text):
        assert_near(got, np.array([1.0, 2.0]), 1e9, "x")
    with pytest.raises(AssertionError):
        assert_near(np.array([1.0, 0.0], np.float32), np.array([1.0, -np.inf]), 1e9, "x")


def test_same_bits_sees_every_bit() -> None:
    x = np.array([0.0, 1.0, np.nan], np.float32)
    assert_same_bits(x, x.copy(), "x")
    for other in ([-0.0, 1.0, np.nan], [0.0, np.nextafter(np.float32(1), np.float32(2)), np.nan]):
        with pytest.raises(AssertionError, match="1 of 3 elements differ, first at"):
            assert_same_bits(np.array(other, np.float32), x, "x")
    with pytest.raises(AssertionError, match="dtype"):
        assert_same_bits(x.astype(np.float64), x, "x")
    with pytest.raises(AssertionError, match="shape"):
        assert_same_bits(x[:2], x, "x")


def test_hull_is_per_channel_and_per_kv_head() -> None:
    values = np.array([[[0, 1], [10, 11]], [[1, 2], [11, 12]]], np.float32)
    inside = np.array([[[0.5, 1.5], [0, 2], [10.5, 11.5], [11, 11]]], np.float32)
    assert_in_hull(inside, values, 1e-6, "x")
    for index, value in (((0, 0, 0), 1.1), ((0, 1, 1), 0.9), ((0, 2, 0), 0.5), ((0, 3, 1), np.nan)):
        outside = inside.copy()
        outside[index] = value
        with pytest.raises(AssertionError, match="1 outputs outside the hull"):
            assert_in_hull(outside, values, 1e-6, "x")


def test_covering_has_every_pair_and_is_short() -> None:
    factors = {"a": range(7), "b": "xyz", "c": [None, True], "d": range(5)}
    rows = covering(factors)
    for one, two in itertools.combinations(factors, 2):
        assert {(r[one], r[two]) for r in rows} == set(itertools.product(factors[one], factors[two]))
    assert len(rows) <= 50
    assert rows == covering(factors)


def test_a_stream_notices_a_wrong_answer() -> None:
    """The whole check fails for an off-by-one window, a swapped kv head or a lost token."""
    tier, storage = ENGINES[0]
    stream = Stream(Case(tier=tier, storage=storage, window=20, sinks=2)).grow(60)
    q = stream.queries(1)
    bound = {storage: 1e-3}
    stream.check(q, bound=bound, lse_bound=bound)
    stream.case = Case(tier=tier, storage=storage, window=21, sinks=2)
    with pytest.raises(AssertionError, match="of the bound"):
        stream.check(q, bound=bound, lse_bound=None)
    stream.case = Case(tier=tier, storage=storage, window=20, sinks=2)
    with pytest.raises(AssertionError, match="of the bound"):
        stream.check(np.ascontiguousarray(q[:, ::-1])[:, ::1] * 1.5, bound={storage: 1e-9}, lse_bound=None)
