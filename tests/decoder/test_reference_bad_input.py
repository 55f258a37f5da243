"""What the reference refuses: it must not answer a question that nobody meant to ask."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from loops import draw

from rondel.decoder import reference
from rondel.decoder.errors import InvalidRequest, InvalidShape, ValueRange

Q, K, V = draw(2, 5, 4, 2, dk=3, dv=3)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("q", {"q": Q[0]}),
        ("q", {"q": Q[:, :0]}),
        ("q", {"q": Q[..., :0], "k": K[..., :0]}),
        ("k", {"k": K[..., :2]}),
        ("k", {"k": np.repeat(K, 2, axis=1)[:, :3]}),
        ("v", {"v": V[:4]}),
        ("v", {"v": np.repeat(V, 2, axis=1)[:, :3]}),
        ("bias", {"bias": np.zeros((3, 5))}),
        ("mask", {"mask": np.ones((2, 6), bool)}),
        ("mask", {"mask": np.zeros((2, 5))}),
        ("alibi", {"alibi": [1.0, 2.0]}),
        ("null_logit", {"null_logit": 0.0}),
        ("key_positions", {"key_positions": [0, 1, 2, 3]}),
    ],
)
def test_arrays_that_do_not_fit(name: str, change: dict[str, Any]) -> None:
    arguments = {"q": Q, "k": K, "v": V} | change
    with pytest.raises(InvalidShape, match=f"^{name} must be .*, got ") as caught:
        reference.attend(**arguments)
    assert caught.value.facts["field"] == name


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["q", "k", "v", "bias", "alibi", "null_logit"])
def test_numbers_that_are_none(name: str, value: float) -> None:
    arguments: dict[str, Any] = {"q": Q, "k": K, "v": V, "bias": np.zeros((2, 5)), "alibi": [0.0] * 4}
    arguments["null_logit"] = [0.0] * 4
    changed = np.array(arguments[name])
    changed.flat[0] = value
    arguments[name] = changed
    if name in ("bias", "null_logit") and value == -np.inf:
        assert np.isfinite(reference.attend(**arguments)[0]).all()
        return
    with pytest.raises(ValueRange, match=f"{name} must hold finite numbers"):
        reference.attend(**arguments)


def test_scores_beyond_float64() -> None:
    with pytest.raises(ValueRange, match="scores must be finite"):
        reference.attend(Q * 1e200, K * 1e200, V)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0},
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"softcap": 0.0},
        {"softcap": -2.0},
        {"softcap": float("inf")},
        {"window": 0},
        {"sinks": -1},
        {"window_right": -1},
        {"ranges": [(4, 3)]},
        {"causal": False, "window": 3},
        {"key_positions": [0, 1, 1, 2, 3]},
    ],
    ids=str,
)
def test_options_that_mean_nothing(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="got"):
        reference.attend(Q, K, V, **options)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_scores_that_are_none(value: float) -> None:
    with pytest.raises(ValueRange, match="scores must hold finite numbers or -inf"):
        reference.softmax([[[0.0, value]]])


def test_weights_of_another_form() -> None:
    with pytest.raises(InvalidShape, match="weights must be"):
        reference.weighted_sum(np.ones((1, 5)), V)


def test_every_public_name_is_there() -> None:
    for name in reference.__all__:
        assert getattr(reference, name) is not None
