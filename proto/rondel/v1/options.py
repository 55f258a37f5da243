"""Options of attention calls, and what they bring back, to messages and back."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rondel.decoder.errors import InvalidRequest
from rondel.decoder.explanation import Explanation
from rondel.decoder.options import MAX_RANGES, AttendOptions
from rondel.v1 import options_pb2 as pb
from rondel.v1.tensor_pb2 import Tensor
from rondel.v1.wire import from_mask, from_tensor, to_mask, to_tensor

_DEFAULT_TEMPERATURE = 1.0


def options_to_message(options: AttendOptions) -> pb.AttendOptions:
    """The message for options."""
    ranges = None
    if options.ranges is not None:
        ranges = pb.KeyRanges(ranges=[pb.KeyRange(low=low, high=high) for low, high in options.ranges])
    return pb.AttendOptions(
        scale=options.scale,
        temperature=None if options.temperature == _DEFAULT_TEMPERATURE else options.temperature,
        softcap=options.softcap,
        alibi=_sent(options.alibi),
        bias=_sent(options.bias),
        mask=None if options.mask is None else to_mask(options.mask),
        bias_first=options.bias_first,
        ranges=ranges,
        null_logit=_sent(options.null_logit),
    )


def options_from_message(message: pb.AttendOptions) -> AttendOptions:
    """The options that a message describes.

    Raises:
        InvalidRequest, InvalidShape, ValueRange: they cannot be meant.
    """
    ranges = None
    if message.HasField("ranges"):
        if len(message.ranges.ranges) > MAX_RANGES:
            raise InvalidRequest(
                f"a call has at most {MAX_RANGES} ranges, got {len(message.ranges.ranges)}", field="ranges"
            )
        ranges = tuple((run.low, run.high) for run in message.ranges.ranges)
    return AttendOptions(
        scale=message.scale if message.HasField("scale") else None,
        temperature=message.temperature if message.HasField("temperature") else _DEFAULT_TEMPERATURE,
        softcap=message.softcap if message.HasField("softcap") else None,
        alibi=from_tensor(message.alibi, name="alibi") if message.HasField("alibi") else None,
        bias=from_tensor(message.bias, name="bias") if message.HasField("bias") else None,
        mask=from_mask(message.mask, name="mask") if message.HasField("mask") else None,
        bias_first=message.bias_first,
        ranges=ranges,
        null_logit=from_tensor(message.null_logit, name="null_logit")
        if message.HasField("null_logit")
        else None,
    )


def explanation_to_message(explained: Explanation, *, capped: bool) -> pb.Explanation:
    """The message for an explanation; ``capped``: its stage of that name is not the one before it."""
    return pb.Explanation(
        positions=explained.positions.tolist(),
        key_positions=explained.key_positions.tolist(),
        raw=to_tensor(explained.raw),
        capped=to_tensor(explained.capped) if capped else None,
        masked=to_tensor(explained.masked),
        weights=to_tensor(explained.weights),
        null_weight=to_tensor(explained.null_weight),
        lse=to_tensor(explained.lse),
    )


def explanation_from_message(message: pb.Explanation) -> Explanation:
    """The explanation that a message carries. Raises InvalidRequest, InvalidShape for broken tensors."""
    raw = from_tensor(message.raw, name="raw")
    return Explanation(
        positions=np.array(message.positions, np.int64),
        key_positions=np.array(message.key_positions, np.int64),
        raw=raw,
        capped=from_tensor(message.capped, name="capped") if message.HasField("capped") else raw,
        masked=from_tensor(message.masked, name="masked"),
        weights=from_tensor(message.weights, name="weights"),
        null_weight=from_tensor(message.null_weight, name="null_weight"),
        lse=from_tensor(message.lse, name="lse"),
    )


def _sent(array: NDArray[np.float32] | None) -> Tensor | None:
    return None if array is None else to_tensor(array)
