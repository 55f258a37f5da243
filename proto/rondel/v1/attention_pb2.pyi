from google.rpc import status_pb2 as _status_pb2
from rondel.v1 import options_pb2 as _options_pb2
from rondel.v1 import spec_pb2 as _spec_pb2
from rondel.v1 import tenant_pb2 as _tenant_pb2
from rondel.v1 import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StreamRef(_message.Message):
    __slots__ = ("handle", "epoch")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    handle: str
    epoch: int
    def __init__(self, handle: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class OpenStreamRequest(_message.Message):
    __slots__ = ("spec", "request_id", "projections", "from_prefix", "max_new_tokens")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROJECTIONS_FIELD_NUMBER: _ClassVar[int]
    FROM_PREFIX_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    spec: _spec_pb2.StreamSpec
    request_id: str
    projections: str
    from_prefix: str
    max_new_tokens: int
    def __init__(self, spec: _Optional[_Union[_spec_pb2.StreamSpec, _Mapping]] = ..., request_id: _Optional[str] = ..., projections: _Optional[str] = ..., from_prefix: _Optional[str] = ..., max_new_tokens: _Optional[int] = ...) -> None: ...

class OpenStreamResponse(_message.Message):
    __slots__ = ("handle", "epoch", "generation", "committed_length", "max_chunk", "bytes_reserved", "spec", "idle_lease_ms", "layer_lengths", "start_id")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_LENGTH_FIELD_NUMBER: _ClassVar[int]
    MAX_CHUNK_FIELD_NUMBER: _ClassVar[int]
    BYTES_RESERVED_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    IDLE_LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    LAYER_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    START_ID_FIELD_NUMBER: _ClassVar[int]
    handle: str
    epoch: int
    generation: int
    committed_length: int
    max_chunk: int
    bytes_reserved: int
    spec: _spec_pb2.StreamSpec
    idle_lease_ms: int
    layer_lengths: _containers.RepeatedScalarFieldContainer[int]
    start_id: int
    def __init__(self, handle: _Optional[str] = ..., epoch: _Optional[int] = ..., generation: _Optional[int] = ..., committed_length: _Optional[int] = ..., max_chunk: _Optional[int] = ..., bytes_reserved: _Optional[int] = ..., spec: _Optional[_Union[_spec_pb2.StreamSpec, _Mapping]] = ..., idle_lease_ms: _Optional[int] = ..., layer_lengths: _Optional[_Iterable[int]] = ..., start_id: _Optional[int] = ...) -> None: ...

class AppendTokenRequest(_message.Message):
    __slots__ = ("stream", "generation", "position", "first_layer", "k", "v")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    FIRST_LAYER_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    V_FIELD_NUMBER: _ClassVar[int]
    stream: StreamRef
    generation: int
    position: int
    first_layer: int
    k: _tensor_pb2.Tensor
    v: _tensor_pb2.Tensor
    def __init__(self, stream: _Optional[_Union[StreamRef, _Mapping]] = ..., generation: _Optional[int] = ..., position: _Optional[int] = ..., first_layer: _Optional[int] = ..., k: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., v: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ...) -> None: ...

class AppendTokenResponse(_message.Message):
    __slots__ = ("committed_length", "layer_length", "duplicate")
    COMMITTED_LENGTH_FIELD_NUMBER: _ClassVar[int]
    LAYER_LENGTH_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    committed_length: int
    layer_length: int
    duplicate: bool
    def __init__(self, committed_length: _Optional[int] = ..., layer_length: _Optional[int] = ..., duplicate: _Optional[bool] = ...) -> None: ...

class AttendRequest(_message.Message):
    __slots__ = ("stream", "generation", "layer", "position", "q", "return_lse", "options", "return_entropy", "top_k", "explain")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    LAYER_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    Q_FIELD_NUMBER: _ClassVar[int]
    RETURN_LSE_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    RETURN_ENTROPY_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    stream: StreamRef
    generation: int
    layer: int
    position: int
    q: _tensor_pb2.Tensor
    return_lse: bool
    options: _options_pb2.AttendOptions
    return_entropy: bool
    top_k: int
    explain: bool
    def __init__(self, stream: _Optional[_Union[StreamRef, _Mapping]] = ..., generation: _Optional[int] = ..., layer: _Optional[int] = ..., position: _Optional[int] = ..., q: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., return_lse: _Optional[bool] = ..., options: _Optional[_Union[_options_pb2.AttendOptions, _Mapping]] = ..., return_entropy: _Optional[bool] = ..., top_k: _Optional[int] = ..., explain: _Optional[bool] = ...) -> None: ...

class AttendResponse(_message.Message):
    __slots__ = ("out", "lse", "committed_length", "entropy", "top_positions", "top_weights", "explanation")
    OUT_FIELD_NUMBER: _ClassVar[int]
    LSE_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_LENGTH_FIELD_NUMBER: _ClassVar[int]
    ENTROPY_FIELD_NUMBER: _ClassVar[int]
    TOP_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    TOP_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    EXPLANATION_FIELD_NUMBER: _ClassVar[int]
    out: _tensor_pb2.Tensor
    lse: _tensor_pb2.Tensor
    committed_length: int
    entropy: _tensor_pb2.Tensor
    top_positions: _containers.RepeatedScalarFieldContainer[int]
    top_weights: _tensor_pb2.Tensor
    explanation: _options_pb2.Explanation
    def __init__(self, out: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., lse: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., committed_length: _Optional[int] = ..., entropy: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., top_positions: _Optional[_Iterable[int]] = ..., top_weights: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., explanation: _Optional[_Union[_options_pb2.Explanation, _Mapping]] = ...) -> None: ...

class StepRequest(_message.Message):
    __slots__ = ("layer", "items")
    LAYER_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    layer: int
    items: _containers.RepeatedCompositeFieldContainer[StepItem]
    def __init__(self, layer: _Optional[int] = ..., items: _Optional[_Iterable[_Union[StepItem, _Mapping]]] = ...) -> None: ...

class StepItem(_message.Message):
    __slots__ = ("stream", "generation", "position", "q", "k", "v", "return_lse", "embeddings", "options", "stream_ref")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    Q_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    V_FIELD_NUMBER: _ClassVar[int]
    RETURN_LSE_FIELD_NUMBER: _ClassVar[int]
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    STREAM_REF_FIELD_NUMBER: _ClassVar[int]
    stream: StreamRef
    generation: int
    position: int
    q: _tensor_pb2.Tensor
    k: _tensor_pb2.Tensor
    v: _tensor_pb2.Tensor
    return_lse: bool
    embeddings: _tensor_pb2.Tensor
    options: _options_pb2.AttendOptions
    stream_ref: int
    def __init__(self, stream: _Optional[_Union[StreamRef, _Mapping]] = ..., generation: _Optional[int] = ..., position: _Optional[int] = ..., q: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., k: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., v: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., return_lse: _Optional[bool] = ..., embeddings: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., options: _Optional[_Union[_options_pb2.AttendOptions, _Mapping]] = ..., stream_ref: _Optional[int] = ...) -> None: ...

class StepResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[StepResult]
    def __init__(self, results: _Optional[_Iterable[_Union[StepResult, _Mapping]]] = ...) -> None: ...

class StepResult(_message.Message):
    __slots__ = ("status", "out", "lse", "committed_length", "layer_length", "duplicate")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    OUT_FIELD_NUMBER: _ClassVar[int]
    LSE_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_LENGTH_FIELD_NUMBER: _ClassVar[int]
    LAYER_LENGTH_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    status: _status_pb2.Status
    out: _tensor_pb2.Tensor
    lse: _tensor_pb2.Tensor
    committed_length: int
    layer_length: int
    duplicate: bool
    def __init__(self, status: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., out: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., lse: _Optional[_Union[_tensor_pb2.Tensor, _Mapping]] = ..., committed_length: _Optional[int] = ..., layer_length: _Optional[int] = ..., duplicate: _Optional[bool] = ...) -> None: ...

class ForkStreamRequest(_message.Message):
    __slots__ = ("stream", "generation", "length", "request_id", "max_new_tokens", "prefix_name")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_NAME_FIELD_NUMBER: _ClassVar[int]
    stream: StreamRef
    generation: int
    length: int
    request_id: str
    max_new_tokens: int
    prefix_name: str
    def __init__(self, stream: _Optional[_Union[StreamRef, _Mapping]] = ..., generation: _Optional[int] = ..., length: _Optional[int] = ..., request_id: _Optional[str] = ..., max_new_tokens: _Optional[int] = ..., prefix_name: _Optional[str] = ...) -> None: ...

class ForkStreamResponse(_message.Message):
    __slots__ = ("stream",)
    STREAM_FIELD_NUMBER: _ClassVar[int]
    stream: OpenStreamResponse
    def __init__(self, stream: _Optional[_Union[OpenStreamResponse, _Mapping]] = ...) -> None: ...

class TruncateStreamRequest(_message.Message):
    __slots__ = ("stream", "generation", "length", "request_id")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    stream: StreamRef
    generation: int
    length: int
    request_id: str
    def __init__(self, stream: _Optional[_Union[StreamRef, _Mapping]] = ..., generation: _Optional[int] = ..., length: _Optional[int] = ..., request_id: _Optional[str] = ...) -> None: ...

class TruncateStreamResponse(_message.Message):
    __slots__ = ("generation", "committed_length")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_LENGTH_FIELD_NUMBER: _ClassVar[int]
    generation: int
    committed_length: int
    def __init__(self, generation: _Optional[int] = ..., committed_length: _Optional[int] = ...) -> None: ...

class AttachStreamRequest(_message.Message):
    __slots__ = ("stream", "request_id", "generation")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    stream: StreamRef
    request_id: str
    generation: int
    def __init__(self, stream: _Optional[_Union[StreamRef, _Mapping]] = ..., request_id: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class AttachStreamResponse(_message.Message):
    __slots__ = ("stream",)
    STREAM_FIELD_NUMBER: _ClassVar[int]
    stream: OpenStreamResponse
    def __init__(self, stream: _Optional[_Union[OpenStreamResponse, _Mapping]] = ...) -> None: ...

class SealStreamRequest(_message.Message):
    __slots__ = ("stream", "generation")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    stream: StreamRef
    generation: int
    def __init__(self, stream: _Optional[_Union[StreamRef, _Mapping]] = ..., generation: _Optional[int] = ...) -> None: ...

class SealStreamResponse(_message.Message):
    __slots__ = ("committed_length",)
    COMMITTED_LENGTH_FIELD_NUMBER: _ClassVar[int]
    committed_length: int
    def __init__(self, committed_length: _Optional[int] = ...) -> None: ...

class GetStreamRequest(_message.Message):
    __slots__ = ("stream", "quality")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    QUALITY_FIELD_NUMBER: _ClassVar[int]
    stream: StreamRef
    quality: bool
    def __init__(self, stream: _Optional[_Union[StreamRef, _Mapping]] = ..., quality: _Optional[bool] = ...) -> None: ...

class GetStreamResponse(_message.Message):
    __slots__ = ("spec", "epoch", "generation", "committed_length", "layer_lengths", "high_water", "min_length", "max_chunk", "bytes_reserved", "bytes_resident", "bits_per_value", "pages", "sealed", "bytes_shared", "quality")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_LENGTH_FIELD_NUMBER: _ClassVar[int]
    LAYER_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATER_FIELD_NUMBER: _ClassVar[int]
    MIN_LENGTH_FIELD_NUMBER: _ClassVar[int]
    MAX_CHUNK_FIELD_NUMBER: _ClassVar[int]
    BYTES_RESERVED_FIELD_NUMBER: _ClassVar[int]
    BYTES_RESIDENT_FIELD_NUMBER: _ClassVar[int]
    BITS_PER_VALUE_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    BYTES_SHARED_FIELD_NUMBER: _ClassVar[int]
    QUALITY_FIELD_NUMBER: _ClassVar[int]
    spec: _spec_pb2.StreamSpec
    epoch: int
    generation: int
    committed_length: int
    layer_lengths: _containers.RepeatedScalarFieldContainer[int]
    high_water: int
    min_length: int
    max_chunk: int
    bytes_reserved: int
    bytes_resident: int
    bits_per_value: float
    pages: int
    sealed: bool
    bytes_shared: int
    quality: StreamQuality
    def __init__(self, spec: _Optional[_Union[_spec_pb2.StreamSpec, _Mapping]] = ..., epoch: _Optional[int] = ..., generation: _Optional[int] = ..., committed_length: _Optional[int] = ..., layer_lengths: _Optional[_Iterable[int]] = ..., high_water: _Optional[int] = ..., min_length: _Optional[int] = ..., max_chunk: _Optional[int] = ..., bytes_reserved: _Optional[int] = ..., bytes_resident: _Optional[int] = ..., bits_per_value: _Optional[float] = ..., pages: _Optional[int] = ..., sealed: _Optional[bool] = ..., bytes_shared: _Optional[int] = ..., quality: _Optional[_Union[StreamQuality, _Mapping]] = ...) -> None: ...

class StreamQuality(_message.Message):
    __slots__ = ("score_error", "worst_layer", "outlier_ratio", "capped_channels")
    SCORE_ERROR_FIELD_NUMBER: _ClassVar[int]
    WORST_LAYER_FIELD_NUMBER: _ClassVar[int]
    OUTLIER_RATIO_FIELD_NUMBER: _ClassVar[int]
    CAPPED_CHANNELS_FIELD_NUMBER: _ClassVar[int]
    score_error: float
    worst_layer: int
    outlier_ratio: float
    capped_channels: int
    def __init__(self, score_error: _Optional[float] = ..., worst_layer: _Optional[int] = ..., outlier_ratio: _Optional[float] = ..., capped_channels: _Optional[int] = ...) -> None: ...

class CloseStreamRequest(_message.Message):
    __slots__ = ("stream", "request_id", "generation")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    stream: StreamRef
    request_id: str
    generation: int
    def __init__(self, stream: _Optional[_Union[StreamRef, _Mapping]] = ..., request_id: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class CloseStreamResponse(_message.Message):
    __slots__ = ("committed_length", "bytes_released")
    COMMITTED_LENGTH_FIELD_NUMBER: _ClassVar[int]
    BYTES_RELEASED_FIELD_NUMBER: _ClassVar[int]
    committed_length: int
    bytes_released: int
    def __init__(self, committed_length: _Optional[int] = ..., bytes_released: _Optional[int] = ...) -> None: ...

class ExportStreamRequest(_message.Message):
    __slots__ = ("stream", "max_data_bytes")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    MAX_DATA_BYTES_FIELD_NUMBER: _ClassVar[int]
    stream: StreamRef
    max_data_bytes: int
    def __init__(self, stream: _Optional[_Union[StreamRef, _Mapping]] = ..., max_data_bytes: _Optional[int] = ...) -> None: ...

class ExportStreamResponse(_message.Message):
    __slots__ = ("data", "total_bytes")
    DATA_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    total_bytes: int
    def __init__(self, data: _Optional[bytes] = ..., total_bytes: _Optional[int] = ...) -> None: ...

class ImportStreamRequest(_message.Message):
    __slots__ = ("data", "request_id", "projections")
    DATA_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROJECTIONS_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    request_id: str
    projections: str
    def __init__(self, data: _Optional[bytes] = ..., request_id: _Optional[str] = ..., projections: _Optional[str] = ...) -> None: ...

class ImportStreamResponse(_message.Message):
    __slots__ = ("opened", "total_bytes")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    opened: OpenStreamResponse
    total_bytes: int
    def __init__(self, opened: _Optional[_Union[OpenStreamResponse, _Mapping]] = ..., total_bytes: _Optional[int] = ...) -> None: ...

class DecodeRequest(_message.Message):
    __slots__ = ("operations", "received_op_id", "max_response_bytes")
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_OP_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_RESPONSE_BYTES_FIELD_NUMBER: _ClassVar[int]
    operations: _containers.RepeatedCompositeFieldContainer[DecodeOperation]
    received_op_id: int
    max_response_bytes: int
    def __init__(self, operations: _Optional[_Iterable[_Union[DecodeOperation, _Mapping]]] = ..., received_op_id: _Optional[int] = ..., max_response_bytes: _Optional[int] = ...) -> None: ...

class DecodeOperation(_message.Message):
    __slots__ = ("op_id", "timeout_ms", "stream_ref", "open", "attach", "release", "step", "append", "attend", "truncate", "seal", "close")
    OP_ID_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    STREAM_REF_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    APPEND_FIELD_NUMBER: _ClassVar[int]
    ATTEND_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    SEAL_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    op_id: int
    timeout_ms: int
    stream_ref: int
    open: OpenStreamRequest
    attach: AttachStreamRequest
    release: DecodeRelease
    step: StepRequest
    append: AppendTokenRequest
    attend: AttendRequest
    truncate: TruncateStreamRequest
    seal: SealStreamRequest
    close: CloseStreamRequest
    def __init__(self, op_id: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., stream_ref: _Optional[int] = ..., open: _Optional[_Union[OpenStreamRequest, _Mapping]] = ..., attach: _Optional[_Union[AttachStreamRequest, _Mapping]] = ..., release: _Optional[_Union[DecodeRelease, _Mapping]] = ..., step: _Optional[_Union[StepRequest, _Mapping]] = ..., append: _Optional[_Union[AppendTokenRequest, _Mapping]] = ..., attend: _Optional[_Union[AttendRequest, _Mapping]] = ..., truncate: _Optional[_Union[TruncateStreamRequest, _Mapping]] = ..., seal: _Optional[_Union[SealStreamRequest, _Mapping]] = ..., close: _Optional[_Union[CloseStreamRequest, _Mapping]] = ...) -> None: ...

class DecodeRelease(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DecodeResponse(_message.Message):
    __slots__ = ("hello", "results", "go_away")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    GO_AWAY_FIELD_NUMBER: _ClassVar[int]
    hello: DecodeHello
    results: _containers.RepeatedCompositeFieldContainer[DecodeResult]
    go_away: DecodeGoAway
    def __init__(self, hello: _Optional[_Union[DecodeHello, _Mapping]] = ..., results: _Optional[_Iterable[_Union[DecodeResult, _Mapping]]] = ..., go_away: _Optional[_Union[DecodeGoAway, _Mapping]] = ...) -> None: ...

class DecodeHello(_message.Message):
    __slots__ = ("limits", "epoch", "start_id")
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    START_ID_FIELD_NUMBER: _ClassVar[int]
    limits: ServerLimits
    epoch: int
    start_id: int
    def __init__(self, limits: _Optional[_Union[ServerLimits, _Mapping]] = ..., epoch: _Optional[int] = ..., start_id: _Optional[int] = ...) -> None: ...

class DecodeResult(_message.Message):
    __slots__ = ("op_id", "status", "open", "attach", "step", "append", "attend", "truncate", "seal", "close")
    OP_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    APPEND_FIELD_NUMBER: _ClassVar[int]
    ATTEND_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    SEAL_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    op_id: int
    status: _status_pb2.Status
    open: OpenStreamResponse
    attach: AttachStreamResponse
    step: StepResponse
    append: AppendTokenResponse
    attend: AttendResponse
    truncate: TruncateStreamResponse
    seal: SealStreamResponse
    close: CloseStreamResponse
    def __init__(self, op_id: _Optional[int] = ..., status: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., open: _Optional[_Union[OpenStreamResponse, _Mapping]] = ..., attach: _Optional[_Union[AttachStreamResponse, _Mapping]] = ..., step: _Optional[_Union[StepResponse, _Mapping]] = ..., append: _Optional[_Union[AppendTokenResponse, _Mapping]] = ..., attend: _Optional[_Union[AttendResponse, _Mapping]] = ..., truncate: _Optional[_Union[TruncateStreamResponse, _Mapping]] = ..., seal: _Optional[_Union[SealStreamResponse, _Mapping]] = ..., close: _Optional[_Union[CloseStreamResponse, _Mapping]] = ...) -> None: ...

class DecodeGoAway(_message.Message):
    __slots__ = ("last_op_id",)
    LAST_OP_ID_FIELD_NUMBER: _ClassVar[int]
    last_op_id: int
    def __init__(self, last_op_id: _Optional[int] = ...) -> None: ...

class GetServerInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetServerInfoResponse(_message.Message):
    __slots__ = ("version", "tier", "epoch", "limits", "memory", "streams", "threads", "start_id", "projections", "tenant")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    START_ID_FIELD_NUMBER: _ClassVar[int]
    PROJECTIONS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    version: str
    tier: str
    epoch: int
    limits: ServerLimits
    memory: MemoryInfo
    streams: int
    threads: int
    start_id: int
    projections: _containers.RepeatedScalarFieldContainer[str]
    tenant: _tenant_pb2.TenantInfo
    def __init__(self, version: _Optional[str] = ..., tier: _Optional[str] = ..., epoch: _Optional[int] = ..., limits: _Optional[_Union[ServerLimits, _Mapping]] = ..., memory: _Optional[_Union[MemoryInfo, _Mapping]] = ..., streams: _Optional[int] = ..., threads: _Optional[int] = ..., start_id: _Optional[int] = ..., projections: _Optional[_Iterable[str]] = ..., tenant: _Optional[_Union[_tenant_pb2.TenantInfo, _Mapping]] = ...) -> None: ...

class ServerLimits(_message.Message):
    __slots__ = ("max_message_bytes", "max_streams", "max_queue_bytes", "max_step_items", "idle_lease_ms", "stall_timeout_ms", "decode_window_bytes", "max_queue_ms")
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_STREAMS_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_STEP_ITEMS_FIELD_NUMBER: _ClassVar[int]
    IDLE_LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    STALL_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    DECODE_WINDOW_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUE_MS_FIELD_NUMBER: _ClassVar[int]
    max_message_bytes: int
    max_streams: int
    max_queue_bytes: int
    max_step_items: int
    idle_lease_ms: int
    stall_timeout_ms: int
    decode_window_bytes: int
    max_queue_ms: int
    def __init__(self, max_message_bytes: _Optional[int] = ..., max_streams: _Optional[int] = ..., max_queue_bytes: _Optional[int] = ..., max_step_items: _Optional[int] = ..., idle_lease_ms: _Optional[int] = ..., stall_timeout_ms: _Optional[int] = ..., decode_window_bytes: _Optional[int] = ..., max_queue_ms: _Optional[int] = ...) -> None: ...

class MemoryInfo(_message.Message):
    __slots__ = ("budget", "reserved", "resident", "shared", "overcommit")
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    RESERVED_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    OVERCOMMIT_FIELD_NUMBER: _ClassVar[int]
    budget: int
    reserved: int
    resident: int
    shared: int
    overcommit: float
    def __init__(self, budget: _Optional[int] = ..., reserved: _Optional[int] = ..., resident: _Optional[int] = ..., shared: _Optional[int] = ..., overcommit: _Optional[float] = ...) -> None: ...
