"""Words with a check of their own."""

from __future__ import annotations

import numpy as np
import pytest

from rondel.decoder.cache.words import MAX_VALUE, Words, decoded, encoded

VALUES = [0, 1, 255, 256, 1 << 40, MAX_VALUE]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("index", [0, 1, 65535, 65536, 1 << 30])
def test_values_come_back_and_every_change_of_two_bytes_is_known(value: int, index: int) -> None:
    word = encoded(index, value)
    assert 0 < word < 1 << 64
    assert decoded(index, word) == value
    rng = np.random.default_rng(value % 1000)
    for shift in range(0, 56, 8):
        for change in rng.integers(1, 1 << 16, 200).tolist():
            assert decoded(index, word ^ change << shift) is None
    assert decoded(index + 1, word) is None


@pytest.mark.parametrize("count", [1, 511, 65536, 70000])
def test_cleared_words_are_zero_and_used_ones_are_told(count: int) -> None:
    memory = bytearray(b"?" * (8 * count))
    words = Words(memoryview(memory), "test")
    words.clear()
    assert list(words.used()) == []
    for index in {0, count // 2, count - 1}:
        assert words.get(index) == 0
        words.put(index, 7)
        assert words.get(index) == 7
    assert dict(words.used()) == dict.fromkeys({0, count // 2, count - 1}, 7)
    memory[8 * (count - 1)] ^= 1
    assert dict(words.used())[count - 1] is None


def test_memory_that_was_never_written_holds_no_words() -> None:
    for fill in (0, 255):
        words = Words(memoryview(bytearray([fill]) * 8 * 70000), "test")
        assert [words.get(index) for index in range(0, 70000, 7)].count(None) >= 9999
