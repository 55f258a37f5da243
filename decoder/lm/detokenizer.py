"""Bytes to text, piece by piece, whole characters only."""

from __future__ import annotations

import codecs

from rondel.decoder.lm.tokenizer import Tokenizer


class StreamingDetokenizer:
    """Turns token ids into text as they come. The pieces joined are the decoded whole.

    A byte-level token may end inside a UTF-8 sequence; its last bytes wait for the next token.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token: int) -> str:
        """The text that a token completes; control tokens have none. Raises InvalidRequest for a bad id."""
        return self._decoder.decode(self._tokenizer.token_bytes(token))

    def flush(self) -> str:
        """What is left at the end: U+FFFD for a character that was never completed."""
        return self._decoder.decode(b"", final=True)
