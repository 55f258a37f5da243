"""Byte-level BPE from the file's own vocabulary and merges.

Control tokens (the markup of chats, begin and end) are kept out of the vocabulary that texts are
encoded with: no text, whatever it says, can become one. Only ``special=True`` parses them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Final

import tokenizers
from tokenizers import AddedToken
from tokenizers.models import BPE

from rondel.decoder.errors import CorruptModel, InvalidRequest, LengthExceeded, UnsupportedModel
from rondel.decoder.lm.chat import ChatTemplate
from rondel.decoder.lm.encoder import TextEncoder
from rondel.decoder.lm.gguf_file import GgufFile
from rondel.decoder.lm.pretokenizers import SCHEMES
from rondel.decoder.lm.strings import check_text, find_marks

END_TEXTS: Final = frozenset(
    {"<|endoftext|>", "<|im_end|>", "<|end|>", "<|eot_id|>", "<|end_of_text|>", "<end_of_turn>"}
)
"""Control tokens that end a turn by what they are called, in files that name only one end token."""

_COMPOSED: Final = 3
"""Normalisation makes a text at most so many times shorter (three Hangul letters are one syllable)."""


class TokenType(IntEnum):
    """Values of ``tokenizer.ggml.token_type``."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for every byte value."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(plain)]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


_ALPHABET: Final = _byte_alphabet()


