from rondel.v1 import rope_pb2 as _rope_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StorageType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STORAGE_TYPE_UNSPECIFIED: _ClassVar[StorageType]
    STORAGE_TYPE_INT8: _ClassVar[StorageType]
    STORAGE_TYPE_FLOAT32: _ClassVar[StorageType]
STORAGE_TYPE_UNSPECIFIED: StorageType
STORAGE_TYPE_INT8: StorageType
STORAGE_TYPE_FLOAT32: StorageType

class LayerGroup(_message.Message):
    __slots__ = ("layers", "query_heads", "kv_heads", "key_dim", "value_dim", "window", "sinks", "reserve", "storage", "scale", "rope", "causal", "window_right", "centring")
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    QUERY_HEADS_FIELD_NUMBER: _ClassVar[int]
    KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    KEY_DIM_FIELD_NUMBER: _ClassVar[int]
    VALUE_DIM_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    SINKS_FIELD_NUMBER: _ClassVar[int]
    RESERVE_FIELD_NUMBER: _ClassVar[int]
    STORAGE_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    ROPE_FIELD_NUMBER: _ClassVar[int]
    CAUSAL_FIELD_NUMBER: _ClassVar[int]
    WINDOW_RIGHT_FIELD_NUMBER: _ClassVar[int]
    CENTRING_FIELD_NUMBER: _ClassVar[int]
    layers: _containers.RepeatedScalarFieldContainer[int]
    query_heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    window: int
    sinks: int
    reserve: int
    storage: StorageType
    scale: float
    rope: _rope_pb2.Rope
    causal: bool
    window_right: int
    centring: bool
    def __init__(self, layers: _Optional[_Iterable[int]] = ..., query_heads: _Optional[int] = ..., kv_heads: _Optional[int] = ..., key_dim: _Optional[int] = ..., value_dim: _Optional[int] = ..., window: _Optional[int] = ..., sinks: _Optional[int] = ..., reserve: _Optional[int] = ..., storage: _Optional[_Union[StorageType, str]] = ..., scale: _Optional[float] = ..., rope: _Optional[_Union[_rope_pb2.Rope, _Mapping]] = ..., causal: _Optional[bool] = ..., window_right: _Optional[int] = ..., centring: _Optional[bool] = ...) -> None: ...

class StreamSpec(_message.Message):
    __slots__ = ("groups", "max_length")
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    MAX_LENGTH_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[LayerGroup]
    max_length: int
    def __init__(self, groups: _Optional[_Iterable[_Union[LayerGroup, _Mapping]]] = ..., max_length: _Optional[int] = ...) -> None: ...
