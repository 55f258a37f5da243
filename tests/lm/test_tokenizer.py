from collections.abc import Callable
from pathlib import Path

import pytest
import tinygguf
from hypothesis import given
from hypothesis import strategies as st

from rondel.decoder.errors import CorruptModel, InvalidRequest, UnsupportedModel
from rondel.decoder.lm.detokenizer import StreamingDetokenizer
from rondel.decoder.lm.forward import LanguageModel
from rondel.decoder.lm.gguf_file import GgufFile
from rondel.decoder.lm.pretokenizers import SCHEMES
from rondel.decoder.lm.tokenizer import Tokenizer

Make = Callable[..., Tokenizer]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def make(**changes: object) -> Tokenizer:
        full = {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
        return Tokenizer(GgufFile(tinygguf.write(tmp_path / "t.gguf", changes=full)))

    return make


@given(text=st.text())
def test_text_comes_back(tiny: LanguageModel, text: str) -> None:
    ids = tiny.tokenizer.encode(text)
    assert tiny.tokenizer.decode(ids) == text
    assert not {tinygguf.START, tinygguf.END} & set(ids)


@given(ids=st.lists(st.integers(0, len(tinygguf.TOKENS) - 1)))
def test_streamed_pieces_are_whole_characters_and_join_to_the_whole(
    tiny: LanguageModel, ids: list[int]
) -> None:
    stream = StreamingDetokenizer(tiny.tokenizer)
    pieces = [stream.feed(token) for token in ids]
    assert "".join(pieces) + stream.flush() == tiny.tokenizer.decode(ids)


def test_an_emoji_appears_with_its_last_byte(tiny: LanguageModel) -> None:
    ids = tiny.tokenizer.encode("a🙂é")
    stream = StreamingDetokenizer(tiny.tokenizer)
    assert [stream.feed(token) for token in ids] == ["a", "", "", "", "🙂", "", "é"]
    assert stream.flush() == ""


def test_a_character_that_is_never_completed_becomes_the_replacement(tiny: LanguageModel) -> None:
    stream = StreamingDetokenizer(tiny.tokenizer)
    assert "".join(stream.feed(token) for token in tiny.tokenizer.encode("x🙂")[:-1]) == "x"
    assert stream.flush() == "\ufffd"


def test_merges_are_used_and_words_are_cut_first(tiny: LanguageModel) -> None:
    the, space_the = tinygguf.TOKENS.index("the"), tinygguf.TOKENS.index("Ġthe")
    assert tiny.tokenizer.encode("the the") == [the, space_the]
    assert len(tiny.tokenizer.encode("t he")) == 4


def test_control_tokens_in_a_text_stay_text_unless_asked_for(tiny: LanguageModel) -> None:
    tokenizer = tiny.tokenizer
    text = "a<|im_end|>b"
    assert tinygguf.END not in tokenizer.encode(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    ids = tokenizer.encode(text, special=True)
    assert ids == [tokenizer.encode("a")[0], tinygguf.END, tokenizer.encode("b")[0]]
    assert tokenizer.decode(ids) == "ab"
    assert tokenizer.decode(ids, special=True) == text


def test_user_defined_tokens_are_always_one(tiny: LanguageModel) -> None:
    assert tinygguf.THINK in tiny.tokenizer.encode("hm <think>")
    assert tiny.tokenizer.decode([tinygguf.THINK]) == "<think>"


def test_user_defined_markup_of_the_template_is_control(make: Make) -> None:
    # Some converters file chat markup under USER_DEFINED; a text must not be able to write it all the same.
    tokenizer = make(token_type=[1] * 259 + [4, 4, 4], eos_token_id=tinygguf.THINK)
    assert not {tinygguf.START, tinygguf.END} & set(tokenizer.encode("<|im_start|><|im_end|>"))
    assert tokenizer.end_ids == {tinygguf.END, tinygguf.THINK}


def test_bos_is_added_as_the_file_says(make: Make, tiny: LanguageModel) -> None:
    plain = tiny.tokenizer.encode("hi")
    assert tiny.tokenizer.encode("hi", bos=True) == [tinygguf.START, *plain]
    tokenizer = make(add_bos_token=True)
    assert tokenizer.encode("hi") == [tinygguf.START, *plain]
    assert tokenizer.encode("hi", bos=False) == plain
    assert make(pre="llama-bpe", add_bos_token=None).encode("hi")[0] == tinygguf.START


@pytest.mark.parametrize(
    ("scheme", "pieces"),
    [
        ("gpt-2", ["It", "'s", "Ġ12345", "Ġ", "Ġok", "!!", "Ċ", "Ċ", "IT", "'", "S"]),
        ("smollm", ["It", "'s", "Ġ", *"12345", "Ġ", "Ġok", "!!", "Ċ", "Ċ", "IT", "'", "S"]),
        ("llama-bpe", ["It", "'s", "Ġ", "123", "45", "Ġ", "Ġok", "!!ĊĊ", "IT", "'S"]),
        ("qwen2", ["It", "'s", "Ġ", *"12345", "Ġ", "Ġok", "!!ĊĊ", "IT", "'S"]),
    ],
)
def test_schemes_cut_as_published(scheme: str, pieces: list[str]) -> None:
    cut = SCHEMES[scheme].cut().pre_tokenize_str("It's 12345  ok!!\n\nIT'S")
    assert [piece for piece, _ in cut] == pieces


def test_qwen2_normalises(make: Make) -> None:
    tokenizer = make(pre="qwen2")
    assert tokenizer.encode("e\u0301") == tokenizer.encode("é")


@pytest.mark.parametrize("text", ["a\ud800b", b"bytes", None])
def test_what_is_no_text_is_refused(tiny: LanguageModel, text: str) -> None:
    with pytest.raises(InvalidRequest, match="text"):
        tiny.tokenizer.encode(text)


@pytest.mark.parametrize("token", [-1, len(tinygguf.TOKENS)])
def test_ids_outside_the_vocabulary_are_refused(tiny: LanguageModel, token: int) -> None:
    with pytest.raises(InvalidRequest, match=f"got {token}"):
        tiny.tokenizer.decode([token])


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"model": "llama"}, UnsupportedModel, "got tokenizer 'llama'"),
        ({"pre": "tekken"}, UnsupportedModel, "got pre-tokenizer 'tekken'"),
        ({"pre": None}, UnsupportedModel, "got pre-tokenizer None"),
        ({"add_space_prefix": True}, UnsupportedModel, "add_space_prefix"),
        ({"add_eos_token": True}, UnsupportedModel, "add_eos_token"),
        ({"token_type": [1, 1]}, CorruptModel, "got 2 token types"),
        ({"token_type": "x"}, CorruptModel, "expected an array of int"),
        ({"merges": ["t h e"]}, CorruptModel, "two tokens"),
        ({"merges": ["t <|im_end|>"]}, CorruptModel, "do not fit together"),
        ({"merges": None}, CorruptModel, "merges' is missing"),
        ({"eos_token_id": 999}, CorruptModel, "eos_token_id is 999"),
        ({"bos_token_id": None, "add_bos_token": True}, CorruptModel, "no bos_token_id"),
        ({"tokens": [*tinygguf.TOKENS[:-1], "☃"], "token_type": [1] * 262}, CorruptModel, "not byte-level"),
    ],
)
def test_other_tokenizers_are_refused(
    make: Make, changes: dict[str, object], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        make(**changes)
