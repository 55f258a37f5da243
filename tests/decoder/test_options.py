"""What options refuse by themselves, and against the rows and the layer that they are meant for."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from rondel import Arena, AttendOptions, DecoderSession, StreamSpec
from rondel.decoder.batch import Step, run_steps
from rondel.decoder.errors import InvalidRequest, InvalidShape, InvalidSpec, RondelError, ValueRange
from rondel.decoder.spec import LayerGroup

NAN, INF = math.nan, math.inf


def floats(*shape: int, fill: float = 0.0) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.full(shape, fill, np.float32)


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        *(("temperature", value, InvalidRequest) for value in (0, -1.0, NAN, INF, "1", True, None, 10**400)),
        *(("scale", value, InvalidRequest) for value in (0.0, -1.0, NAN, INF, 10001.0, "1", True)),
        *(("softcap", value, InvalidRequest) for value in (0.0, -1.0, NAN, INF, 1e16, 1e-16, False)),
        *(("bias_first", value, InvalidRequest) for value in (-1, 1.0, True, 1 << 49)),
        ("alibi", floats(2, 2), InvalidShape),
        ("alibi", np.zeros(4), InvalidShape),
        ("alibi", [0.0] * 4, InvalidShape),
        *(("alibi", floats(4, fill=x), ValueRange) for x in (NAN, INF, -INF, 1e16)),
        ("bias", floats(4, 4), InvalidShape),
        ("bias", np.ones((1, 1, 4), np.bool_), InvalidShape),
        *(("bias", floats(1, 1, 4, fill=x), ValueRange) for x in (NAN, INF, 2e38)),
        ("mask", floats(1, 1, 4), InvalidShape),
        ("mask", np.ones((1, 1, 4), np.uint8), InvalidShape),
        ("mask", np.ones(4, np.bool_), InvalidShape),
        ("null_logit", floats(1, 4), InvalidShape),
        *(("null_logit", floats(4, fill=x), ValueRange) for x in (NAN, INF)),
        *(
            ("ranges", value, InvalidRequest)
            for value in (
                *(5, "ab", ((1, 2, 3),), (4, 8), ((2, 2),), ((5, 3),), ((-1, 3),), ((0.0, 3),)),
                *(((0, 4), (3, 5)), ((6, 8), (1, 2)), ((0, (1 << 48) + 1),), ((0, True),)),
            )
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_was_got(
    field: str, value: object, error: type[RondelError]
) -> None:
    with pytest.raises(error, match=f"{field} must .*got") as caught:
        AttendOptions(**{field: value})  # type: ignore[arg-type]
    assert caught.value.facts.get("field", caught.value.facts.get("array")) == field


def test_what_may_be_extreme_is_taken() -> None:
    lowest = float(np.finfo(np.float32).min)  # what other libraries hide keys with
    options = AttendOptions(
        scale=1e4,
        softcap=np.float32(50),
        bias=np.array([[[lowest, -INF, 1e38]]], np.float32),
        null_logit=floats(4, fill=-INF),
        ranges=[[0, 1], [1, 3]],  # type: ignore[arg-type]
        bias_first=np.int64(3),  # type: ignore[arg-type]
    )
    assert options.ranges == ((0, 1), (1, 3))
    assert (type(options.softcap), type(options.bias_first)) == (float, int)
    assert AttendOptions(ranges=()).ranges == ()
    assert AttendOptions(bias=floats(1, 1, 0)).bias is not None


def group(**kwargs: Any) -> LayerGroup:
    return LayerGroup(
        layers=(0,), query_heads=4, kv_heads=2, key_dim=8, value_dim=8, storage="float32", **kwargs
    )


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (AttendOptions(alibi=floats(2)), InvalidShape),
        (AttendOptions(null_logit=floats(5)), InvalidShape),
        (AttendOptions(bias=floats(2, 1, 9)), InvalidShape),  # kv heads are not enough
        (AttendOptions(bias=floats(1, 3, 9)), InvalidShape),
        (AttendOptions(mask=np.ones((4, 3, 9), np.bool_)), InvalidShape),
        (AttendOptions(mask=np.ones((1, 1, 8), np.bool_)), InvalidShape),  # no column for the last key
        (AttendOptions(bias=floats(1, 2, 9), bias_first=1), InvalidShape),  # none for the first
        (AttendOptions(bias=floats(1, 1, 0)), InvalidShape),
        (AttendOptions(temperature=1e-9), InvalidRequest),
        ({"softcap": 3.0}, InvalidRequest),
    ],
)
def test_options_that_do_not_fit_the_call_are_refused_and_nothing_changes(
    options: Any, error: type[RondelError]
) -> None:
    rng = np.random.default_rng(0)
    with DecoderSession(StreamSpec(groups=(group(window=64),)), Arena(4 << 20)) as session:
        k, v = rng.standard_normal((2, 9, 2, 8), np.float32)
        session.append(0, k[:7], v[:7])
        q = rng.standard_normal((2, 4, 8), np.float32)
        before = session.attend(0, q)
        step = q, k[7:], v[7:]
        for call in (
            lambda: session.step(0, *step, options=options),
            lambda: session.step_all(*(x[None] for x in step), options=options),
        ):
            with pytest.raises(error, match="got"):
                call()
        (outcome,) = run_steps([Step(session, 0, *step, options)])
        assert type(outcome) is error
        assert (session.length, session.high_water) == (7, 7)
        np.testing.assert_array_equal(session.attend(0, q), before)
        session.append(0, k[7:], v[7:])
        for ask in (session.attend, session.explain):
            with pytest.raises(error, match="got"):
                ask(0, q, options=options)  # type: ignore[operator]


def test_a_group_says_what_its_sides_may_be() -> None:
    assert group(window=8, causal=False, window_right=3).placed
    assert not group(causal=False).placed
    for field, wrong in {
        "causal": {"causal": 0},
        "window_right": {"window": 8, "window_right": 1},
        "sinks": {"window": 8, "sinks": 1, "causal": False},
    }.items():
        with pytest.raises(InvalidSpec, match="got") as caught:
            group(**wrong)
        assert caught.value.field == field
    for value in (-1, 1 << 25, True, 0.5):
        with pytest.raises(InvalidSpec, match="window_right"):
            group(window=8, causal=False, window_right=value)
    with pytest.raises(InvalidSpec, match="window_right"):
        group(causal=False, window_right=1)


def test_the_ring_holds_both_sides_of_the_window() -> None:
    assert group(window=128).capacity == 256
    assert group(window=128, causal=False, window_right=1).capacity == 384
    assert group(window=100, causal=False, window_right=20, reserve=8).capacity == 256
    assert group(causal=False).capacity is None


def test_rows_without_a_position_take_none_and_no_slopes() -> None:
    spec = StreamSpec(groups=(group(causal=False),), max_length=64)
    q = np.ones((1, 4, 8), np.float32)
    with DecoderSession(spec, Arena(4 << 20)) as session:
        with pytest.raises(InvalidRequest, match="position must be None"):
            session.attend(0, q, position=0)
        with pytest.raises(InvalidRequest, match="alibi must be None"):
            session.attend(0, q, options=AttendOptions(alibi=floats(4)))
