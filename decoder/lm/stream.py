"""What the language model needs from whoever keeps its keys and values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rondel.decoder.spec import StreamSpec


class AttentionStream(Protocol):
    """One sequence's caches and the attention over them: a DecoderSession, or a remote client's Stream."""

    @property
    def spec(self) -> StreamSpec:
        """The layer groups and bounds of the stream."""
        ...

    @property
    def length(self) -> int:
        """Tokens that all layers have; the position of the next token."""
        ...

    def step(
        self, layer: int, q: NDArray[np.float32], k: NDArray[np.float32], v: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Append k [n, Hkv, Dk] and v [n, Hkv, Dv], then attend with q [n, Hq, Dk] at those positions.

        The stream turns k and q as its layer group's rope says.

        Returns [n, Hq, Dv] float32. A failed call changes nothing.
        """
        ...

    def truncate(self, length: int) -> None:
        """Undo every token at ``length`` and beyond, in all layers."""
        ...

    def chunks(self, tokens: int, *, at_most: int = 512) -> Iterator[slice]:
        """Slices of a run of new tokens, each of which every layer may take before the next."""
        ...
