"""Small questions about texts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from rondel.decoder.errors import InvalidRequest

_WINDOW: Final = 1 << 16
"""Characters that one search looks at. A search keeps the interpreter to itself, so it must be short."""


def overlap(text: str, mark: str) -> int:
    """How many of the text's last characters are a proper beginning of the mark."""
    longest = min(len(text), len(mark) - 1)
    return next((n for n in range(longest, 0, -1) if mark.startswith(text[len(text) - n :])), 0)


def find_marks(text: str, pattern: re.Pattern[str], longest: int) -> Iterator[re.Match[str]]:
    """What ``pattern.finditer`` finds, in short searches; no match has more than ``longest`` characters."""
    at = 0
    while at < len(text):
        end = at + _WINDOW + longest
        decided = len(text) if end >= len(text) else at + _WINDOW
        for found in pattern.finditer(text, at, end):
            if found.start() >= decided:
                break
            yield found
            at = found.end()
        at = max(at, decided)


def check_text(text: object, *, field: str = "text") -> None:
    """Whether this is a text with a UTF-8 form; ``field`` names it in the error. Raises InvalidRequest."""
    if not isinstance(text, str):
        raise InvalidRequest(f"expected a text, got {type(text).__name__}", field=field)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"the text holds a lone surrogate at {error.start}, expected Unicode characters", field=field
        ) from None
