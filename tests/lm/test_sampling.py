import numpy as np
import pytest

from rondel.decoder.errors import InvalidSpec, ValueRange
from rondel.decoder.lm.sampling import GREEDY, MAX_SEED, Sampling, gumbel

LOGITS = np.log(np.array([0.05, 0.4, 0.05, 0.3, 0.2], dtype=np.float32))

PINNED = [0.19449440523041345, -0.5865779915334646, 4.025542649366051, 0.2659739189261743]


def drawn(sampling: Sampling, count: int, logits: np.ndarray = LOGITS) -> np.ndarray:
    return np.bincount([sampling.choose(logits, n)[0] for n in range(count)], minlength=5) / count


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1), ("temperature", float("nan")), ("temperature", float("inf")),
        ("temperature", 101.0), ("temperature", "1"), ("temperature", True),
        ("top_p", 0.0), ("top_p", 1.01), ("top_p", float("nan")), ("top_p", None),
        ("top_k", -1), ("top_k", 1.0), ("top_k", 1 << 31),
        ("seed", -1), ("seed", MAX_SEED + 1), ("seed", 0.5),
    ],
)  # fmt: skip
def test_impossible_settings_are_refused(field: str, value: object) -> None:
    with pytest.raises(InvalidSpec, match=field) as caught:
        Sampling(**{field: value})  # type: ignore[arg-type]
    assert caught.value.field == field


def test_greedy_takes_the_first_of_the_likeliest() -> None:
    token, logprob = GREEDY.choose(np.array([0.0, 3.0, 1.0, 3.0], dtype=np.float32), 5)
    assert token == 1
    assert logprob == pytest.approx(3.0 - np.log(1 + 2 * np.exp(3.0) + np.exp(1.0)))


def test_draws_follow_the_distribution() -> None:
    got = drawn(Sampling(temperature=1.0, seed=3), 8_000)
    np.testing.assert_allclose(got, np.exp(LOGITS), atol=0.02)


def test_temperature_sharpens() -> None:
    got = drawn(Sampling(temperature=0.5, seed=3), 8_000)
    expected = np.exp(2 * LOGITS) / np.exp(2 * LOGITS).sum()
    np.testing.assert_allclose(got, expected, atol=0.02)


@pytest.mark.parametrize(
    ("settings", "allowed"),
    [
        ({"top_k": 1}, {1}),
        ({"top_k": 2}, {1, 3}),
        ({"top_p": 0.39}, {1}),
        ({"top_p": 0.41}, {1, 3}),  # the token that crosses the line belongs to it
        ({"top_p": 0.75}, {1, 3, 4}),
        ({"top_p": 1e-9}, {1}),
        ({"top_k": 2, "top_p": 0.99}, {1, 3}),
        ({"top_k": 4}, {0, 1, 3, 4}),  # of the two equal ones the lower id
        ({"top_k": 99}, {0, 1, 2, 3, 4}),
    ],
)
def test_top_k_and_top_p_leave_out_the_rest(settings: dict[str, float], allowed: set[int]) -> None:
    got = drawn(Sampling(temperature=1.0, seed=1, **settings), 1_500)  # type: ignore[arg-type]
    assert {int(n) for n in np.nonzero(got)[0]} == allowed
    kept = np.where(np.isin(np.arange(5), list(allowed)), np.exp(LOGITS), 0.0)
    np.testing.assert_allclose(got, kept / kept.sum(), atol=0.05)


def test_a_draw_depends_on_seed_and_index_alone() -> None:
    flat = np.zeros(1_000, dtype=np.float32)
    whole = [Sampling(temperature=1.0, seed=9).choose(flat, n)[0] for n in range(30)]
    assert [Sampling(temperature=1.0, seed=9).choose(flat, n)[0] for n in range(20, 30)] == whole[20:]
    assert [Sampling(temperature=1.0, seed=10).choose(flat, n)[0] for n in range(30)] != whole
    assert len(set(whole)) > 25


def test_noise_is_pinned() -> None:
    # Another NumPy or machine must give the same tokens; Philox's raw output is promised.
    np.testing.assert_allclose(gumbel(7, 3, 4), PINNED, rtol=1e-12)
    assert np.isfinite(gumbel(MAX_SEED, 1 << 63, 100_000)).all()


def test_the_logprob_is_the_models_own() -> None:
    token, logprob = Sampling(temperature=5.0, top_k=3, seed=1).choose(LOGITS, 0)
    assert logprob == pytest.approx(float(LOGITS[token]), abs=1e-5)


def test_huge_logits_and_tiny_temperatures_stay_finite() -> None:
    logits = np.array([-3e38, 3e38, 0.0], dtype=np.float32)
    assert Sampling(temperature=1e-300).choose(logits, 0)[0] == 1
    assert GREEDY.choose(logits, 0) == (1, 0.0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_logits_that_are_not_finite_are_refused(bad: float) -> None:
    with pytest.raises(ValueRange, match="finite"):
        GREEDY.choose(np.array([0.0, bad, 1.0], dtype=np.float32), 0)
