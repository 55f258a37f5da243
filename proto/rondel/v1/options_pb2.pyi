from rondel.v1 import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AttendOptions(_message.Message):
    __slots__ = ("scale", "temperature", "softcap", "alibi", "bias", "mask", "bias_first", "ranges", "null_logit")
    SCALE_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    SOFTCAP_FIELD_NUMBER: _ClassVar[int]
    ALIBI_FIELD_NUMBER: _ClassVar[int]
    BIAS_FIELD_NUMBER: _ClassVar[int]
    MASK_FIELD_NUMBER: _ClassVar[int]
    BIAS_FIRST_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    NULL_LOGIT_FIELD_NUMBER: _ClassVar[int]
    scale: float
    temperature: float
    softcap: float
    alibi: _tensor_pb2.Tensor
    bias: _tensor_pb2.Tensor
    mask: _tensor_pb2.Tensor
    bias_first: int
    ranges: KeyRanges
    null_logit: _tensor_pb2.Tensor
    def __init__(self, scale: _Optional[float] = ..., temperature: _Optional[float] = ..., softcap: _Optional[float] = ..., alibi: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., bias: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., mask: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., bias_first: _Optional[int] = ..., ranges: _Optional[_Union[KeyRanges, _Mapping]] = ..., null_logit: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ...) -> None: ...

class KeyRanges(_message.Message):
    __slots__ = ("ranges",)
    RANGES_FIELD_NUMBER: _ClassVar[int]
    ranges: _containers.RepeatedCompositeFieldContainer[KeyRange]
    def __init__(self, ranges: _Optional[_Iterable[_Union[KeyRange, _Mapping]]] = ...) -> None: ...

class KeyRange(_message.Message):
    __slots__ = ("low", "high")
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    low: int
    high: int
    def __init__(self, low: _Optional[int] = ..., high: _Optional[int] = ...) -> None: ...

class Explanation(_message.Message):
    __slots__ = ("positions", "key_positions", "raw", "capped", "masked", "weights", "null_weight", "lse")
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    KEY_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    RAW_FIELD_NUMBER: _ClassVar[int]
    CAPPED_FIELD_NUMBER: _ClassVar[int]
    MASKED_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    NULL_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    LSE_FIELD_NUMBER: _ClassVar[int]
    positions: _containers.RepeatedScalarFieldContainer[int]
    key_positions: _containers.RepeatedScalarFieldContainer[int]
    raw: _tensor_pb2.Tensor
    capped: _tensor_pb2.Tensor
    masked: _tensor_pb2.Tensor
    weights: _tensor_pb2.Tensor
    null_weight: _tensor_pb2.Tensor
    lse: _tensor_pb2.Tensor
    def __init__(self, positions: _Optional[_Iterable[int]] = ..., key_positions: _Optional[_Iterable[int]] = ..., raw: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., capped: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., masked: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., weights: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., null_weight: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., lse: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ...) -> None: ...
