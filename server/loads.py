"""What requests will cost, told from their sizes and the lengths of their streams before they wait.

For the event loop's thread. Streams are only looked up, their leases stay; what another thread is changing at
that moment makes the estimate a little wrong, no more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rondel.decoder.errors import InvalidLayer
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import LayerGroup
from rondel.server.operation import Load
from rondel.server.returns import most_keys, wanted
from rondel.v1 import attention_pb2 as pb
from rondel.v1 import tensor_pb2

OPEN, FORK, SHORT = Load("open"), Load("fork"), Load("short")
"""The last: what looks something up, or changes a few numbers."""

_LOOKED_AT: Final = 8
"""So many items of a step stand for all: an estimate must cost less than what it is about."""
_ITEM_BYTES: Final = {"int8": 1, "float32": 4}


def of_step(request: pb.StepRequest, look_up: Callable[[int], DecoderSession | None]) -> Load:
    """Of a Step request; ``look_up`` gives the session of an item, if it is known."""
    count, layer = len(request.items), request.layer
    some = range(0, count, max(1, -(-count // _LOOKED_AT)))
    size = products = 0
    for number in some:
        item = request.items[number]
        rows = rows_of(item.embeddings if item.HasField("embeddings") else item.q)
        more = _looked_through(look_up(number), layer, rows, new=True)
        size += more[0]
        products += more[1]
    share = count / max(1, len(some))
    return Load("step", count, int(size * share), int(products * share))


def of_attend(request: pb.AttendRequest, session: DecoderSession | None) -> Load:
    """Of an Attend request."""
    size, products = _looked_through(session, request.layer, rows_of(request.q), new=False)
    return Load("explain" if wanted(request) else "attend", 1, size, products)


def of_append(request: pb.AppendTokenRequest) -> Load:
    """Of an AppendToken request."""
    return Load("append", rows_of(request.k), len(request.k.data) + len(request.v.data))


def rows_of(tensor: tensor_pb2.Tensor) -> int:
    """The size of a message's first axis, as far as it can be true."""
    shape = tensor.shape
    return min(max(shape[0], 0), len(tensor.data)) if shape else 0  # one copy; ByteSize() makes two


def row_products(group: LayerGroup, keys: int) -> int:
    """Multiplications for one query row that sees so many keys."""
    return group.query_heads * keys * (group.key_dim + group.value_dim)


def _looked_through(session: DecoderSession | None, layer: int, rows: int, *, new: bool) -> tuple[int, int]:
    """Bytes of a layer that a call reads, and its multiplications; ``new``: it stores the rows first."""
    if session is None:
        return 0, 0
    try:
        group, held = session.spec.group(layer), session.layer_length(layer)
    except InvalidLayer:
        return 0, 0
    keys = most_keys(group, held + rows if new else held, rows)
    width = (group.key_dim + group.value_dim) * _ITEM_BYTES[group.storage]
    return keys * group.kv_heads * width, rows * row_products(group, keys)
