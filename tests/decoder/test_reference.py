"""The specification against loops in plain Python and numbers worked by hand, never against a kernel."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rondel.decoder import reference
from rondel.decoder.reference import Array

repeatable = settings(deadline=None, derandomize=True, database=None)

Q = np.array([[[2.0, 1.0]]])
K = np.array([[1.0, 0], [0, 2], [2, 2], [-1, 1]])[:, None]
V = np.array([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]])[:, None]


def looped(
    q: Array,
    k: Array,
    v: Array,
    *,
    position: int,
    window: int | None,
    sinks: int,
    scale: float,
    softcap: float | None = None,
    bias: Array | None = None,
    mask: Array | None = None,
    null_logit: Array | None = None,
) -> tuple[Array, Array]:
    """The same definition in plain Python floats: one row, one head, one key at a time."""
    n, hq, dk = q.shape
    m, hkv, dv = v.shape
    out, lse = np.zeros((n, hq, dv)), np.full((n, hq), -math.inf)
    for i in range(n):
        for h in range(hq):
            g, p, logits = h // (hq // hkv), position + i, {}
            for j in range(m):
                if j > p or not (j < sinks or window is None or j > p - window):
                    continue
                if mask is not None and not mask[i, j]:
                    continue
                s = scale * sum(float(q[i, h, c]) * float(k[j, g, c]) for c in range(dk))
                if softcap is not None:
                    s = softcap * math.tanh(s / softcap)
                logits[j] = s + (0.0 if bias is None else float(bias[h, i, j]))
            if not logits:
                continue
            total = math.fsum(math.exp(s) for s in logits.values())
            lse[i, h] = math.log(total)
            if null_logit is not None:
                total += math.exp(null_logit[h])
            for j, s in logits.items():
                out[i, h] += math.exp(s) / total * v[j, g]
    return out, lse


def draw(n: int, m: int, hq: int, hkv: int, dk: int, dv: int, seed: int = 0) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, hq, dk)), rng.normal(size=(m, hkv, dk)), rng.normal(size=(m, hkv, dv))


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


def test_masks_of_the_docstring() -> None:
    def picture(n: int, m: int, window: int | None = None, sinks: int = 0) -> str:
        seen = reference.visible(np.arange(m - n, m), np.arange(m), window, sinks)
        return "/".join("".join("01"[int(x)] for x in row) for row in seen)

    assert picture(2, 5) == "11110/11111"
    assert picture(5, 2) == "00/00/00/10/11"
    assert picture(4, 7, window=3, sinks=1) == "1111000/1011100/1001110/1000111"
    assert reference.visible([0, 1], [0, 1, 2], causal=False).all()


@pytest.mark.parametrize("sinks", [0, 1, 3, 7])
@pytest.mark.parametrize("window", [1, 2, 5, 8])
def test_visible_around_the_window(window: int, sinks: int) -> None:
    near = {max(1, window + d) for d in (-2, -1, 0, 1, 2)}
    for length in near | {2 * window - 1, 2 * window, 2 * window + 1}:
        p = length - 1
        seen = reference.visible([p], np.arange(length + 2), window, sinks)[0]
        expected = {j for j in range(length) if j < sinks or p - window < j <= p}
        assert set(np.flatnonzero(seen)) == expected
        assert seen[max(sinks, 0) : length].sum() == max(0, min(window, length - sinks))


@pytest.mark.parametrize("options", [{"window": 4}, {"sinks": 1}], ids=str)
def test_window_without_order_is_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="causal=False takes no window"):
        reference.visible([3], [0, 1, 2, 3], causal=False, **options)


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
        {"softcap": 2.0, "bias": bias, "mask": mask, "null_logit": null},
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
