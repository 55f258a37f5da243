"""Data that breaks attention elsewhere: zeros, constants, denormals, huge and tiny numbers, peaks, ties."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from comparators import HULL, assert_in_hull, covering
from oracle import ALWAYS, ENGINES, Case, Floats, Stream

from rondel.decoder import reference

Maker = Callable[[np.random.Generator, Floats], Floats]


def mixed(rng: np.random.Generator, x: Floats) -> Floats:
    """Every token has another order of magnitude, 1e-30 to 1e15."""
    powers = rng.uniform(-30, 14.5, (len(x), 1, 1))
    return np.clip(x * 10**powers, -1e15, 1e15).astype(np.float32)


def outlier(rng: np.random.Generator, x: Floats) -> Floats:
    """One channel is 50 and more."""
    y = x.copy()
    y[..., 0] += 50
    return y


def times(factor: float) -> Maker:
    return lambda rng, x: np.clip(x * factor, -1e15, 1e15).astype(np.float32)


def every(value: float) -> Maker:
    return lambda rng, x: np.full_like(x, value)


def some_rows(value: float) -> Maker:
    """A third of the tokens is one value throughout."""

    def make(rng: np.random.Generator, x: Floats) -> Floats:
        y = x.copy()
        y[::3] = value
        return y

    return make


MAKERS: dict[str, Maker] = {
    "gaussian": times(1),
    "zeros": every(0),
    "ones": every(1),
    "minus": every(-3.7),
    "least": every(1e-45),
    "denormal": times(1e-39),
    "tiny": times(1e-30),
    "half-max": times(6e4),
    "huge": times(1e15),
    "hugest": every(1e15),
    "lowest": every(-1e15),
    "mixed": mixed,
    "outlier": outlier,
    "zero-rows": some_rows(0),
    "huge-rows": some_rows(-1e15),
}


def made(case: Case, kinds: tuple[str, str, str], tokens: int, rows: int) -> tuple[Stream, Floats]:
    stream = Stream(case, seed=1)
    k, v = stream.draw(tokens)
    stream.append(MAKERS[kinds[1]](stream.rng, k), MAKERS[kinds[2]](stream.rng, v))
    return stream, MAKERS[kinds[0]](stream.rng, stream.queries(rows))


def check_finite(stream: Stream, q: Floats, name: str) -> Floats:
    """No NaN, no infinity, inside the hull, no longer than the longest value."""
    out, lse = stream.session.attend(0, q, return_lse=True)
    assert np.isfinite(out).all(), f"{name}: out is not finite"
    assert np.isfinite(lse).all(), f"{name}: lse is not finite"
    values = stream.held(stream.seen(len(q)))[1]
    slack = HULL[stream.case.storage]
    assert_in_hull(out, values, slack, name)
    longest = np.linalg.norm(values.astype(np.float64), axis=-1).max()
    assert np.linalg.norm(out.astype(np.float64), axis=-1).max() <= longest * (1 + slack) + 1e-40
    return out


def extremes() -> list[object]:
    rows = covering(
        {"engine": ENGINES, "q": list(MAKERS), "k": list(MAKERS), "v": list(MAKERS), "dim": [16, 65]}
    )
    return [
        pytest.param(
            Case(
                tier=row["engine"][0], storage=row["engine"][1], dims=(row["dim"],) * 2, window=200, sinks=4
            ),
            (row["q"], row["k"], row["v"]),
            id=f"{row['engine'][0]}-{row['engine'][1]}-D{row['dim']}-q:{row['q']}-k:{row['k']}-v:{row['v']}",
        )
        for row in rows
    ]


@pytest.mark.parametrize(("case", "kinds"), extremes())
def test_finite_input_gives_finite_output_in_the_hull(case: Case, kinds: tuple[str, str, str]) -> None:
    for tokens, rows in ((5, 3), (150, 3), (700, 1)):
        stream, q = made(case, kinds, tokens, rows)
        check_finite(stream, q, f"{case} {kinds} tokens {tokens}")


@pytest.mark.parametrize("v", ["gaussian", "outlier", "mixed", "denormal", "zero-rows", "huge"])
@pytest.mark.parametrize(
    ("q", "k"),
    [
        ("zeros", "gaussian"),
        ("gaussian", "zeros"),
        ("ones", "ones"),
        ("gaussian", "minus"),
        ("gaussian", "zero-rows"),
        ("outlier", "gaussian"),
        ("tiny", "gaussian"),
        ("least", "gaussian"),
        ("gaussian", "denormal"),
    ],
)
@pytest.mark.parametrize(("tier", "storage"), ENGINES)
def test_moderate_scores_are_within_the_bound(tier: str, storage: str, q: str, k: str, v: str) -> None:
    case = Case(tier=tier, storage=storage, window=200, sinks=4)
    for tokens in (1, 150, 700):
        stream, queries = made(case, (q, k, v), tokens, 1)
        stream.check(queries, bound=ALWAYS, lse_bound=None)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("size", [30.0, 1e3, 1e6, 1e15, 1e26])
@pytest.mark.parametrize(("tier", "storage"), ENGINES)
def test_large_scores_pick_the_best_key(tier: str, storage: str, size: float, sign: int) -> None:
    """q and k so large that one key takes all: the answer is its value, however large the scores."""
    case = Case(tier=tier, storage=storage, window=200, sinks=4)
    root = np.float32(np.sqrt(size))
    stream = Stream(case, seed=3)
    k, v = stream.draw(500)
    q = stream.queries(1)
    k[450, :] = sign * 2 * q[0, ::2] / np.linalg.norm(q[0, ::2], axis=-1, keepdims=True) * 8
    q[0, 1::2] = q[0, ::2]
    stream.append(k * root, v)
    out = check_finite(stream, q * root, f"{case} scores of {size}")
    assert np.isfinite(out).all()
    stream.check(q * root, bound=ALWAYS, lse_bound=None)


@pytest.mark.parametrize("tokens", [128, 129, 400])
@pytest.mark.parametrize(("tier", "storage"), ENGINES)
def test_one_peak_above_many(tier: str, storage: str, tokens: int) -> None:
    """A score 8 to 15 above all others of its page: what they weigh together must not be rounded away."""
    case = Case(tier=tier, storage=storage, heads=(1, 1), dims=(16, 16), window=512, scale=1.0)
    for gap in np.arange(8.0, 15.1, 0.25):
        for peak in (0, 77, tokens - 1):
            stream = Stream(case)
            k = np.zeros((tokens, 1, 16), np.float32)
            k[peak, 0, 3] = 1.0
            v = np.full((tokens, 1, 16), -1.0, np.float32)
            v[peak] = 1.0
            stream.append(k, v)
            q = np.zeros((1, 1, 16), np.float32)
            q[0, 0, 3] = gap
            stream.check(q, bound=ALWAYS, lse_bound=ALWAYS)


@pytest.mark.parametrize(("tier", "storage"), ENGINES)
def test_values_of_unlike_size_in_one_page(tier: str, storage: str) -> None:
    """Small values with large weights beside large values with small weights, and the other way round."""
    case = Case(tier=tier, storage=storage, heads=(2, 1), dims=(16, 16), window=512, scale=1.0)
    for power in (2, 4, 8, 14):
        for direction in (1.0, -1.0):
            stream = Stream(case)
            k, v = stream.draw(300)
            k *= 0.1
            steps = stream.rng.uniform(0, 1, 300).astype(np.float32)
            k[:, 0, 0] = direction * steps
            stream.append(k, v * (10.0**power) ** steps[:, None, None])
            q = stream.queries(1)
            q[..., 0] = np.log(10.0**power)
            stream.check(q, bound=ALWAYS, lse_bound=None)


@pytest.mark.parametrize("mass", [1.0, 8.0, 32.0, 64.0])
@pytest.mark.parametrize(("tier", "storage"), ENGINES)
def test_near_ties(tier: str, storage: str, mass: float) -> None:
    """Keys far apart whose scores nearly tie: the query elements that decide differ by half an int16 step.

    ``mass`` is scale · max|q| · max‖k‖₁. A query of 15 bits moves scores by at most mass / 2**15.
    """
    case = Case(tier=tier, storage=storage, heads=(1, 1), dims=(64, 8), window=128, scale=1.0)
    for dim in (2, 64):
        for steps in (0.25, 0.49, 0.5, 0.51, 0.75, 1.5):
            stream = Stream(case)
            k, v = np.zeros((2, 1, 64), np.float32), np.ones((2, 1, 8), np.float32)
            k[0, 0, : dim // 2] = mass / (dim // 2)
            k[1, 0, dim // 2 : dim] = mass / (dim // 2)
            v[1] = -1.0
            q = np.zeros((1, 1, 64), np.float32)
            q[0, 0, :dim] = 0.9
            q[0, 0, 63] = 1.0
            q[0, 0, : dim // 2] -= steps / 16383
            stream.append(k, v)
            stream.check(q, bound=ALWAYS, lse_bound=ALWAYS)


@pytest.mark.parametrize("channels", [1, 4])
@pytest.mark.parametrize("shape", ["constant", "spread"])
@pytest.mark.parametrize(("tier", "storage"), ENGINES)
def test_outlier_channels_of_keys(tier: str, storage: str, shape: str, channels: int) -> None:
    """Key channels 50 times the others, as key biases make them; the query weighs them down again."""
    case = Case(tier=tier, storage=storage, window=256, sinks=4)
    stream = Stream(case, seed=2)
    k, v = stream.draw(600)
    k[..., :channels] = k[..., :channels] + 50 if shape == "constant" else k[..., :channels] * 50
    stream.append(k, v)
    q = stream.queries(1)
    stream.check(q, bound=ALWAYS, lse_bound=None)
    q[..., :channels] /= 50
    stream.check(q, bound=ALWAYS, lse_bound=None)


def test_the_format_bounds_what_outliers_cost() -> None:
    """Without centring a key row's error is half its scale: max|k| / 127 / 2, outliers or not."""
    stream = Stream(Case(tier=ENGINES[0][0], storage="int8"))
    k, v = stream.draw(100)
    k[..., 0] += 50
    stream.append(k, v)
    stored, _ = stream.held(np.arange(100))
    _, scales = reference.quantise_rows(k)
    assert (np.abs(stored - k).max(axis=-1) <= scales / 2 * (1 + 1e-6)).all()
