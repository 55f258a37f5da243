"""What several replies have in common: tensors, and their sizes before anything has been computed; a
stream."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rondel.decoder.errors import InvalidRequest
from rondel.decoder.quality import Quality
from rondel.decoder.session import DecoderSession
from rondel.server.entries import Entry
from rondel.server.streams import StreamRegistry
from rondel.v1 import attention_pb2 as pb
from rondel.v1 import tensor_pb2
from rondel.v1.specs import spec_to_message
from rondel.v1.wire import to_tensor

RESULT_OVERHEAD: Final = 256
"""More bytes than an item's result has besides its tensors."""


def reply_bytes(session: DecoderSession, layer: int, q: NDArray[np.float32]) -> int:
    """Bytes of a result for these rows, lse and all the rest included, rounded up. Raises InvalidLayer."""
    group = session.spec.group(layer)
    rows = q.shape[0] if q.ndim else 0
    return rows * group.query_heads * (group.value_dim + 1) * 4 + RESULT_OVERHEAD


def check_reply(size: int, most: int) -> None:
    """A reply that cannot be sent must be refused before anything has changed. Raises InvalidRequest."""
    if size > most:
        raise InvalidRequest(
            f"the reply would have about {size} bytes, the server sends at most {most}; send fewer rows or "
            f"items",
            field="q",
        )


def optional(lse: NDArray[np.float32] | None) -> tensor_pb2.Tensor | None:
    """The message of an array, if there is one."""
    return None if lse is None else to_tensor(lse)


def opened(entry: Entry, streams: StreamRegistry, lease_ms: int) -> pb.OpenStreamResponse:
    """What is said of a stream when it is there."""
    session = entry.session
    return pb.OpenStreamResponse(
        handle=entry.handle,
        epoch=streams.epoch,
        generation=session.generation,
        committed_length=session.length,
        max_chunk=session.max_chunk,
        bytes_reserved=session.stats().bytes_reserved,
        spec=spec_to_message(session.spec, in_force=True),
        idle_lease_ms=lease_ms,
        layer_lengths=layer_lengths(session),
        start_id=streams.start_id,
    )


def layer_lengths(session: DecoderSession) -> list[int]:
    """Tokens that each layer has."""
    return [session.layer_length(layer) for layer in range(session.spec.layers)]


def milliseconds(seconds: float) -> int:
    """Seconds as messages have them, rounded up."""
    return math.ceil(seconds * 1000)


def quality_to_message(quality: Quality | None) -> pb.StreamQuality | None:
    """The message of what was found out about a stream's keys, if anything was."""
    if quality is None:
        return None
    return pb.StreamQuality(
        score_error=quality.score_error,
        worst_layer=quality.worst_layer,
        outlier_ratio=quality.outlier_ratio,
        capped_channels=quality.capped_channels,
    )