class Tokenizer:
    """Text to ids and back. Immutable; may be used by several threads.

    Raises:
        UnsupportedModel: not byte-level BPE, or an unknown way of cutting words.
        CorruptModel: vocabulary, types and merges do not fit together.
    """

    def __init__(self, file: GgufFile) -> None:
        self._path = file.path
        model = file.value("tokenizer.ggml.model", str)
        if model != "gpt2":
            raise UnsupportedModel(f"{file.path}: got tokenizer {model!r}, expected 'gpt2' (byte-level BPE)")
        pre = file.optional("tokenizer.ggml.pre", str)
        if pre not in SCHEMES:
            raise UnsupportedModel(
                f"{file.path}: got pre-tokenizer {pre!r}, expected one of: {', '.join(SCHEMES)}"
            )
        for key in ("add_space_prefix", "add_eos_token"):
            if file.optional(f"tokenizer.ggml.{key}", bool):
                raise UnsupportedModel(f"{file.path}: tokenizer.ggml.{key} is true, expected false")
        scheme = SCHEMES[pre]
        self._texts = file.values("tokenizer.ggml.tokens", str)
        types = file.values("tokenizer.ggml.token_type", int)
        if len(types) != len(self._texts):
            raise CorruptModel(f"{file.path}: got {len(types)} token types for {len(self._texts)} tokens")
        template = file.optional("tokenizer.chat_template", str)
        self.bos: int | None = self._id(file, "bos")
        self.eos: int | None = self._id(file, "eos")
        named_ends = {self._id(file, name) for name in ("eos", "eot", "eom")} - {None}
        self._control = self._find_control(types, template or "", named_ends | {self.bos} - {None})
        ends = {token for text, token in self._control.items() if text in END_TEXTS} | named_ends
        self.end_ids: frozenset[int] = frozenset(end for end in ends if end is not None)
        """Tokens that end an answer."""
        self._add_bos = file.value("tokenizer.ggml.add_bos_token", bool, scheme.add_bos)
        if self._add_bos and self.bos is None:
            raise CorruptModel(f"{file.path}: texts begin with BOS, but there is no bos_token_id")
        # Longest first, so that no token hides another that it begins.
        marks = sorted(self._control, key=len, reverse=True)
        self._markup = re.compile("|".join(map(re.escape, marks))) if marks else None
        self._longest_mark = len(marks[0]) if marks else 0
        self._bytes = self._all_bytes(types)
        self._most_bytes = max(map(len, self._bytes), default=0) * (_COMPOSED if scheme.normalise else 1)
        self._encoder = self._build(types, file.values("tokenizer.ggml.merges", str), pre)
        self._template = None if template is None else self._compile(template)

    # ---- text to ids ----

    def encode(self, text: str, *, special: bool = False, bos: bool | None = None) -> list[int]:
        """The ids of a text. A byte that the vocabulary has no token for (a few control characters, in
        some files) is left out, as the published tokenizers do.

        Args:
            text: any text that has a UTF-8 form.
            special: whether control tokens written in the text are parsed. Leave it False for text that
                you did not write: then ``"<|im_end|>"`` is ten ordinary characters.
            bos: whether to begin with BOS; None = as the file says.

        Raises:
            InvalidRequest: not a text, or it holds lone surrogates.
        """
        return [token for piece in self.pieces(text, special=special, bos=bos) for token in piece]

    def pieces(self, text: str, *, special: bool = False, bos: bool | None = None) -> Iterator[list[int]]:
        """What :meth:`encode` gives, some thousand ids at a time, for whoever may want to stop in between."""
        check_text(text)
        if self.bos is not None and (self._add_bos if bos is None else bos):
            yield [self.bos]
        for piece, control in self._cut(text) if special else ((text, None),):
            yield from self._encoder.pieces(piece)
            if control is not None:
                yield [control]

    def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The ids of a conversation in the file's own chat template, ready for the model's answer.

        Args:
            messages: each with ``role`` and ``content``. Control tokens written in them stay text.

        Raises:
            InvalidRequest: no messages, a malformed one, or an order that the template refuses.
            UnsupportedModel: the file has no chat template, or one that does not work.
        """
        return [token for piece in self.chat_pieces(messages) for token in piece]

    def chat_pieces(self, messages: Sequence[Mapping[str, str]]) -> Iterator[list[int]]:
        """What :meth:`chat` gives, some thousand ids at a time; the first comes when all is rendered."""
        if self._template is None:
            raise UnsupportedModel(f"{self._path}: the model has no chat template")
        rendered = self._template.render(messages)
        for piece, control in self._cut(rendered.text):
            yield from self._encoder.pieces(rendered.unguard(piece))
            if control is not None:
                yield [control]

    def check_size(self, texts: Iterable[str], room: int) -> None:
        """Whether these texts can have ``room`` tokens or fewer between them, told from their size alone.

        Raises:
            LengthExceeded: they cannot, however they are cut.
        """
        size = sum(len(text.encode("utf-8", "replace")) for text in texts)
        if size > room * self._most_bytes:
            raise LengthExceeded(
                f"a prompt of {size} bytes has at least {-(-size // self._most_bytes)} tokens, "
                f"the limit is {room}",
                limit=room,
            )

    def _cut(self, text: str) -> Iterator[tuple[str, int | None]]:
        """Plain text and the control token behind it, in turn; None after the last."""
        at = 0
        if self._markup is not None:
            for found in find_marks(text, self._markup, self._longest_mark):
                yield text[at : found.start()], self._control[found[0]]
                at = found.end()
        yield text[at:], None

    # ---- ids to text ----

    def __len__(self) -> int:
        """Size of the vocabulary."""
        return len(self._texts)

    def token_bytes(self, token: int, *, special: bool = False) -> bytes:
        """The bytes of a token; none for a control token unless ``special``. Raises InvalidRequest."""
        if not 0 <= token < len(self._texts):
            raise InvalidRequest(
                f"token ids go from 0 to {len(self._texts) - 1}, got {token}", field="tokens"
            )
        if special and self._texts[token] in self._control:
            return self._texts[token].encode()
        return self._bytes[token]

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """The text of ids; bytes that are not UTF-8 become U+FFFD. Raises InvalidRequest for a bad id."""
        joined = b"".join(self.token_bytes(token, special=special) for token in tokens)
        return joined.decode("utf-8", "replace")

    # ---- building ----

    def _id(self, file: GgufFile, name: str) -> int | None:
        token = file.optional(f"tokenizer.ggml.{name}_token_id", int)
        if token is not None and not 0 <= token < len(self._texts):
            raise CorruptModel(
                f"{file.path}: {name}_token_id is {token}, expected 0 to {len(self._texts) - 1}"
            )
        return token

    def _find_control(self, types: Sequence[int], template: str, named: set[int | None]) -> dict[str, int]:
        """Control tokens by text. Some converters file chat markup under USER_DEFINED."""
        markup = (TokenType.CONTROL, TokenType.UNKNOWN)
        return {
            text: token
            for token, (text, kind) in enumerate(zip(self._texts, types, strict=True))
            if text
            and (
                kind in markup
                or token in named
                or (kind == TokenType.USER_DEFINED and (text in template or text in END_TEXTS))
            )
        }

    def _all_bytes(self, types: Sequence[int]) -> list[bytes]:
        found = []
        for token, (text, kind) in enumerate(zip(self._texts, types, strict=True)):
            if text in self._control or kind == TokenType.UNUSED:
                found.append(b"")
            elif kind == TokenType.USER_DEFINED:
                found.append(text.encode())
            else:
                try:
                    found.append(bytes(_ALPHABET[char] for char in text))
                except KeyError as error:
                    raise CorruptModel(
                        f"{self._path}: token {token} ({text!r}) is not byte-level: {error.args[0]!r}"
                    ) from None
        return found

    def _build(self, types: Sequence[int], merges: Sequence[str], pre: str) -> TextEncoder:
        scheme = SCHEMES[pre]
        vocabulary = {
            text: token
            for token, (text, kind) in enumerate(zip(self._texts, types, strict=True))
            if text not in self._control and kind != TokenType.UNUSED
        }
        pairs = []
        for merge in merges:
            left, space, right = merge.partition(" ")
            if not (left and space and right) or " " in right:
                raise CorruptModel(f"{self._path}: got merge {merge!r}, expected two tokens and a space")
            pairs.append((left, right))
        try:
            bpe = BPE(vocab=vocabulary, merges=pairs, ignore_merges=scheme.whole_words)
        except Exception as error:  # noqa: BLE001  # the Rust side raises bare Exception
            raise CorruptModel(f"{self._path}: vocabulary and merges do not fit together ({error})") from None
        built = tokenizers.Tokenizer(bpe)
        built.pre_tokenizer = scheme.cut()
        if scheme.normalise is not None:
            built.normalizer = scheme.normalise()
        added = [
            text
            for text, kind in zip(self._texts, types, strict=True)
            if kind == TokenType.USER_DEFINED and text not in self._control
        ]
        built.add_tokens([AddedToken(text, normalized=False) for text in added])
        return TextEncoder(built, longest_added=max(map(len, added), default=0))

    def _compile(self, template: str) -> ChatTemplate:
        return ChatTemplate(
            template,
            markup=tuple(self._control),
            bos="" if self.bos is None else self._texts[self.bos],
            eos="" if self.eos is None else self._texts[self.eos],
        )
