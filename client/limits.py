"""How large messages may be, and so how many tokens fit into one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from google.protobuf.message import Message

from rondel.decoder.errors import QuotaExceeded
from rondel.decoder.spec import LayerGroup
from rondel.v1 import attention_pb2 as pb
from rondel.v1.tensor_pb2 import DTYPE_FLOAT32, Tensor

MESSAGE_AIM: Final = 2 << 20
"""Bytes of a request that a run of tokens is cut into: larger ones gain nothing and keep others waiting."""

_REPLY_FRAME: Final = 256
"""Bytes that a server adds to the arrays of a reply when it looks whether it can be sent."""

_LENGTHS: Final = 40
"""Bytes that the lengths of the parts of a message can take beyond those of empty parts."""

_LARGE: Final = 1 << 48


@dataclass(slots=True)
class Limits:
    """Message limits of a client and of the server that it has talked to."""

    own: int
    """Bytes that the client sends or takes at most."""
    server: int | None = None
    """Bytes that the server takes or sends at most; None = it was not asked yet."""
    start: int | None = None
    """The start of the server that said so: the same server, started anew, may have others."""

    @property
    def in_force(self) -> int:
        """The smaller of both."""
        return self.own if self.server is None else min(self.own, self.server)


def step_tokens(ref: pb.StreamRef, layer: int, group: LayerGroup, limit: int) -> int:
    """Tokens of a layer whose Step request and reply are within ``limit`` bytes. Raises QuotaExceeded."""
    rows = _rows(group)
    request = 4 * (rows + group.query_heads * group.key_dim)
    reply = 4 * group.query_heads * (group.value_dim + 1)
    empty = _empty_tensor(3)
    item = pb.StepItem(
        stream=ref, generation=_LARGE, position=_LARGE, q=empty, k=empty, v=empty, return_lse=True
    )
    frame = _frame(pb.StepRequest(layer=layer, items=[item]))
    fitting = min((limit - frame) // request, (limit - _REPLY_FRAME) // reply)
    if fitting < 1:
        needed = max(frame + request, _REPLY_FRAME + reply)
        raise _nothing_fits(f"one token of layer {layer}", needed, limit)
    return min(fitting, max(1, MESSAGE_AIM // max(request, reply)))


def append_shape(ref: pb.StreamRef, layers: int, group: LayerGroup, limit: int) -> tuple[int, int]:
    """Layers and tokens of one AppendToken within ``limit`` bytes, for layers that are alike.

    All the layers if one token of each fits, else as many as do. Raises QuotaExceeded when none does.
    """
    row = 4 * _rows(group)
    empty = _empty_tensor(4)
    frame = _frame(
        pb.AppendTokenRequest(
            stream=ref, generation=_LARGE, position=_LARGE, first_layer=layers, k=empty, v=empty
        )
    )
    rows = (limit - frame) // row
    if rows < 1:
        raise _nothing_fits("one token of one layer", frame + row, limit)
    at_once = min(layers, rows)
    return at_once, max(1, min(rows, MESSAGE_AIM // row) // at_once)


def _rows(group: LayerGroup) -> int:
    """Numbers that a token stores in a layer."""
    return group.kv_heads * (group.key_dim + group.value_dim)


def _empty_tensor(axes: int) -> Tensor:
    return Tensor(dtype=DTYPE_FLOAT32, shape=[(1 << 31) - 1] * axes, data=b"")


def _frame(message: Message) -> int:
    """Bytes of a message besides the arrays."""
    return message.ByteSize() + _LENGTHS


def _nothing_fits(what: str, needed: int, limit: int) -> QuotaExceeded:
    return QuotaExceeded(
        f"{what} takes up to {needed} bytes in a message, the smaller max_message_bytes of client and server "
        f"is {limit}; raise it",
        requested=needed,
        limit=limit,
    )
