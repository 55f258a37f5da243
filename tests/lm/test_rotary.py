import numpy as np
import pytest
import straightline

from rondel.decoder.lm.rotary import Rotary


@pytest.mark.parametrize("dim", [2, 6, 16])
@pytest.mark.parametrize("factor", [1.0, 4.0])
def test_equals_complex_multiplication(rng: np.random.Generator, dim: int, factor: float) -> None:
    x = rng.standard_normal((20, 3, 16))
    factors = rng.uniform(1.0, 8.0, dim // 2)
    rotary = Rotary(10_000.0, dim, factor=factor, factors=factors.astype(np.float32))
    got = rotary.turn(x.astype(np.float32), rotary.phases(0, 20))
    expected = straightline.rotate(
        x, base=10_000.0, dim=dim, factor=factor, factors=factors.astype(np.float32).astype(np.float64)
    )
    assert got.dtype == np.float32
    assert got.flags.c_contiguous
    np.testing.assert_allclose(got, expected, atol=2e-6)
    np.testing.assert_array_equal(got[..., dim:], x.astype(np.float32)[..., dim:])


def test_the_input_stays_as_it_is_and_may_be_a_view(rng: np.random.Generator) -> None:
    wide = rng.standard_normal((5, 48)).astype(np.float32)
    before = wide.copy()
    rotary = Rotary(10_000.0, 8)
    view = rotary.turn(wide[:, 16:32].reshape(5, 2, 8), rotary.phases(3, 5))
    np.testing.assert_array_equal(wide, before)
    np.testing.assert_array_equal(
        view, rotary.turn(wide[:, 16:32].copy().reshape(5, 2, 8), rotary.phases(3, 5))
    )


def test_far_positions_are_exact() -> None:
    rotary = Rotary(10_000.0, 2)
    position = 10_000_019
    turned = rotary.phases(position, 1)[0, 0, 0]
    assert abs(turned - complex(np.cos(float(position)), np.sin(float(position)))) < 1e-6


def test_scores_depend_on_the_distance_alone(rng: np.random.Generator) -> None:
    q, k = rng.standard_normal((2, 1, 1, 64)).astype(np.float32)
    rotary = Rotary(100_000.0, 64)

    def score(p: int, j: int) -> float:
        return float(np.sum(rotary.turn(q, rotary.phases(p, 1)) * rotary.turn(k, rotary.phases(j, 1))))

    assert score(7, 2) == pytest.approx(score(5_007, 5_002), abs=1e-4)
