"""What clients give back: plain frozen values, the same for both twins."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rondel.decoder.errors import RondelError
from rondel.decoder.options import AttendOptions
from rondel.decoder.quality import Quality
from rondel.v1 import attention_pb2 as pb
from rondel.v1.tenant_pb2 import ListedStream as ListedStreamMessage
from rondel.v1.tenant_pb2 import TenantInfo as TenantInfoMessage

Array = NDArray[np.float32]
"""float32, C order. Keys and values may be float16 as well; they are widened on arrival."""


Options = AttendOptions | None
"""How a call scores and masks; None = as the layer group says."""


@dataclass(frozen=True, slots=True)
class TenantInfo:
    """Who the server takes us for, and its quotas; None = only the server's own limits."""

    name: str
    """Empty: everybody is one tenant."""
    max_streams: int | None
    max_bytes: int | None
    """That streams and generations may reserve."""
    steps_per_second: float | None
    """Tokens stored, or rows attended from, each counted in every layer."""
    max_calls: int | None
    """At work at a time."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a server is and allows; sizes in bytes. Streams and memory are those of one's own tenant."""

    version: str
    tier: str
    epoch: int
    threads: int
    streams: int
    budget: int
    reserved: int
    resident: int
    shared: int
    max_message_bytes: int
    max_streams: int
    max_queue_bytes: int
    max_step_items: int
    idle_lease_ms: int
    max_queue_ms: int
    projections: tuple[str, ...]
    """Names that ``open(spec, projections=…)`` takes."""
    tenant: TenantInfo
    """Whose ``streams`` and bytes these are, and what they may become."""
    overcommit: float = 1.0
    """How many times the budget streams may reserve. Above 1 growth can raise BudgetExceeded."""


@dataclass(frozen=True, slots=True)
class StreamStats:
    """What a stream holds on the server; sizes in bytes."""

    length: int
    layer_lengths: tuple[int, ...]
    high_water: int
    min_length: int
    generation: int
    bytes_reserved: int
    bytes_resident: int
    bytes_shared: int
    bits_per_value: float
    pages: int
    sealed: bool
    quality: Quality | None = None
    """What int8 storage makes of the keys, if that was asked for and there are keys to tell by."""


@dataclass(frozen=True, slots=True)
class ListedStream:
    """A stream of one's tenant, in a list; sizes in bytes."""

    handle: str
    epoch: int
    generation: int
    length: int
    bytes_reserved: int
    bytes_resident: int
    bytes_shared: int
    idle_seconds: float
    """Since a request has named it."""
    sealed: bool


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """One stream's part of a batch: its output, or why it has none."""

    out: Array | None
    """[tokens, query_heads, value_dim]; None when the item failed."""
    lse: Array | None
    """[tokens, query_heads], natural log; None unless asked for."""
    error: RondelError | None


def stats_of(reply: pb.GetStreamResponse) -> StreamStats:
    """A stream's numbers, as a server tells them."""
    return StreamStats(
        length=reply.committed_length,
        layer_lengths=tuple(reply.layer_lengths),
        high_water=reply.high_water,
        min_length=reply.min_length,
        generation=reply.generation,
        bytes_reserved=reply.bytes_reserved,
        bytes_resident=reply.bytes_resident,
        bytes_shared=reply.bytes_shared,
        bits_per_value=reply.bits_per_value,
        pages=reply.pages,
        sealed=reply.sealed,
        quality=_quality_of(reply.quality) if reply.HasField("quality") else None,
    )


def listed_of(message: ListedStreamMessage) -> ListedStream:
    """A stream in a list."""
    return ListedStream(
        handle=message.handle,
        epoch=message.epoch,
        generation=message.generation,
        length=message.committed_length,
        bytes_reserved=message.bytes_reserved,
        bytes_resident=message.bytes_resident,
        bytes_shared=message.bytes_shared,
        idle_seconds=message.idle_ms / 1000,
        sealed=message.sealed,
    )


def tenant_of(message: TenantInfoMessage) -> TenantInfo:
    """Who the server takes us for."""
    return TenantInfo(
        name=message.name,
        max_streams=message.max_streams if message.HasField("max_streams") else None,
        max_bytes=message.max_bytes if message.HasField("max_bytes") else None,
        steps_per_second=message.steps_per_second if message.HasField("steps_per_second") else None,
        max_calls=message.max_calls if message.HasField("max_calls") else None,
    )


def _quality_of(message: pb.StreamQuality) -> Quality:
    return Quality(
        score_error=message.score_error,
        worst_layer=message.worst_layer,
        outlier_ratio=message.outlier_ratio,
        capped_channels=message.capped_channels,
    )
