"""Options and explanations to messages and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rondel.decoder.errors import InvalidRequest, InvalidShape, RondelError, ValueRange
from rondel.decoder.explanation import Explanation
from rondel.decoder.options import MAX_RANGES, AttendOptions
from rondel.v1 import options_pb2 as pb
from rondel.v1.options import (
    explanation_from_message,
    explanation_to_message,
    options_from_message,
    options_to_message,
)
from rondel.v1.tensor_pb2 import DTYPE_BFLOAT16, DTYPE_BOOL, Tensor
from rondel.v1.wire import from_mask, to_mask, to_tensor

RNG = np.random.default_rng(0)
BIAS = RNG.standard_normal((2, 3, 5)).astype(np.float32)
BIAS[0, 1, 2] = -np.inf


def through(options: AttendOptions) -> AttendOptions:
    raw = options_to_message(options).SerializeToString()
    return options_from_message(pb.AttendOptions.FromString(raw))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"scale": 0.1, "temperature": 3.0, "softcap": 30.0},
        {"alibi": np.array([0.5, 0.25], np.float32), "null_logit": np.array([-np.inf, 2], np.float32)},
        {"bias": BIAS, "mask": np.isfinite(BIAS), "bias_first": 1 << 40},
        {"bias": BIAS[::-1, :, ::2], "mask": BIAS[:1, :1, ::-1] > 0},
        {"ranges": ()},
        {"ranges": ((0, 3), (3, 9), (100, 1 << 48))},
        {"mask": np.zeros((1, 1, 0), np.bool_)},
    ],
)
def test_options_come_back(fields: dict[str, Any]) -> None:
    back, given = through(AttendOptions(**fields)), AttendOptions(**fields)
    for name in AttendOptions.__dataclass_fields__:
        got, want = getattr(back, name), getattr(given, name)
        if isinstance(want, np.ndarray):
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(got, want)
        else:
            assert got == want, name


def test_options_that_ask_for_nothing_take_no_bytes() -> None:
    assert options_to_message(AttendOptions()).ByteSize() == 0


def test_a_bias_may_come_in_fewer_bits() -> None:
    message = pb.AttendOptions(bias=to_tensor(BIAS, dtype=DTYPE_BFLOAT16))
    np.testing.assert_allclose(options_from_message(message).bias, BIAS, rtol=2**-8)


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (pb.AttendOptions(temperature=0.0), InvalidRequest),  # set, and not the default
        (pb.AttendOptions(scale=float("nan")), InvalidRequest),
        (pb.AttendOptions(bias_first=-1), InvalidRequest),
        (pb.AttendOptions(mask=to_tensor(BIAS)), InvalidRequest),
        (pb.AttendOptions(bias=to_mask(BIAS > 0)), InvalidRequest),
        (pb.AttendOptions(alibi=Tensor()), InvalidRequest),
        (pb.AttendOptions(alibi=to_tensor(BIAS)), InvalidShape),
        (pb.AttendOptions(mask=Tensor(dtype=DTYPE_BOOL, shape=[1, 1, 3], data=b"\1\0")), InvalidShape),
        (pb.AttendOptions(mask=Tensor(dtype=DTYPE_BOOL, shape=[1, 1, -1], data=b"")), InvalidShape),
        (pb.AttendOptions(mask=Tensor(dtype=DTYPE_BOOL, shape=[1, 1, 2], data=b"\1\2")), ValueRange),
        (pb.AttendOptions(bias=to_tensor(np.full((1, 1, 1), np.nan, np.float32))), ValueRange),
        (pb.AttendOptions(ranges=pb.KeyRanges(ranges=[pb.KeyRange(low=3, high=3)])), InvalidRequest),
        (
            pb.AttendOptions(
                ranges=pb.KeyRanges(ranges=[pb.KeyRange(low=i, high=i + 1) for i in range(MAX_RANGES + 1)])
            ),
            InvalidRequest,
        ),
    ],
)
def test_messages_that_cannot_be_meant_are_refused(
    message: pb.AttendOptions, error: type[RondelError]
) -> None:
    with pytest.raises(error, match="got"):
        options_from_message(message)


def test_masks_of_any_shape_and_strides_come_back() -> None:
    mask = RNG.random((4, 6, 5)) < 0.5
    for view in (mask, mask[::2, ::-1], mask.transpose(2, 0, 1), mask[:0], np.bool_(True).reshape(())):
        back = from_mask(Tensor.FromString(to_mask(view).SerializeToString()), name="mask")
        assert back.dtype == np.bool_
        np.testing.assert_array_equal(back, view)


@pytest.mark.parametrize("capped", [False, True])
def test_an_explanation_comes_back(capped: bool) -> None:
    raw = RNG.standard_normal((4, 2, 6)).astype(np.float32)
    explained = Explanation(
        positions=np.array([-1, -1]),
        key_positions=np.arange(3, 9),
        raw=raw,
        capped=np.tanh(raw) if capped else raw,
        masked=np.where(raw > 0, raw, np.float32(-np.inf)),
        weights=np.abs(raw),
        null_weight=np.zeros((2, 4), np.float32),
        lse=np.full((2, 4), -np.inf, np.float32),
    )
    message = explanation_to_message(explained, capped=capped)
    assert message.HasField("capped") == capped
    back = explanation_from_message(pb.Explanation.FromString(message.SerializeToString()))
    for name in Explanation.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(back, name), getattr(explained, name))
