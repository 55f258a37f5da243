"""How many steps a request asks for, told from the message alone: what a tenant's quota counts.

A token that is stored, or a row that is attended from, is a step in each layer; one that does both is one.
"""

from __future__ import annotations

import math

from rondel.v1 import attention_pb2 as pb
from rondel.v1.tensor_pb2 import Tensor


def of_append(request: pb.AppendTokenRequest) -> int:
    """Tokens times layers."""
    return _rows(request.k, 2)


def of_attend(request: pb.AttendRequest) -> int:
    """Rows."""
    return _rows(request.q, 1)


def of_step(request: pb.StepRequest) -> int:
    """Tokens of all items."""
    return sum(map(of_item, request.items))


def of_item(item: pb.StepItem) -> int:
    """Tokens of one item."""
    return _rows(item.embeddings if item.HasField("embeddings") else item.q, 1)


def of_operation(operation: pb.DecodeOperation) -> int:
    """Those of an operation of a Decode call."""
    match operation.WhichOneof("operation"):
        case "step":
            return of_step(operation.step)
        case "append":
            return of_append(operation.append)
        case "attend":
            return of_attend(operation.attend)
        case _:
            return 0


def _rows(tensor: Tensor, axes: int) -> int:
    """At least one. What a tensor claims to have is believed as far as its bytes go: nobody looked at it yet,
    and a wrong shape must not put a tenant in debt for years."""
    claimed = math.prod(max(0, size) for size in tensor.shape[:axes])
    return max(1, min(claimed, len(tensor.data)))  # one copy; ByteSize() makes two
