"""Two small questions about texts."""

from __future__ import annotations

from rondel.decoder.errors import InvalidRequest


def overlap(text: str, mark: str) -> int:
    """How many of the text's last characters are a proper beginning of the mark."""
    longest = min(len(text), len(mark) - 1)
    return next((n for n in range(longest, 0, -1) if mark.startswith(text[len(text) - n :])), 0)


def check_text(text: object) -> None:
    """Whether this is a text with a UTF-8 form. Raises InvalidRequest."""
    if not isinstance(text, str):
        raise InvalidRequest(f"expected a text, got {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"the text holds a lone surrogate at {error.start}, expected Unicode characters"
        ) from None
