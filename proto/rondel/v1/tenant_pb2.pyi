from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListStreamsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListStreamsResponse(_message.Message):
    __slots__ = ("streams", "next_page_token")
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    streams: _containers.RepeatedCompositeFieldContainer[ListedStream]
    next_page_token: str
    def __init__(self, streams: _Optional[_Iterable[_Union[ListedStream, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ListedStream(_message.Message):
    __slots__ = ("handle", "epoch", "generation", "committed_length", "bytes_reserved", "bytes_resident", "bytes_shared", "idle_ms", "sealed")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_LENGTH_FIELD_NUMBER: _ClassVar[int]
    BYTES_RESERVED_FIELD_NUMBER: _ClassVar[int]
    BYTES_RESIDENT_FIELD_NUMBER: _ClassVar[int]
    BYTES_SHARED_FIELD_NUMBER: _ClassVar[int]
    IDLE_MS_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    handle: str
    epoch: int
    generation: int
    committed_length: int
    bytes_reserved: int
    bytes_resident: int
    bytes_shared: int
    idle_ms: int
    sealed: bool
    def __init__(self, handle: _Optional[str] = ..., epoch: _Optional[int] = ..., generation: _Optional[int] = ..., committed_length: _Optional[int] = ..., bytes_reserved: _Optional[int] = ..., bytes_resident: _Optional[int] = ..., bytes_shared: _Optional[int] = ..., idle_ms: _Optional[int] = ..., sealed: _Optional[bool] = ...) -> None: ...

class TenantInfo(_message.Message):
    __slots__ = ("name", "max_streams", "max_bytes", "steps_per_second", "max_calls")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MAX_STREAMS_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    STEPS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    MAX_CALLS_FIELD_NUMBER: _ClassVar[int]
    name: str
    max_streams: int
    max_bytes: int
    steps_per_second: float
    max_calls: int
    def __init__(self, name: _Optional[str] = ..., max_streams: _Optional[int] = ..., max_bytes: _Optional[int] = ..., steps_per_second: _Optional[float] = ..., max_calls: _Optional[int] = ...) -> None: ...
