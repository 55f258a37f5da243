"""What clients give back: plain frozen values, the same for both twins."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rondel.decoder.errors import RondelError
from rondel.decoder.options import AttendOptions
from rondel.decoder.quality import Quality
from rondel.v1 import attention_pb2 as pb

Array = NDArray[np.float32]
"""float32, C order. Keys and values may be float16 as well; they are widened on arrival."""


Options = AttendOptions | None
"""How a call scores and masks; None = as the layer group says."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a server is and allows; sizes in bytes."""

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


def _quality_of(message: pb.StreamQuality) -> Quality:
    return Quality(
        score_error=message.score_error,
        worst_layer=message.worst_layer,
        outlier_ratio=message.outlier_ratio,
        capped_channels=message.capped_channels,
    )
