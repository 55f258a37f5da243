"""Ending a text at one of a few given texts, without ever showing part of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rondel.decoder.errors import InvalidSpec
from rondel.decoder.lm.strings import check_text, overlap

MAX_STOPS: Final = 16
MAX_STOP_BYTES: Final = 256


class StopTexts:
    """Looks for the earliest of the stop texts in a text that comes in pieces.

    Raises:
        InvalidSpec: too many, or one is empty or too long.
        InvalidRequest: one is not a text.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if isinstance(stops, str):
            raise InvalidSpec(f"stop must be a sequence of texts, got the text {stops!r}", field="stop")
        if len(stops) > MAX_STOPS:
            raise InvalidSpec(f"stop has at most {MAX_STOPS} texts, got {len(stops)}", field="stop")
        for stop in stops:
            check_text(stop)
            size = len(stop.encode())
            if not 1 <= size <= MAX_STOP_BYTES:
                raise InvalidSpec(f"a stop text has 1 to {MAX_STOP_BYTES} bytes, got {size}", field="stop")
        self._stops = tuple(stops)
        self._held = ""
        self.found = False
        """Whether a stop text has come up. It and what follows are dropped."""

    def feed(self, piece: str) -> str:
        """The text that can be shown now; a possible beginning of a stop text is held back."""
        if self.found:
            return ""
        text = self._held + piece
        starts = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if starts:
            self.found = True
            self._held = ""
            return text[: min(starts)]
        keep = max((overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """The text still held back, at the end."""
        held, self._held = self._held, ""
        return held
