"""Encoding a text of any length a piece at a time, with the very tokens of encoding it at once.

A long text is looked at through a window. The words before the window's margin do not depend on what comes
after the window, so their tokens are final; the next window begins where they end. Between two pieces the
caller may stop, and while a piece is encoded the interpreter is free for other threads.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from typing import Final

import tokenizers

from rondel.decoder.errors import InvalidRequest

WINDOW: Final = 1 << 14
"""Characters of the first attempt; doubled while one word fills them."""
MAX_WORD: Final = 1 << 18
"""Most characters of one word, as the pre-tokeniser cuts it: no honest text comes near."""
_LOOKAHEAD: Final = 4
"""No pattern of the pre-tokenisers looks further past the end of a word (``'ve``), a run of blanks aside, and
such a run is a word that the window's end cuts."""
_STABLE: Final = 32
"""Characters on either side of a cut that its normal form can depend on, by Unicode's stream-safe format."""


class TextEncoder:
    """Byte-pair encoding of plain text.

    Args:
        built: vocabulary, merges and pre-tokeniser.
        longest_added: characters of the longest added token, which is never cut.
    """

    def __init__(self, built: tokenizers.Tokenizer, *, longest_added: int) -> None:
        self._built = built
        self._normalises = built.normalizer is not None
        self._margin = max(_LOOKAHEAD, longest_added)

    def pieces(self, text: str) -> Iterator[list[int]]:
        """The ids of a text, some thousand at a time.

        Raises:
            InvalidRequest: a word of the text has more than MAX_WORD characters.
        """
        at, size = 0, WINDOW
        while at < len(text):
            # encode() would keep the interpreter to itself; encode_batch() does not.
            (encoded,) = self._built.encode_batch([text[at : at + size]], add_special_tokens=False)
            if at + size >= len(text):
                yield encoded.ids
                return
            kept = self._final(encoded, text, at, size)
            if kept:
                yield encoded.ids[:kept]
                at, size = at + encoded.offsets[kept][0], WINDOW
            elif size < MAX_WORD:
                size *= 2
            else:
                raise InvalidRequest(
                    f"a word of the text has more than {MAX_WORD} characters, from character {at} on",
                    field="text",
                )

    def _final(self, encoded: tokenizers.Encoding, text: str, at: int, size: int) -> int:
        """How many tokens of a window are what they would be in the whole text."""
        words, offsets = encoded.word_ids, encoded.offsets
        for index in range(len(words) - 1, 0, -1):
            begin = offsets[index][0]
            if words[index] == words[index - 1] or begin > size - self._margin:
                continue
            if begin and not (self._normalises and _composes(text, at + begin)):
                return index
        return 0


def _composes(text: str, at: int) -> bool:
    """Whether the characters on either side of a place can become one in normal form."""
    before, after = text[max(0, at - _STABLE) : at], text[at : at + _STABLE]
    apart = unicodedata.normalize("NFC", before) + unicodedata.normalize("NFC", after)
    return unicodedata.normalize("NFC", before + after) != apart
