"""The rotation: against 60 digits, far out, in both layouts, and the same bits however it is called."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import turning
from hypothesis import given
from hypothesis import strategies as st
from oracle import gaussian

import rondel
from rondel.decoder.errors import InvalidShape, InvalidSpec
from rondel.decoder.rope import MAX_DIM, Rope
from rondel.decoder.rope_scaling import LinearScaling, NtkScaling, YarnScaling
from rondel.decoder.spec import LayerGroup, StreamSpec

FAR = [0, 1, 2, 1000, 10**5 + 3, 10**7 + 19, 10**9 + 7, 2**48 - 1]
GROUP: dict[str, Any] = {"layers": (0,), "query_heads": 2, "kv_heads": 1, "key_dim": 16, "value_dim": 8}


def assert_turned(
    got: np.ndarray, x: np.ndarray, positions: list[int], rope: Rope, want: np.ndarray, wobble: float
) -> None:
    """Within the error of the angle (position · frequency · wobble) and of one rounding to float32."""
    frequencies = rope.frequencies()
    angle = np.array(positions, np.float64)[:, None, None] * frequencies * wobble
    dim = 2 * len(frequencies)
    pairs = np.hypot(*_pairs(x[..., :dim].astype(np.float64), rope.interleaved))
    bound = pairs * angle + np.spacing(pairs.astype(np.float32)) / 2 + 1e-15
    for part, wanted in zip(
        _pairs(got[..., :dim], rope.interleaved), _pairs(want, rope.interleaved), strict=True
    ):
        assert (np.abs(part - wanted[..., : dim // 2]) <= bound).all()
    np.testing.assert_array_equal(got[..., dim:], x[..., dim:])


def _pairs(x: np.ndarray, interleaved: bool) -> tuple[np.ndarray, np.ndarray]:
    if interleaved:
        return x[..., ::2], x[..., 1::2]
    return x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("key_dim", "dim"), [(2, None), (16, 16), (16, 6), (33, 32), (128, None)])
def test_positions_near_and_far(key_dim: int, dim: int | None, interleaved: bool) -> None:
    rope = Rope(dim=dim, interleaved=interleaved, theta=500_000.0).of_head(key_dim)
    x = gaussian(np.random.default_rng(1), len(FAR), 3, key_dim)
    got = rope.rotate(x, np.array(FAR))
    turned = len(rope.frequencies()) * 2
    own = turning.turn(x[..., :turned], FAR, rope.frequencies(), interleaved=interleaved)
    assert_turned(got, x, FAR, rope, own, 2.0**-53)
    # Against the frequencies of the formula, not rounded: theirs adds to it.
    real = turning.turn(x[..., :turned], FAR, turning.exact(500_000.0, turned), interleaved=interleaved)
    assert_turned(got, x, FAR, rope, real, 2.0**-51)


@given(
    seed=st.integers(0, 2**32 - 1),
    position=st.integers(0, 10**9),
    distance=st.integers(0, 5000),
    shift=st.integers(0, 10**9),
    interleaved=st.booleans(),
)
def test_scores_depend_on_the_distance_alone(
    seed: int, position: int, distance: int, shift: int, interleaved: bool
) -> None:
    q, k = gaussian(np.random.default_rng(seed), 2, 1, 64)[:, None]
    rope = Rope(interleaved=interleaved, theta=1e6, scaling=YarnScaling(4.0, 4096))

    def score(p: int, j: int) -> float:
        turned = [rope.rotate(x, np.array([at])).astype(np.float64) for x, at in ((q, p), (k, j))]
        return float((turned[0] * turned[1]).sum())

    size = float(np.linalg.norm(q) * np.linalg.norm(k)) * 1.14**2
    difference = score(position + distance, position) - score(position + distance + shift, position + shift)
    assert abs(difference) <= size * (2.0**-22 + 4 * (position + distance + shift) * 2.0**-53)


def test_the_same_distance_far_out_gives_the_near_answer() -> None:
    q, k = gaussian(np.random.default_rng(2), 2, 1, 128)[:, None]
    rope = Rope()
    want = turning.turn(q, [37], turning.exact(10_000.0, 128)) * k
    for position in (10**3, 10**5, 10**7, 10**9):
        got = rope.rotate(q, np.array([position + 37])) * rope.rotate(k, np.array([position])).astype(
            np.float64
        )
        assert abs(float((got - want).sum())) < 1e-5 + 2e-6 * position / 10**9


def test_the_two_layouts_are_a_permutation_of_each_other() -> None:
    x = gaussian(np.random.default_rng(3), 40, 2, 24)
    positions = np.arange(100, 140)
    order = np.concatenate([np.arange(0, 20, 2), np.arange(1, 20, 2), np.arange(20, 24)])
    halves = Rope(dim=20).rotate(np.ascontiguousarray(x[..., order]), positions)
    np.testing.assert_array_equal(halves, Rope(dim=20, interleaved=True).rotate(x, positions)[..., order])


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_tokens_bits_are_its_own(interleaved: bool) -> None:
    rope = Rope(dim=30, interleaved=interleaved, scaling=NtkScaling(8.0))
    rng = np.random.default_rng(4)
    x = gaussian(rng, 700, 3, 33)
    positions = rng.integers(0, 2**40, 700)
    whole = rope.rotate(x, positions)
    for size in (1, 2, 3, 7, 256, 257):
        parts = [rope.rotate(x[at : at + size], positions[at : at + size]) for at in range(0, 700, size)]
        assert np.concatenate(parts).tobytes() == whole.tobytes()
    stacked = rope.rotate(np.stack([x, x[::-1]]), positions)
    assert stacked[0].tobytes() == whole.tobytes()
    assert stacked[1].tobytes() == rope.rotate(x[::-1].copy(), positions).tobytes()
    wide = np.zeros((700, 3, 40), np.float32)
    wide[..., 5:38] = x
    assert rope.rotate(wide[..., 5:38], positions).tobytes() == whole.tobytes()
    np.testing.assert_array_equal(wide[..., 5:38], x)
    one_head = rope.rotate(np.ascontiguousarray(x[:, 1:2]), positions)
    assert one_head.tobytes() == whole[:, 1:2].tobytes()


def test_cosines_do_not_depend_on_their_neighbours() -> None:
    """In float64, where a difference would show long before it reaches a float32."""
    angles = np.random.default_rng(5).uniform(0.0, 1e9, 4096)
    for f in (np.cos, np.sin):
        whole = f(angles)
        assert whole[3:].tobytes() == f(angles[3:]).tobytes()
        assert whole[::5].tobytes() == np.array([f(angle) for angle in angles[::5]]).tobytes()


def test_lengths_of_pairs_stay_and_so_do_the_largest_numbers() -> None:
    x = np.full((3, 1, 8), 1e15, np.float32)
    turned = Rope(scaling=YarnScaling(4.0, 4096, attention_factor=4.0)).rotate(x, np.array([0, 5, 10**9]))
    assert np.isfinite(turned).all()
    np.testing.assert_allclose(np.hypot(turned[..., :4], turned[..., 4:]), 4 * np.sqrt(2) * 1e15, rtol=1e-6)
    at_zero = Rope().rotate(x, np.zeros(3, np.int64))
    assert at_zero.tobytes() == x.tobytes()
    assert Rope().rotate(x[:0], np.zeros(0, np.int64)).shape == (0, 1, 8)


NO_NUMBER = [None, "2", True, (2,), 2j, float("nan"), float("inf"), 10**400]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("theta", value) for value in [*NO_NUMBER, 0.0, -1e4, 1.0, 1e13]),
        *(("dim", value) for value in ["2", True, 2.0, 0, -2, 3, MAX_DIM + 2, 2**31, 10**30]),
        *(("interleaved", value) for value in [None, 1, 0, "no"]),
        *(("scaling", value) for value in ["yarn", 2.0, {}, LinearScaling, Rope()]),
    ],
    ids=repr,
)
def test_every_wrong_field_is_named(field: str, value: Any) -> None:
    with pytest.raises(InvalidSpec) as caught:
        Rope(**{field: value})
    assert caught.value.field == field
    assert "got" in caught.value.message


def test_a_rope_takes_its_dim_from_the_group() -> None:
    group = LayerGroup(**GROUP, rope=Rope())
    assert group.rope == Rope(dim=16)
    assert group == LayerGroup(**GROUP, rope=Rope(dim=16))
    assert hash(group) == hash(LayerGroup(**GROUP, rope=Rope(dim=16)))
    assert group != LayerGroup(**GROUP)
    with pytest.raises(InvalidSpec, match="at most the key_dim of 16, got 18") as caught:
        LayerGroup(**GROUP, rope=Rope(dim=18))
    assert caught.value.field == "dim"
    with pytest.raises(InvalidSpec, match="dim must be even, got 15"):
        LayerGroup(**{**GROUP, "key_dim": 15}, rope=Rope())
    assert LayerGroup(**{**GROUP, "key_dim": 15}, rope=Rope(dim=14)).key_dim == 15
    for wrong in (10_000.0, True, {}, Rope):
        with pytest.raises(InvalidSpec) as caught:
            LayerGroup(**GROUP, rope=wrong)  # type: ignore[arg-type]
        assert caught.value.field == "rope"
    spec = StreamSpec.uniform(layers=2, query_heads=2, kv_heads=1, head_dim=16, window=8, rope=Rope())
    assert spec.group(1).rope == Rope(dim=16)


def test_it_is_a_value() -> None:
    rope = rondel.Rope(dim=8, scaling=LinearScaling(2))
    for same in (
        copy.deepcopy(rope),
        pickle.loads(pickle.dumps(rope)),
        Rope(dim=8, scaling=LinearScaling(2.0)),
    ):
        assert same == rope
        assert hash(same) == hash(rope)
        np.testing.assert_array_equal(same.frequencies(), rope.frequencies())
    with pytest.raises(ValueError, match="read-only"):
        rope.frequencies()[0] = 1.0
    with pytest.raises(InvalidSpec, match="of_head"):
        Rope().frequencies()


@pytest.mark.parametrize(
    ("x", "positions"),
    [
        (np.zeros((2, 1, 8)), np.zeros(2, np.int64)),
        (np.zeros((2, 8), np.float32), np.zeros(2, np.int64)),
        (np.zeros((2, 1, 8), np.float32), np.zeros(3, np.int64)),
        (np.zeros((2, 1, 8), np.float32), np.zeros((2, 1), np.int64)),
        ([[[0.0]]], np.zeros(1, np.int64)),
    ],
    ids=["float64", "no heads", "too many positions", "positions of two axes", "a list"],
)
def test_arrays_that_do_not_fit(x: Any, positions: Any) -> None:
    with pytest.raises(InvalidShape):
        Rope().rotate(x, positions)
    with pytest.raises(InvalidSpec):
        Rope(dim=10).rotate(np.zeros((1, 1, 8), np.float32), np.zeros(1, np.int64))
