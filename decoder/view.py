"""What can be read off a stream without changing it or attending to it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from rondel.decoder.appraisal import appraise
from rondel.decoder.cache.cuts import Cut
from rondel.decoder.cache.extent import StreamExtent
from rondel.decoder.cache.reservation import Reservation
from rondel.decoder.cache.ring import GroupRings
from rondel.decoder.quality import QualityWarning
from rondel.decoder.spec import StreamSpec, integer
from rondel.decoder.stats import SessionStats, stats_of
from rondel.decoder.turn import Turn
from rondel.decoder.writer import PIECE, chunks


class StreamView:
    """A stream's numbers. :class:`~rondel.decoder.session.DecoderSession` adds what is done with it."""

    def __init__(
        self, spec: StreamSpec, extent: StreamExtent, rings: Sequence[GroupRings], pages: Reservation
    ) -> None:
        self.spec: Final = spec
        self._extent = extent
        self._rings = rings
        self._pages = pages
        self._turn = Turn()
        self._warned = False

    @property
    def length(self) -> int:
        """Tokens that every layer has."""
        return self._extent.length

    @property
    def high_water(self) -> int:
        """The largest position + 1 that any layer ever claimed, in a call that did not fail."""
        return self._extent.high_water

    @property
    def generation(self) -> int:
        """How often the stream was truncated, or attached to in a file."""
        return self._extent.generation

    @property
    def last_truncate(self) -> Cut | None:
        """What the last ``truncate`` did, with its note; None = there was none."""
        return self._extent.cut

    @property
    def sealed(self) -> bool:
        """Whether nothing changes the stream any more."""
        return self._extent.sealed

    @property
    def closed(self) -> bool:
        """Whether the caches have been given back."""
        return self._turn.closed

    @property
    def looked_at(self) -> bool:
        """Whether the next call begins at once: what was found in a file is looked at by the first one."""
        return self._turn.looked_at

    @property
    def max_chunk(self) -> int | None:
        """How far a layer may run ahead of ``length`` once wrapped; None = nothing ever wraps."""
        return self.spec.max_chunk

    @property
    def min_length(self) -> int:
        """The smallest length that ``truncate`` accepts now."""
        return self._extent.min_length

    def layer_length(self, layer: int) -> int:
        """Tokens that one layer has. Raises InvalidLayer."""
        return self._extent.layer_length(layer)

    def stats(self, *, quality: bool = False) -> SessionStats:
        """The stream's numbers now; with ``quality`` also what int8 storage makes of its keys.

        That reads a page of every layer, some 0.2 ms for each kv head. The first time that the keys turn out
        to defeat the scheme a QualityWarning is issued, once per stream.

        Raises:
            StreamClosed, SessionBusy: with ``quality`` only.
        """
        numbers = stats_of(self._extent, self._rings, self._pages, closed=self._turn.closed)
        if not quality:
            return numbers
        with self._turn:
            found = appraise(self._extent, self._rings, self._pages.contents)
        if found is not None and found.worrying and not self._warned:
            self._warned = True
            warnings.warn(f"a stream's keys do not suit its storage: {found}", QualityWarning, stacklevel=2)
        return replace(numbers, quality=found)

    def chunks(self, tokens: int, *, at_most: int = PIECE) -> Iterator[slice]:
        """Cuts a run of new tokens into pieces that every layer may take before the next begins.

        ``for part in session.chunks(n): for layer in ...: session.step(layer, q[part], …)``. Each piece
        is computed from the length at that moment.
        """
        at_most = integer("at_most", at_most, least=1)
        return chunks(self.spec, self._extent, integer("tokens", tokens), at_most)
