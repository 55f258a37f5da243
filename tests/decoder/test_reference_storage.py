"""The int8 storage against exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rondel.decoder import reference

repeatable = settings(deadline=None, derandomize=True, database=None)


def scale_by_hand(largest: float) -> Fraction:
    """The smallest fraction with 8 significant bits that is at least largest / 127, found by counting."""
    wanted = max(Fraction(largest) / 127, Fraction(2) ** -110)
    exponent = -110
    while Fraction(2) ** (exponent + 1) <= wanted:
        exponent += 1
    step = Fraction(2) ** (exponent - 7)
    return math.ceil(wanted / step) * step


@repeatable
@given(st.lists(st.floats(-(2.0**49), 2.0**49, width=32), min_size=1, max_size=9))
def test_int8_rows(row: list[float]) -> None:
    codes, scales = reference.quantise_rows(np.array(row, np.float32)[None, None])
    scale = scale_by_hand(max(abs(x) for x in row))
    assert Fraction(float(scales[0, 0])) == scale
    for x, code in zip(row, codes[0, 0], strict=True):
        assert int(code) == round(Fraction(x) / scale)  # Fraction rounds half to even
        assert abs(int(code)) <= 127
    bits = scales.view(np.uint32)
    assert not (bits & 0xFFFF).any(), "a bfloat16 has no lower half"


@pytest.mark.parametrize("largest", [0.0, 1e-45, 1e-38, 1e-30, 1.0, 127.0, 128.0, 6e4, 1e15])
def test_int8_corners(largest: float) -> None:
    x = np.array([largest, -largest, largest / 2, 0.0], np.float32).reshape(1, 1, 4)
    codes, scales = reference.quantise_rows(x)
    back = reference.dequantise(codes, scales)
    assert scales[0, 0] >= 2.0**-110
    assert codes.min() >= -127
    assert codes[0, 0, 0] == -codes[0, 0, 1]
    assert np.abs(back - x).max() <= scales[0, 0] / 2
    np.testing.assert_array_equal(back, back.astype(np.float32).astype(np.float64))


def test_int8_scale_is_one_per_token_and_head() -> None:
    x = np.array([[[1, 2], [30, 40]], [[500, 600], [7000, 8000]]], np.float32)
    codes, scales = reference.quantise_rows(x)
    assert codes.shape == (2, 2, 2)
    assert codes.dtype == np.int8
    assert scales.shape == (2, 2)
    np.testing.assert_array_equal(scales, [[0.015869140625, 0.31640625], [4.75, 63.0]])
    assert reference.quantise_rows(np.zeros((0, 2, 3)))[0].shape == (0, 2, 3)
