"""Numbers in a file that are written by one store each and carry a check of their own.

A process that is killed leaves every store that it executed, and no half of one of eight bytes. So each
number that can change alone is a word of 64 bits: 48 of value, 16 of checksum (CRC-16/CCITT, over the value,
begun from the word's index). A word that was overwritten by anything else is known: any change within two
neighbouring bytes always, any other but for one in 65,536.
"""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Iterator
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rondel.decoder.cache import crash

MAX_VALUE: Final = (1 << 48) - 1
WORD_BYTES: Final = 8
_SEED: Final = 0x5AA5  # so that memory which is all zeros holds no word, wherever
_INDEXES: Final = 1 << 16


def encoded(index: int, value: int) -> int:
    """The word for a value from 0 to MAX_VALUE at an index."""
    return value | crc_hqx(value.to_bytes(6, "little"), (index ^ _SEED) & 0xFFFF) << 48


def decoded(index: int, word: int) -> int | None:
    """The value of a word at an index; None = it is no word."""
    value = word & MAX_VALUE
    return value if encoded(index, value) == word else None


class Words:
    """Checked words in memory of ``8 * count`` bytes."""

    def __init__(self, memory: memoryview, name: str) -> None:
        self._words = memory.cast("B").cast("Q")
        self._name = name

    def __len__(self) -> int:
        return len(self._words)

    def put(self, index: int, value: int) -> None:
        """Store a value, from 0 to MAX_VALUE."""
        word = encoded(index, value)
        crash.crash_point(f"before {self._name}")
        self._words[index] = word
        crash.crash_point(f"after {self._name}")

    def get(self, index: int) -> int | None:
        """The value at an index; None = what is there is no word."""
        return decoded(index, self._words[index])

    def values(self, first: int, stop: int) -> NDArray[np.int64]:
        """:meth:`get` for many, which takes a fraction of the time; -1 = what is there is no word."""
        words = np.frombuffer(self._words, dtype=np.uint64)[first:stop]
        values = words & np.uint64(MAX_VALUE)
        sound = words >> np.uint64(48) == _checks(first, values)
        return np.where(sound, values.astype(np.int64), -1)

    def clear(self) -> None:
        """Store 0 everywhere."""
        np.frombuffer(self._words, dtype=np.uint64)[:] = _zeros(len(self._words))

    def used(self, first: int = 0) -> Iterator[tuple[int, int | None]]:
        """Indexes, from ``first`` on, of all words that are not 0, with their values."""
        held = np.frombuffer(self._words, dtype=np.uint64)
        for index in np.flatnonzero(held[first:] != _zeros(len(held))[first:]).tolist():
            yield first + index, self.get(first + index)


def _checks(first: int, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Checksums of values at indexes from ``first`` on: all at once, a byte of each at a time."""
    step = _steps()
    checks = (np.arange(first, first + len(values), dtype=np.uint64) ^ np.uint64(_SEED)) & np.uint64(0xFFFF)
    for shift in range(0, 48, 8):
        byte = values >> np.uint64(shift) & np.uint64(0xFF)
        checks = (checks << np.uint64(8) & np.uint64(0xFFFF)) ^ step[checks >> np.uint64(8) ^ byte]
    return checks


def _zeros(count: int) -> NDArray[np.uint64]:
    pattern = _zero_words()
    return np.resize(pattern, count) if count > len(pattern) else pattern[:count]


@cache
def _steps() -> NDArray[np.uint64]:
    return np.array([crc_hqx(b"\0", high << 8) for high in range(256)], dtype=np.uint64)


@cache
def _zero_words() -> NDArray[np.uint64]:
    return _checks(0, np.zeros(_INDEXES, np.uint64)) << np.uint64(48)
