"""What an Attend can bring back beside its output: entropy, the largest weights, every stage."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from rondel.decoder.errors import InvalidRequest
from rondel.decoder.options import AttendOptions
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import LayerGroup
from rondel.v1 import attention_pb2 as pb
from rondel.v1.options import explanation_to_message
from rondel.v1.wire import to_tensor

Floats = NDArray[np.float32]

MAX_SCORES: Final = 1 << 20
"""Most scores that one call may have looked at: each takes some 50 bytes meanwhile."""

_FRAMES: Final = 512
_POSITION: Final = 10
"""Bytes that a position can take in a message."""


def wanted(request: pb.AttendRequest) -> bool:
    """Whether anything is asked for."""
    return request.return_entropy or request.top_k > 0 or request.explain


def extra_bytes(session: DecoderSession, request: pb.AttendRequest, q: Floats) -> int:
    """Bytes that all of it can take in the reply. Raises InvalidLayer; InvalidRequest for too many scores."""
    if not wanted(request):
        return 0
    group, rows = session.spec.group(request.layer), q.shape[0] if q.ndim else 0
    answers, keys = rows * group.query_heads, most_keys(group, session.layer_length(request.layer), rows)
    if answers * keys > MAX_SCORES:
        raise InvalidRequest(
            f"entropy, top_k and explain look at {MAX_SCORES} scores at most, got {rows} rows x "
            f"{group.query_heads} heads x {keys} keys; send fewer rows",
            field="q",
        )
    size = _FRAMES + answers * request.top_k * (_POSITION + 4)
    if request.return_entropy:
        size += 4 * answers
    if request.explain:
        size += 16 * answers * keys + _POSITION * (rows + keys) + 8 * answers
    return size


def fill(
    response: pb.AttendResponse,
    session: DecoderSession,
    request: pb.AttendRequest,
    q: Floats,
    options: AttendOptions | None,
) -> None:
    """Puts into the response what was asked for. Raises what :meth:`DecoderSession.explain` raises."""
    if not wanted(request):
        return
    position = request.position if request.HasField("position") else None
    explained = session.explain(request.layer, q, position=position, options=options)
    if request.return_entropy:
        response.entropy.CopyFrom(to_tensor(explained.entropy()))
    if request.top_k:
        positions, weights = explained.top_k(request.top_k)
        response.top_positions.extend(positions.ravel().tolist())
        response.top_weights.CopyFrom(to_tensor(weights))
    if request.explain:
        capped = options is not None and options.softcap is not None
        response.explanation.CopyFrom(explanation_to_message(explained, capped=capped))


def most_keys(group: LayerGroup, held: int, rows: int) -> int:
    """As many keys as the rows can see by their positions in a layer of ``held`` tokens, or a few more."""
    if group.window is None:
        return held
    return min(held, group.sinks + group.window + group.window_right + max(rows, 1) - 1)
