from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Rope(_message.Message):
    __slots__ = ("theta", "dim", "interleaved", "linear", "ntk", "yarn", "llama3", "divisor")
    THETA_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    INTERLEAVED_FIELD_NUMBER: _ClassVar[int]
    LINEAR_FIELD_NUMBER: _ClassVar[int]
    NTK_FIELD_NUMBER: _ClassVar[int]
    YARN_FIELD_NUMBER: _ClassVar[int]
    LLAMA3_FIELD_NUMBER: _ClassVar[int]
    DIVISOR_FIELD_NUMBER: _ClassVar[int]
    theta: float
    dim: int
    interleaved: bool
    linear: LinearScaling
    ntk: NtkScaling
    yarn: YarnScaling
    llama3: Llama3Scaling
    divisor: DivisorScaling
    def __init__(self, theta: _Optional[float] = ..., dim: _Optional[int] = ..., interleaved: _Optional[bool] = ..., linear: _Optional[_Union[LinearScaling, _Mapping]] = ..., ntk: _Optional[_Union[NtkScaling, _Mapping]] = ..., yarn: _Optional[_Union[YarnScaling, _Mapping]] = ..., llama3: _Optional[_Union[Llama3Scaling, _Mapping]] = ..., divisor: _Optional[_Union[DivisorScaling, _Mapping]] = ...) -> None: ...

class LinearScaling(_message.Message):
    __slots__ = ("factor",)
    FACTOR_FIELD_NUMBER: _ClassVar[int]
    factor: float
    def __init__(self, factor: _Optional[float] = ...) -> None: ...

class NtkScaling(_message.Message):
    __slots__ = ("factor",)
    FACTOR_FIELD_NUMBER: _ClassVar[int]
    factor: float
    def __init__(self, factor: _Optional[float] = ...) -> None: ...

class YarnScaling(_message.Message):
    __slots__ = ("factor", "original_context", "beta_fast", "beta_slow", "attention_factor", "truncate")
    FACTOR_FIELD_NUMBER: _ClassVar[int]
    ORIGINAL_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    BETA_FAST_FIELD_NUMBER: _ClassVar[int]
    BETA_SLOW_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_FACTOR_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    factor: float
    original_context: int
    beta_fast: float
    beta_slow: float
    attention_factor: float
    truncate: bool
    def __init__(self, factor: _Optional[float] = ..., original_context: _Optional[int] = ..., beta_fast: _Optional[float] = ..., beta_slow: _Optional[float] = ..., attention_factor: _Optional[float] = ..., truncate: _Optional[bool] = ...) -> None: ...

class Llama3Scaling(_message.Message):
    __slots__ = ("factor", "low_freq_factor", "high_freq_factor", "original_context")
    FACTOR_FIELD_NUMBER: _ClassVar[int]
    LOW_FREQ_FACTOR_FIELD_NUMBER: _ClassVar[int]
    HIGH_FREQ_FACTOR_FIELD_NUMBER: _ClassVar[int]
    ORIGINAL_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int
    def __init__(self, factor: _Optional[float] = ..., low_freq_factor: _Optional[float] = ..., high_freq_factor: _Optional[float] = ..., original_context: _Optional[int] = ...) -> None: ...

class DivisorScaling(_message.Message):
    __slots__ = ("divisors",)
    DIVISORS_FIELD_NUMBER: _ClassVar[int]
    divisors: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, divisors: _Optional[_Iterable[float]] = ...) -> None: ...
