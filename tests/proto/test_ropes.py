"""Rotary embeddings to messages and back."""

import pytest

from rondel.decoder.errors import InvalidSpec
from rondel.decoder.rope import Rope
from rondel.decoder.rope_scaling import (
    DivisorScaling,
    LinearScaling,
    Llama3Scaling,
    NtkScaling,
    YarnScaling,
)
from rondel.decoder.spec import StreamSpec
from rondel.v1 import rope_pb2, spec_pb2
from rondel.v1.ropes import rope_from_message, rope_to_message
from rondel.v1.specs import spec_from_message, spec_to_message

ROPES = [
    Rope(),
    Rope(theta=500_000.0, dim=6, interleaved=True),
    Rope(scaling=LinearScaling(4.0)),
    Rope(dim=4, scaling=NtkScaling(2.5)),
    Rope(scaling=YarnScaling(32.0, 4096)),
    Rope(scaling=YarnScaling(40.0, 2**20, 16.0, 2.0, attention_factor=1.0, truncate=False)),
    Rope(interleaved=True, scaling=Llama3Scaling(8.0, 1.0, 4.0, 8192)),
    Rope(dim=6, scaling=DivisorScaling((1.0, 2.5, 8.0))),
]


@pytest.mark.parametrize("rope", ROPES, ids=repr)
def test_a_rope_comes_back(rope: Rope) -> None:
    raw = rope_to_message(rope).SerializeToString()
    assert rope_from_message(rope_pb2.Rope.FromString(raw)) == rope
    spec = StreamSpec.uniform(layers=2, query_heads=2, kv_heads=1, head_dim=8, window=16, rope=rope)
    message = spec_pb2.StreamSpec.FromString(spec_to_message(spec).SerializeToString())
    assert spec_from_message(message) == spec
    assert message.groups[0].rope.dim == (8 if rope.dim is None else rope.dim)


def test_no_rope_is_no_message() -> None:
    spec = StreamSpec.uniform(layers=1, query_heads=2, kv_heads=1, head_dim=8, window=16)
    message = spec_to_message(spec)
    assert not message.groups[0].HasField("rope")
    message.groups[0].rope.SetInParent()  # there, and all of it left to defaults
    assert spec_from_message(message).groups[0].rope == Rope(dim=8)


def test_defaults() -> None:
    message = rope_pb2.Rope(yarn=rope_pb2.YarnScaling(factor=4.0, original_context=4096))
    assert rope_from_message(message) == Rope(scaling=YarnScaling(4.0, 4096))


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (rope_pb2.Rope(theta=0.0), "theta"),
        (rope_pb2.Rope(theta=float("nan")), "theta"),
        (rope_pb2.Rope(dim=0), "dim"),
        (rope_pb2.Rope(dim=7), "dim"),
        (rope_pb2.Rope(dim=2**32 - 1), "dim"),
        (rope_pb2.Rope(linear=rope_pb2.LinearScaling()), "factor"),
        (rope_pb2.Rope(ntk=rope_pb2.NtkScaling(factor=-1.0)), "factor"),
        (rope_pb2.Rope(yarn=rope_pb2.YarnScaling(factor=4.0)), "original_context"),
        (rope_pb2.Rope(llama3=rope_pb2.Llama3Scaling(factor=float("inf"))), "factor"),
        (rope_pb2.Rope(divisor=rope_pb2.DivisorScaling(divisors=[0.0])), "divisors"),
        (rope_pb2.Rope(dim=4, divisor=rope_pb2.DivisorScaling(divisors=[1.0])), "divisors"),
        (rope_pb2.Rope(divisor=rope_pb2.DivisorScaling(divisors=[1.0] * 100_000)), "divisors"),
    ],
)
def test_impossible_ropes_are_refused(message: rope_pb2.Rope, field: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        rope_from_message(message)
    assert caught.value.field == field
