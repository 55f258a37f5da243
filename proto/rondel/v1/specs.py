"""Stream specifications to messages and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rondel.decoder.errors import InvalidRequest, InvalidSpec
from rondel.decoder.spec import MAX_LAYERS, LayerGroup, StreamSpec
from rondel.v1 import spec_pb2
from rondel.v1.ropes import rope_from_message, rope_to_message

_STORAGE: Final[Mapping[str, spec_pb2.StorageType]] = {
    "int8": spec_pb2.STORAGE_TYPE_INT8,
    "float32": spec_pb2.STORAGE_TYPE_FLOAT32,
}
_STORAGE_NAMES: Final[Mapping[int, str]] = {
    spec_pb2.STORAGE_TYPE_UNSPECIFIED: "int8",
    **{value: name for name, value in _STORAGE.items()},
}


def storage_to_message(storage: str) -> spec_pb2.StorageType:
    """The enum value of a storage name. Raises InvalidSpec."""
    try:
        return _STORAGE[storage]
    except KeyError:
        raise InvalidSpec(
            f"storage must be one of {', '.join(_STORAGE)}, got {storage!r}", field="storage"
        ) from None


def storage_from_message(storage: int) -> str:
    """The storage name of an enum value, unspecified being int8. Raises InvalidSpec."""
    name = _STORAGE_NAMES.get(storage)
    if name is None:
        raise InvalidSpec(f"storage must be int8 or float32, got number {storage}", field="storage")
    return name


def spec_to_message(spec: StreamSpec, *, in_force: bool = False) -> spec_pb2.StreamSpec:
    """The message for a specification; ``in_force`` writes out the scale where it is a default."""
    return spec_pb2.StreamSpec(
        groups=[_group_to_message(group, in_force) for group in spec.groups], max_length=spec.max_length
    )


def spec_from_message(message: spec_pb2.StreamSpec) -> StreamSpec:
    """The specification that a message describes.

    Raises:
        InvalidRequest: it has more groups than a stream can have layers.
        InvalidSpec: it is impossible.
    """
    if len(message.groups) > MAX_LAYERS:
        raise InvalidRequest(
            f"a stream has at most {MAX_LAYERS} layer groups, got {len(message.groups)}", field="groups"
        )
    return StreamSpec(
        groups=tuple(_group_from_message(group) for group in message.groups),
        max_length=message.max_length if message.HasField("max_length") else None,
    )


def _group_to_message(group: LayerGroup, in_force: bool) -> spec_pb2.LayerGroup:
    return spec_pb2.LayerGroup(
        layers=group.layers,
        query_heads=group.query_heads,
        kv_heads=group.kv_heads,
        key_dim=group.key_dim,
        value_dim=group.value_dim,
        window=group.window,
        sinks=group.sinks,
        reserve=group.reserve,
        storage=storage_to_message(group.storage),
        scale=group.score_scale if in_force else group.scale,
        rope=None if group.rope is None else rope_to_message(group.rope),
        # The default is not written, so that a server that does not know the field is told nothing of it.
        causal=None if group.causal and not in_force else group.causal,
        window_right=group.window_right,
        centring=group.centring,
    )


def _group_from_message(message: spec_pb2.LayerGroup) -> LayerGroup:
    if len(message.layers) > MAX_LAYERS:
        raise InvalidSpec(
            f"a layer group has at most {MAX_LAYERS} layers, got {len(message.layers)}", field="layers"
        )
    return LayerGroup(
        layers=tuple(message.layers),
        query_heads=message.query_heads,
        kv_heads=message.kv_heads,
        key_dim=message.key_dim,
        value_dim=message.value_dim,
        window=message.window if message.HasField("window") else None,
        sinks=message.sinks,
        reserve=message.reserve,
        storage=storage_from_message(message.storage),
        scale=message.scale if message.HasField("scale") else None,
        rope=rope_from_message(message.rope) if message.HasField("rope") else None,
        causal=message.causal if message.HasField("causal") else True,
        window_right=message.window_right,
        centring=message.centring,
    )
