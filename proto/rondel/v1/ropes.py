"""Rotary embeddings to messages and back."""

from __future__ import annotations

from rondel.decoder.errors import InvalidSpec
from rondel.decoder.rope import MAX_DIM, Rope
from rondel.decoder.rope_scaling import (
    DivisorScaling,
    LinearScaling,
    Llama3Scaling,
    NtkScaling,
    Scaling,
    YarnScaling,
)
from rondel.v1 import rope_pb2


def rope_to_message(rope: Rope) -> rope_pb2.Rope:
    """The message for a rotary embedding."""
    message = rope_pb2.Rope(theta=rope.theta, dim=rope.dim, interleaved=rope.interleaved)
    match rope.scaling:
        case LinearScaling(factor):
            message.linear.factor = factor
        case NtkScaling(factor):
            message.ntk.factor = factor
        case YarnScaling() as yarn:
            message.yarn.CopyFrom(
                rope_pb2.YarnScaling(
                    factor=yarn.factor,
                    original_context=yarn.original_context,
                    beta_fast=yarn.beta_fast,
                    beta_slow=yarn.beta_slow,
                    attention_factor=yarn.attention_factor,
                    truncate=yarn.truncate,
                )
            )
        case Llama3Scaling() as llama3:
            message.llama3.CopyFrom(
                rope_pb2.Llama3Scaling(
                    factor=llama3.factor,
                    low_freq_factor=llama3.low_freq_factor,
                    high_freq_factor=llama3.high_freq_factor,
                    original_context=llama3.original_context,
                )
            )
        case DivisorScaling(divisors):
            message.divisor.divisors.extend(divisors)
        case None:
            pass
    return message


def rope_from_message(message: rope_pb2.Rope) -> Rope:
    """The rotary embedding that a message describes. Raises InvalidSpec."""
    return Rope(
        theta=message.theta if message.HasField("theta") else 10_000.0,
        dim=message.dim if message.HasField("dim") else None,
        interleaved=message.interleaved,
        scaling=_scaling(message),
    )


def _scaling(message: rope_pb2.Rope) -> Scaling | None:
    match message.WhichOneof("scaling"):
        case "linear":
            return LinearScaling(message.linear.factor)
        case "ntk":
            return NtkScaling(message.ntk.factor)
        case "yarn":
            yarn = message.yarn
            return YarnScaling(
                factor=yarn.factor,
                original_context=yarn.original_context,
                beta_fast=yarn.beta_fast if yarn.HasField("beta_fast") else 32.0,
                beta_slow=yarn.beta_slow if yarn.HasField("beta_slow") else 1.0,
                attention_factor=yarn.attention_factor if yarn.HasField("attention_factor") else None,
                truncate=not yarn.HasField("truncate") or yarn.truncate,
            )
        case "llama3":
            llama3 = message.llama3
            return Llama3Scaling(
                factor=llama3.factor,
                low_freq_factor=llama3.low_freq_factor,
                high_freq_factor=llama3.high_freq_factor,
                original_context=llama3.original_context,
            )
        case "divisor":
            count = len(message.divisor.divisors)
            if count > MAX_DIM // 2:
                raise InvalidSpec(f"there are at most {MAX_DIM // 2} divisors, got {count}", field="divisors")
            return DivisorScaling(tuple(message.divisor.divisors))
        case _:
            return None
