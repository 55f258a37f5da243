"""Every scaling against its published formula, written once more pair by pair, and by known numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from rondel.decoder.errors import InvalidSpec
from rondel.decoder.rope import Rope
from rondel.decoder.rope_scaling import (
    DivisorScaling,
    LinearScaling,
    Llama3Scaling,
    NtkScaling,
    Scaling,
    YarnScaling,
)

CLOSE = {"rtol": 1e-14, "atol": 0.0}


def yarn_pairs(
    theta: float,
    dim: int,
    factor: float,
    original: int,
    fast: float = 32,
    slow: float = 1,
    truncate: bool = True,
) -> list[float]:
    """Hugging Face's ``_compute_yarn_parameters``, one pair at a time."""

    def correction(turns: float) -> float:
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = correction(fast), correction(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    frequencies = []
    for i in range(dim // 2):
        power = theta ** (2 * i / dim)
        ramp = min(1.0, max(0.0, (i - low) / (high - low)))
        frequencies.append(1 / (factor * power) * ramp + 1 / power * (1 - ramp))
    return frequencies


def llama3_pairs(
    theta: float, dim: int, factor: float, low: float, high: float, original: int
) -> list[float]:
    """Hugging Face's ``_compute_llama3_parameters``, one pair at a time."""
    frequencies = []
    for i in range(dim // 2):
        frequency = 1 / theta ** (2 * i / dim)
        wavelength = 2 * math.pi / frequency
        if wavelength < original / high:
            frequencies.append(frequency)
        elif wavelength > original / low:
            frequencies.append(frequency / factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            frequencies.append((1 - smooth) * frequency / factor + smooth * frequency)
    return frequencies


def frequencies(scaling: Scaling | None, theta: float = 10_000.0, dim: int = 128) -> np.ndarray:
    return Rope(theta=theta, dim=dim, scaling=scaling).frequencies()


def test_without_scaling() -> None:
    got = frequencies(None)
    assert (got.dtype, got.shape, got[0]) == (np.float64, (64,), 1.0)
    np.testing.assert_allclose(got, [10_000 ** (-i / 64) for i in range(64)], **CLOSE)
    assert got[63] == pytest.approx(1.1548e-4, rel=1e-4)  # the slowest pair of Llama 2


def test_linear() -> None:
    np.testing.assert_allclose(frequencies(LinearScaling(4)), frequencies(None) / 4, **CLOSE)


@pytest.mark.parametrize("dim", [4, 64, 128])
def test_ntk_divides_the_slowest_pair_by_the_factor_and_leaves_the_fastest(dim: int) -> None:
    got, plain = frequencies(NtkScaling(8.0), dim=dim), frequencies(None, dim=dim)
    want = [(10_000 * 8.0 ** (dim / (dim - 2))) ** (-2 * i / dim) for i in range(dim // 2)]
    np.testing.assert_allclose(got, want, **CLOSE)
    assert got[0] == 1.0
    assert got[-1] == pytest.approx(plain[-1] / 8, rel=1e-12)


def test_ntk_needs_two_pairs() -> None:
    with pytest.raises(InvalidSpec, match="at least 4, got 2"):
        Rope(dim=2, scaling=NtkScaling(8.0))


@pytest.mark.parametrize(
    ("theta", "dim", "factor", "original", "options"),
    [
        (10_000.0, 128, 16.0, 4096, {}),
        (1_000_000.0, 128, 4.0, 32768, {}),  # Qwen 2.5 and 3
        (10_000.0, 64, 40.0, 4096, {"attention_factor": 1.0}),  # DeepSeek V3
        (150_000.0, 64, 32.0, 4096, {"truncate": False}),  # gpt-oss
        (10_000.0, 64, 8.0, 2048, {"beta_fast": 16.0, "beta_slow": 2.0}),
        (10_000.0, 4, 8.0, 2048, {"beta_fast": 32.0, "beta_slow": 32.0, "truncate": False}),
    ],
)
def test_yarn(theta: float, dim: int, factor: float, original: int, options: dict[str, Any]) -> None:
    got = frequencies(YarnScaling(factor, original, **options), theta, dim)
    want = yarn_pairs(
        theta, dim, factor, original, options.get("beta_fast", 32), options.get("beta_slow", 1),
        options.get("truncate", True),
    )  # fmt: skip
    np.testing.assert_allclose(got, want, **CLOSE)


def test_yarn_of_llama_2_by_its_numbers() -> None:
    # dim · ln(4096 / 2πβ) / 2 ln 10000 is 20.9 for β = 32 and 45.03 for β = 1.
    got, plain = frequencies(YarnScaling(16.0, 4096)), frequencies(None)
    np.testing.assert_array_equal(got[:21], plain[:21])
    np.testing.assert_allclose(got[46:], plain[46:] / 16, **CLOSE)
    assert (got[21:46] < plain[21:46]).all()
    assert (got[21:46] > plain[21:46] / 16).all()


@pytest.mark.parametrize(
    ("factor", "magnitude"), [(1.0, 1.0), (4.0, 1.138629), (16.0, 1.277259), (32.0, 1.346574)]
)
def test_yarn_lengthens_what_it_turns(factor: float, magnitude: float) -> None:
    scaling = YarnScaling(factor, 4096)
    assert scaling.attention_factor == pytest.approx(magnitude, abs=1e-6)
    assert scaling == YarnScaling(factor, 4096, attention_factor=scaling.attention_factor)
    x = np.ones((1, 1, 24), np.float32)
    turned = Rope(dim=16, scaling=scaling).rotate(x, np.array([77]))
    np.testing.assert_allclose(
        np.hypot(turned[..., :8], turned[..., 8:16]), math.sqrt(2) * magnitude, rtol=1e-6
    )
    np.testing.assert_array_equal(turned[..., 16:], 1.0)


def test_a_ramp_that_ends_before_it_begins() -> None:
    for theta, original in ((10_000.0, 3), (2.0, 2**40)):
        with pytest.raises(InvalidSpec, match="begin before it ends") as caught:
            frequencies(YarnScaling(8.0, original), theta)
        assert caught.value.field == "original_context"


@pytest.mark.parametrize(
    ("theta", "dim", "factor", "low", "high", "original"),
    [
        (500_000.0, 128, 8.0, 1.0, 4.0, 8192),  # Llama 3.1
        (500_000.0, 64, 32.0, 1.0, 4.0, 8192),  # Llama 3.2
        (10_000.0, 64, 2.5, 0.5, 100.0, 1000),
    ],
)
def test_llama3(theta: float, dim: int, factor: float, low: float, high: float, original: int) -> None:
    got = frequencies(Llama3Scaling(factor, low, high, original), theta, dim)
    np.testing.assert_allclose(got, llama3_pairs(theta, dim, factor, low, high, original), rtol=1e-13)


def test_llama_3_1_by_its_numbers() -> None:
    plain = frequencies(None, 500_000.0)
    divisors = plain / frequencies(Llama3Scaling(8.0, 1.0, 4.0, 8192), 500_000.0)
    # Wavelengths below 2048 stay: 2π · 500000^(i / 64) is 1949 for i = 28 and 2393 for i = 29; those above
    # 8192 are stretched by 8: 6698 for i = 34 and 8223 for i = 35.
    np.testing.assert_array_equal(divisors[:29], 1.0)
    assert (divisors[29:35] > 1.0).all()
    assert (divisors[29:35] < 8.0).all()
    np.testing.assert_allclose(divisors[35:], 8.0, **CLOSE)


def test_divisors() -> None:
    divisors = tuple(1.0 + i / 10 for i in range(64))
    np.testing.assert_allclose(frequencies(DivisorScaling(divisors)), frequencies(None) / divisors, **CLOSE)
    with pytest.raises(InvalidSpec, match="needs 32 divisors, got 64"):
        Rope(dim=64, scaling=DivisorScaling(divisors))


NO_FACTOR = [None, "4", True, 0.5, 0.0, -4.0, 1e7, float("nan"), float("inf"), 10**400, (4.0,)]
NO_CONTEXT = [None, "4096", True, 4096.0, 0, -1, 2**48 + 1, float("nan")]
SOUND: dict[type[Any], dict[str, Any]] = {
    LinearScaling: {"factor": 4.0},
    NtkScaling: {"factor": 4.0},
    YarnScaling: {"factor": 4.0, "original_context": 4096},
    Llama3Scaling: {"factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_context": 8192},
    DivisorScaling: {"divisors": (1.0, 2.0)},
}
WRONG: list[tuple[type[Any], str, Any]] = [
    *((kind, "factor", value) for kind in list(SOUND)[:4] for value in NO_FACTOR),
    *((kind, "original_context", value) for kind in (YarnScaling, Llama3Scaling) for value in NO_CONTEXT),
    *((YarnScaling, "beta_fast", value) for value in [None, 0.0, 0.5, 1e7, float("nan"), True]),
    *((YarnScaling, "beta_slow", value) for value in [None, 0.0, -1.0, 1e7, float("nan"), 1e-300]),
    *((YarnScaling, "attention_factor", value) for value in ["1", 0.0, -1.0, 4.5, float("nan"), True]),
    *((YarnScaling, "truncate", value) for value in [None, 0, 1, "no"]),
    *((Llama3Scaling, "low_freq_factor", value) for value in [None, 0.0, -1.0, float("nan"), True]),
    *((Llama3Scaling, "high_freq_factor", value) for value in [None, 1.0, 0.5, float("nan"), 1e7]),
    *((DivisorScaling, "divisors", value) for value in [None, 2.0, "12", (0.0,), (-1.0,), (1e-300,)]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "field", "value"), WRONG, ids=repr)
def test_every_wrong_number_is_named(kind: type[Any], field: str, value: Any) -> None:
    with pytest.raises(InvalidSpec) as caught:
        kind(**{**SOUND[kind], field: value})
    assert caught.value.field == field
    assert "got" in caught.value.message


def test_descriptions_of_the_same_numbers_are_equal() -> None:
    assert LinearScaling(4) == LinearScaling(4.0)
    assert LinearScaling(4.0) != NtkScaling(4.0)
    assert hash(DivisorScaling([1, 2])) == hash(DivisorScaling((1.0, 2.0)))  # type: ignore[arg-type]
