"""Long texts, a piece at a time."""

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import tinygguf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rondel.decoder.errors import InvalidRequest, LengthExceeded
from rondel.decoder.lm import encoder, strings
from rondel.decoder.lm.forward import LanguageModel
from rondel.decoder.lm.gguf_file import GgufFile
from rondel.decoder.lm.pretokenizers import SCHEMES
from rondel.decoder.lm.strings import find_marks
from rondel.decoder.lm.tokenizer import Tokenizer

BITS = st.sampled_from(
    [*"the a1 '\n\t\r-_", "  ", "the", "'ve", "'s", "e\u0301", "\u0301", "각", "\u1100\u1161\u11a8", "🦆",
     "<think>", "<thi", "nk>", "中文", "\x02", "³"]
)  # fmt: skip
TEXTS = st.lists(BITS, max_size=60).map("".join)


@pytest.fixture(params=list(SCHEMES))
def tokenizer(request: pytest.FixtureRequest, tmp_path: Path) -> Tokenizer:
    path = tinygguf.write(tmp_path / "t.gguf", changes={"tokenizer.ggml.pre": request.param})
    return Tokenizer(GgufFile(path))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=TEXTS, window=st.integers(1, 24))
def test_pieces_are_the_tokens_of_the_whole(tokenizer: Tokenizer, text: str, window: int) -> None:
    whole = tokenizer.encode(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoder, "WINDOW", window)
        assert [token for piece in tokenizer.pieces(text) for token in piece] == whole


def test_a_long_text_comes_in_many_pieces(tiny: LanguageModel) -> None:
    text = "the 1 duck's " * 20_000
    pieces = list(tiny.tokenizer.pieces(text))
    assert len(pieces) > 10
    assert tiny.tokenizer.decode([token for piece in pieces for token in piece]) == text


def test_an_endless_word_is_refused(tiny: LanguageModel) -> None:
    assert len(tiny.tokenizer.encode("x" * encoder.MAX_WORD)) == encoder.MAX_WORD
    with pytest.raises(InvalidRequest, match="a word of the text") as caught:
        tiny.tokenizer.encode("y " + "x" * (2 * encoder.MAX_WORD))
    assert caught.value.facts["field"] == "text"


@pytest.mark.alone
@pytest.mark.parametrize("unit", ["the duck ", "x", "7", " ", "<|im_end|>", "<", "é\n"])
@pytest.mark.parametrize("chat", [False, True])
def test_other_threads_run_meanwhile(tiny: LanguageModel, unit: str, chat: bool) -> None:
    text = unit * (250_000 // len(unit))
    turns = [{"role": "user", "content": text}]
    work = (lambda: tiny.tokenizer.chat(turns)) if chat else (lambda: tiny.tokenizer.encode(text))
    # Of three: the machine may have stood still meanwhile, but work that lets nobody in does so every time.
    assert any(longest_gap(work) < 0.1 for _ in range(3))


def longest_gap(work: Callable[[], object]) -> float:
    """The most seconds for which another thread did not come to run."""
    gaps, stopped = [0.0], threading.Event()

    def tick() -> None:
        last = time.perf_counter()
        while not stopped.wait(0.001):
            now = time.perf_counter()
            gaps.append(now - last)
            last = now

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        work()
    finally:
        stopped.set()
        thread.join()
    return max(gaps)


def test_size_alone_tells_what_is_too_long(tiny: LanguageModel) -> None:
    longest = max(len(tiny.tokenizer.token_bytes(token)) for token in range(len(tiny.tokenizer)))
    tiny.tokenizer.check_size(["x" * (4 * longest), "y" * longest], 5)
    with pytest.raises(LengthExceeded, match="at least 6 tokens") as caught:
        tiny.tokenizer.check_size(["x" * (4 * longest), "y" * (longest + 1)], 5)
    assert caught.value.limit == 5


@given(text=st.text("<|>ab", max_size=80), window=st.integers(1, 20))
def test_marks_are_found_whatever_the_window(text: str, window: int) -> None:
    pattern = re.compile("|".join(map(re.escape, ["<|ab|>", "<|a|>", "<ab>"])))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strings, "_WINDOW", window)
        found = [each.span() for each in find_marks(text, pattern, 6)]
    assert found == [each.span() for each in pattern.finditer(text)]
