"""How a text is cut into words before byte-pair merging, by the name that the GGUF file gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tokenizers import Regex, normalizers, pre_tokenizers
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

_CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS: Final = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """One way of cutting, with the settings that its published tokenizer has besides."""

    cut: Callable[[], PreTokenizer]
    normalise: Callable[[], Normalizer] | None = None
    whole_words: bool = False
    """Whether a word that is in the vocabulary is taken as it is, merges or not."""
    add_bos: bool = False
    """Whether a text begins with BOS where the file does not say."""


def _byte_level() -> PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _digits() -> PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _byte_level()])


def _pattern(numbers: str) -> Callable[[], PreTokenizer]:
    pattern = "|".join((_CONTRACTIONS, _WORDS, numbers, _REST))

    def make() -> PreTokenizer:
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )

    return make


SCHEMES: Final[dict[str, Scheme]] = {
    "gpt-2": Scheme(cut=_byte_level),
    "smollm": Scheme(cut=_digits),
    "llama-bpe": Scheme(cut=_pattern(r"\p{N}{1,3}"), whole_words=True, add_bos=True),
    "qwen2": Scheme(cut=_pattern(r"\p{N}"), normalise=normalizers.NFC),
}
"""By the value of ``tokenizer.ggml.pre``."""
