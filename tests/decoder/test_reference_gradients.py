"""The backward pass against central differences of the forward pass, over the options and their mixtures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import draw

from rondel.decoder import reference
from rondel.decoder.errors import InvalidShape
from rondel.decoder.reference import Array

RELATIVE = 1e-6
"""Largest error, as a fraction of the largest gradient of the same array."""
STEP = 1e-5

SHAPES = {
    "one head": (3, 5, 1, 1, 4, 4),
    "MHA": (2, 4, 3, 3, 3, 5),
    "GQA": (3, 5, 6, 2, 4, 3),
    "MQA": (2, 6, 4, 1, 5, 2),
    "one row, one key": (1, 1, 2, 1, 3, 3),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "scale": {"scale": 0.9},
    "temperature": {"temperature": 0.6},
    "softcap": {"softcap": 0.7},
    "window": {"window": 2, "sinks": 1},
    "two-sided": {"window": 2, "window_right": 1, "position": 1},
    "no order": {"causal": False, "ranges": [(0, 1), (3, 5)]},
    "some rows see nothing": {"position": -1},
    "everything": {"scale": 0.8, "temperature": 1.3, "softcap": 1.5, "window": 3, "sinks": 1, "all": True},
}


def differences(loss: Callable[[Array], float], x: Array) -> Array:
    """∂loss/∂x by central differences."""
    out = np.zeros(x.shape)
    for at in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[at] += STEP
        down[at] -= STEP
        out[at] = (loss(up) - loss(down)) / (2 * STEP)
    return out


def assert_gradient(got: Array, want: Array, name: str) -> None:
    assert got.shape == want.shape, name
    floor = 1e-3  # a gradient that is zero all over leaves the rounding of the differences, 1e-10
    error = np.abs(got - want).max(initial=0.0) / max(np.abs(want).max(initial=0.0), floor)
    assert error < RELATIVE, f"{name}: relative error {error:.2g}"


def check(shape: tuple[int, int, int, int, int, int], options: dict[str, Any], seed: int) -> None:
    n, m, hq = shape[:3]
    q, k, v = draw(*shape, seed=seed)
    rng = np.random.default_rng(seed + 1)
    options = dict(options)
    bias, null = np.zeros((hq, n, m)), None
    if options.pop("all", False):
        bias, null = rng.normal(size=(hq, n, m)), rng.normal(size=hq)
        options |= {"alibi": rng.normal(size=hq), "mask": rng.random((n, m)) < 0.8}
    d_out = rng.normal(size=(n, hq, shape[5]))

    def loss(q: Array, k: Array, v: Array, bias: Array, null: Array | None) -> float:
        return float((reference.attend(q, k, v, bias=bias, null_logit=null, **options)[0] * d_out).sum())

    got = reference.backward(q, k, v, d_out, bias=bias, null_logit=null, **options)
    assert_gradient(got.q, differences(lambda x: loss(x, k, v, bias, null), q), "q")
    assert_gradient(got.k, differences(lambda x: loss(q, x, v, bias, null), k), "k")
    assert_gradient(got.v, differences(lambda x: loss(q, k, x, bias, null), v), "v")
    assert_gradient(got.scores, differences(lambda x: loss(q, k, v, x, null), bias), "scores")
    if null is None:
        assert not got.null_logit.any()
    else:
        assert_gradient(got.null_logit, differences(lambda x: loss(q, k, v, bias, x), null), "null_logit")


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_against_central_differences(
    shape: tuple[int, int, int, int, int, int], options: dict[str, Any]
) -> None:
    check(shape, options, seed=len(options))


@settings(max_examples=25)
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 2), st.integers(1, 2)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.sampled_from([None, 0.9, 3.0]),
    st.sampled_from([None, 1, 3]),
    st.booleans(),
    st.integers(0, 2**32 - 2),
)
def test_any_mixture_against_central_differences(
    sizes: tuple[int, int, int, int],
    dims: tuple[int, int],
    softcap: float | None,
    window: int | None,
    everything: bool,
    seed: int,
) -> None:
    n, m, kv_heads, group = sizes
    options = {"softcap": softcap, "window": window, "all": everything}
    check((n, m, kv_heads * group, kv_heads, *dims), options, seed)


def test_what_is_hidden_gets_exactly_zero() -> None:
    q, k, v = draw(2, 8, 4, 2, dk=3, dv=3)
    got = reference.backward(q, k, v, np.ones((2, 4, 3)), window=3, sinks=1)
    for gradient in (got.k, got.v):
        assert not gradient[1:4].any()
        assert gradient[[0, 4, 5, 6, 7]].all()
    assert not got.scores[:, :, 1:4].any()
    nothing = reference.backward(q, k, v, np.ones((2, 4, 3)), ranges=[], null_logit=np.zeros(4))
    assert not any(gradient.any() for gradient in (nothing.q, nothing.k, nothing.v, nothing.null_logit))


def test_gradient_of_a_value_is_its_weight() -> None:
    q, k, v = draw(1, 5, 1, 1, dk=3, dv=1)
    got = reference.backward(q, k, v, np.ones((1, 1, 1)))
    np.testing.assert_allclose(got.v[:, 0, 0], reference.weights(q, k)[0, 0], rtol=1e-14)


@pytest.mark.parametrize("null", [None, 0.4])
def test_softmax_jacobian_against_central_differences(null: float | None) -> None:
    s = np.random.default_rng(2).normal(size=(2, 3, 4)) * 2
    logits = None if null is None else np.full(2, null)
    got = reference.softmax_jacobian(reference.softmax(s, logits)[0])
    assert got.shape == (2, 3, 4, 4)
    for j in range(4):
        step = np.zeros(4)
        step[j] = STEP
        moved = reference.softmax(s + step, logits)[0] - reference.softmax(s - step, logits)[0]
        np.testing.assert_allclose(got[..., j], moved / (2 * STEP), atol=1e-9)


def test_softmax_jacobian_by_hand() -> None:
    np.testing.assert_allclose(
        reference.softmax_jacobian([0.5, 0.25, 0.25]),
        [[0.25, -0.125, -0.125], [-0.125, 0.1875, -0.0625], [-0.125, -0.0625, 0.1875]],
    )
    rows = reference.softmax_jacobian(reference.softmax(np.random.default_rng(0).normal(size=(1, 5, 9)))[0])
    np.testing.assert_allclose(rows.sum(axis=-1), 0, atol=1e-16)
    assert np.abs(reference.softmax_jacobian([1.0, 0.0, 0.0])).max() == 0


@pytest.mark.parametrize("shape", [(2, 4, 2), (1, 4, 3), (2, 2, 3), (2, 3)])
def test_a_gradient_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    q, k, v = draw(2, 5, 4, 2, dk=3, dv=3)
    with pytest.raises(InvalidShape, match="d_out must be"):
        reference.backward(q, k, v, np.zeros(shape))
