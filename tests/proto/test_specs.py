"""Specifications to messages and back."""

import pytest

from rondel.decoder.errors import InvalidRequest, InvalidSpec
from rondel.decoder.spec import LayerGroup, StreamSpec
from rondel.v1 import spec_pb2
from rondel.v1.specs import spec_from_message, spec_to_message, storage_from_message, storage_to_message

TWO_GROUPS = StreamSpec(
    groups=(
        LayerGroup(
            layers=(0, 2, 3),
            query_heads=8,
            kv_heads=2,
            key_dim=64,
            value_dim=48,
            window=512,
            sinks=4,
            reserve=64,
            storage="float32",
            scale=0.25,
        ),
        LayerGroup(layers=(1,), query_heads=4, kv_heads=4, key_dim=16, value_dim=16),
    ),
    max_length=4096,
)
SEEING = StreamSpec(
    groups=(
        LayerGroup(layers=(0,), query_heads=4, kv_heads=4, key_dim=16, value_dim=16, causal=False),
        LayerGroup(
            layers=(1,), query_heads=4, kv_heads=4, key_dim=16, value_dim=16,
            window=32, causal=False, window_right=8,
        ),
    ),
    max_length=64,
)  # fmt: skip
UNBOUNDED = StreamSpec.uniform(layers=2, query_heads=2, kv_heads=1, head_dim=8, window=16)


@pytest.mark.parametrize("spec", [TWO_GROUPS, UNBOUNDED, SEEING])
def test_a_specification_comes_back(spec: StreamSpec) -> None:
    raw = spec_to_message(spec).SerializeToString()
    assert spec_from_message(spec_pb2.StreamSpec.FromString(raw)) == spec


def test_in_force_means_that_nothing_is_left_to_defaults() -> None:
    message = spec_to_message(UNBOUNDED, in_force=True)
    assert message.groups[0].scale == UNBOUNDED.groups[0].score_scale
    assert message.groups[0].storage == spec_pb2.STORAGE_TYPE_INT8
    assert message.groups[0].causal


def test_unset_storage_is_int8() -> None:
    message = spec_to_message(UNBOUNDED)
    message.groups[0].ClearField("storage")
    assert spec_from_message(message).groups[0].storage == "int8"


def test_unknown_storage_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="number 9"):
        storage_from_message(9)
    with pytest.raises(InvalidSpec, match="'int4'"):
        storage_to_message("int4")


@pytest.mark.parametrize("value", [0, 2**31 - 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("field", ["query_heads", "kv_heads", "key_dim", "value_dim", "window"])
def test_impossible_sizes_are_refused(field: str, value: int) -> None:
    message = spec_to_message(TWO_GROUPS)
    setattr(message.groups[0], field, value)
    with pytest.raises(InvalidSpec) as caught:
        spec_from_message(message)
    assert caught.value.field == field or {caught.value.field, field} == {"query_heads", "kv_heads"}


@pytest.mark.parametrize("length", [0, -1, 2**63 - 1, -(2**63)])
def test_impossible_lengths_are_refused(length: int) -> None:
    message = spec_to_message(TWO_GROUPS)
    message.max_length = length
    with pytest.raises(InvalidSpec, match="max_length"):
        spec_from_message(message)


def test_floods_are_refused_at_once() -> None:
    message = spec_to_message(UNBOUNDED)
    message.groups[0].layers.extend(range(100_000))
    with pytest.raises(InvalidSpec, match="at most 1024 layers"):
        spec_from_message(message)
    message = spec_pb2.StreamSpec(groups=[spec_pb2.LayerGroup()] * 5000)
    with pytest.raises(InvalidRequest, match="at most 1024 layer groups"):
        spec_from_message(message)
