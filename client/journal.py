"""Keys and values that a server has stored and may lose: those of tokens that not all layers have yet.

A server that is started anew, or a stream that is attached to over another connection, rolls back to what all
layers have. Whoever was in the middle of a token stores again what he had stored of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from rondel.v1 import attention_pb2 as pb
from rondel.v1.tensor_pb2 import Tensor
from rondel.v1.wire import from_tensor, to_tensor


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of tokens in a run of layers, as it was sent."""

    first: int
    """The first layer."""
    layers: int
    """How many follow, it included."""
    position: int
    tokens: int
    k: Tensor | None = None
    """[layers, tokens, Hkv, Dk]."""
    v: Tensor | None = None
    """[layers, tokens, Hkv, Dv]."""
    x: Tensor | None = None
    """[tokens, d_model], where keys and values are made of embeddings; one layer then."""

    @classmethod
    def of_step(cls, layer: int, item: pb.StepItem) -> Piece:
        """What a step has stored. The item itself is not kept."""
        if item.HasField("embeddings"):
            x = item.embeddings
            return cls(layer, 1, item.position, x.shape[0], x=_apart(x, ()))
        return cls(layer, 1, item.position, item.k.shape[0], _apart(item.k, (1,)), _apart(item.v, (1,)))

    @property
    def end(self) -> int:
        """The position behind its last token."""
        return self.position + self.tokens

    def behind(self, length: int) -> Piece:
        """What of it lies behind so many tokens, of which there is some."""
        cut = length - self.position
        if cut <= 0:
            return self
        if self.x is not None:
            return replace(self, position=length, tokens=self.tokens - cut, x=_cut(self.x, 0, cut))
        k, v = (None if tensor is None else _cut(tensor, 1, cut) for tensor in (self.k, self.v))
        return replace(self, position=length, tokens=self.tokens - cut, k=k, v=v)


class Journal:
    """What was stored and is not committed, in the order in which it was."""

    def __init__(self, pieces: Iterable[Piece] = ()) -> None:
        self._pieces = list(pieces)
        self._committed = 0

    def note(self, piece: Piece, committed: int) -> None:
        """The piece is stored, and all layers have so many tokens."""
        if piece.end > committed:
            self._pieces.append(piece)
        self.settle(committed)

    def settle(self, committed: int) -> None:
        """All layers have so many tokens."""
        if committed != self._committed:
            self._committed = committed
            self._pieces = [piece for piece in self._pieces if piece.end > committed]

    def clear(self) -> None:
        """What was not committed is gone, and wanted so."""
        self._pieces.clear()

    def copy(self) -> Journal:
        """The same of a stream that begins as this one is."""
        return Journal(self._pieces)

    def after(self, committed: int) -> list[Piece]:
        """What must be stored again in a stream of so many tokens, in this order."""
        reached: dict[int, int] = {}
        found = []
        for piece in self._pieces:
            layers = range(piece.first, piece.first + piece.layers)
            starts = {reached.get(layer, committed) for layer in layers}
            # Stored twice, as a call that was made again is, it is there already; a gap cannot be filled.
            if len(starts) == 1 and piece.position <= (start := starts.pop()) < piece.end:
                found.append(piece.behind(start))
                reached.update(dict.fromkeys(layers, piece.end))
        return found


def _apart(tensor: Tensor, axes: tuple[int, ...]) -> Tensor:
    """A tensor with more axes in front, which does not keep the message that it was in."""
    return Tensor(dtype=tensor.dtype, shape=(*axes, *tensor.shape), data=tensor.data)


def _cut(tensor: Tensor, axis: int, first: int) -> Tensor:
    array = from_tensor(tensor, name="kept")
    return to_tensor(array[(slice(None),) * axis + (slice(first, None),)])
