"""Impossible descriptions of a stream: refused when they are made, with the field that is wrong."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from rondel.decoder.errors import InvalidLayer, InvalidSpec
from rondel.decoder.spec import LayerGroup, StreamSpec

SOUND: dict[str, Any] = {
    "layers": (0, 1), "query_heads": 6, "kv_heads": 3, "key_dim": 64, "value_dim": 32, "window": 256,
    "sinks": 4, "reserve": 64, "storage": "int8", "scale": 0.125,
}  # fmt: skip
NOT_WHOLE = ["4", 4.0, 4.5, True, float("nan"), float("inf"), (4,), 4j]
NO_SIZE = [None, 0, -1, -(2**63), 2**31, 2**63, 10**30, *NOT_WHOLE]
WRONG: dict[str, list[Any]] = {
    "layers": [(), (-1, 0), (0, 0), (1, 0), (0, 1024), (0, 2**63), ("0",), (0.0,), (True,), (None,), 2, None],
    "query_heads": [*NO_SIZE, 7, 1, 1026],
    "kv_heads": [*NO_SIZE, 1025],
    "key_dim": [*NO_SIZE, 1025],
    "value_dim": [*NO_SIZE, 1025],
    "window": [0, -1, -(2**63), (1 << 24) + 1, 2**63, 10**30, *NOT_WHOLE],
    "sinks": [None, -1, -(2**63), 129, 2**63, 10**30, *NOT_WHOLE],
    "reserve": [None, -1, -(2**63), (1 << 20) + 1, 2**63, 10**30, *NOT_WHOLE],
    "storage": ["", "int4", "INT8", "fp8", "float16", None, 8, b"int8", ["int8"], {}],
    "scale": [0.0, -0.125, 1e5, float("nan"), float("inf"), -float("inf"), "0.125", True, 0.125j, (0.125,)],
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in WRONG.items() for value in values], ids=repr
)
def test_every_wrong_field_of_a_group_is_named(field: str, value: Any) -> None:
    with pytest.raises(InvalidSpec) as caught:
        LayerGroup(**{**SOUND, field: value})
    assert caught.value.field == field
    assert "got" in caught.value.message


@pytest.mark.parametrize("value", [3, 4, 5, 12])
def test_query_heads_must_be_a_multiple_of_kv_heads(value: int) -> None:
    if 12 % value:
        with pytest.raises(InvalidSpec, match=f"multiple of kv_heads, got 12 and {value}") as caught:
            LayerGroup(**{**SOUND, "query_heads": 12, "kv_heads": value})
        assert caught.value.field == "query_heads"
    else:
        assert LayerGroup(**{**SOUND, "query_heads": 12, "kv_heads": value}).group_size == 12 // value


@pytest.mark.parametrize("value", [0.0, -0.0, 1, -1, 129, 2**63, *NOT_WHOLE, None, False], ids=repr)
@pytest.mark.parametrize("field", ["sinks", "reserve"])
def test_without_a_window_nothing_is_kept_or_undone(field: str, value: Any) -> None:
    with pytest.raises(InvalidSpec) as caught:
        LayerGroup(**{**SOUND, "window": None, "sinks": 0, "reserve": 0, field: value})
    assert caught.value.field == field


@pytest.mark.parametrize("value", [0, -1, 2**48 + 1, 2**63, 10**30, *NOT_WHOLE], ids=repr)
def test_impossible_lengths(value: Any) -> None:
    for window in (None, 256):
        group = LayerGroup(**{**SOUND, "window": window, "sinks": 0, "reserve": 0})
        with pytest.raises(InvalidSpec) as caught:
            StreamSpec(groups=(group,), max_length=value)
        assert caught.value.field == "max_length"


def test_an_unbounded_window_needs_a_length() -> None:
    group = LayerGroup(**{**SOUND, "window": None, "sinks": 0, "reserve": 0})
    with pytest.raises(InvalidSpec, match="max_length is needed") as caught:
        StreamSpec(groups=(group,))
    assert caught.value.field == "max_length"


@pytest.mark.parametrize("value", [(), None, 3, (None,), ("group",), (SOUND,), SOUND], ids=repr)
def test_groups_that_are_none(value: Any) -> None:
    with pytest.raises(InvalidSpec) as caught:
        StreamSpec(groups=value, max_length=100)
    assert caught.value.field == "groups"


@pytest.mark.parametrize("layers", [((1, 2),), ((0, 1), (1, 2)), ((0,), (2,)), ((0, 1), (0, 1))], ids=repr)
def test_layers_missing_or_named_twice(layers: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(InvalidSpec) as caught:
        StreamSpec(groups=tuple(LayerGroup(**{**SOUND, "layers": numbers}) for numbers in layers))
    assert caught.value.field == "layers"


@pytest.mark.parametrize("layers", [0, -1, 1025, 2**63, *NOT_WHOLE, None], ids=repr)
def test_uniform_needs_a_number_of_layers(layers: Any) -> None:
    with pytest.raises(InvalidSpec) as caught:
        StreamSpec.uniform(layers=layers, query_heads=1, kv_heads=1, head_dim=8, window=8)
    assert caught.value.field == "layers"


def test_the_largest_sizes_are_accepted() -> None:
    group = LayerGroup(
        layers=tuple(range(1024)), query_heads=1024, kv_heads=1024, key_dim=1024, value_dim=1024,
        window=1 << 24, sinks=128, reserve=1 << 20, storage="float32", scale=1e4,
    )  # fmt: skip
    spec = StreamSpec(groups=[group], max_length=2**48)  # type: ignore[arg-type]
    assert (spec.layers, spec.length_limit, spec.max_chunk) == (1024, 2**48, (1 << 20) + 1)
    assert spec.group(1023) is group


def test_what_a_sound_description_says() -> None:
    near, far = LayerGroup(**SOUND), LayerGroup(**{**SOUND, "layers": [2], "window": None, "sinks": 0,
                                                   "reserve": 0, "scale": None})  # fmt: skip
    spec = StreamSpec(groups=(near, far), max_length=1000)
    assert (near.group_size, near.max_chunk, near.score_scale) == (2, 65, 0.125)
    assert (far.layers, far.max_chunk, far.score_scale) == ((2,), None, 0.125)
    assert (spec.layers, spec.max_chunk, spec.length_limit) == (3, 65, 1000)
    assert [spec.group_index(layer) for layer in range(3)] == [0, 0, 1]
    for layer in (-1, 3, 1.0, True, "1", None):
        with pytest.raises(InvalidLayer) as caught:
            spec.group(layer)  # type: ignore[arg-type]
        assert caught.value.layers == 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        near.window = 3  # type: ignore[misc]
    assert hash(spec) == hash(StreamSpec(groups=(near, far), max_length=1000))
