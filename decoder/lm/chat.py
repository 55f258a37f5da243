"""A file's chat template, rendered so that no message can write markup.

The template sees the messages as they are, but for one thing: wherever a message spells a control token
(or ends in the beginning of one), a guard character stands after the first character of the spelling.
The rendered text is cut at control tokens, which therefore come from the template alone, and then the
guards are taken out again. Encoding the messages apart from the template would be as safe, but would
cut words where the model was trained to see none, and would hide the content from the template's own
tests and filters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from rondel.decoder.errors import InvalidRequest, UnsupportedModel
from rondel.decoder.lm.strings import check_text, find_marks, overlap

GUARDS: Final = tuple(chr(code) for code in range(0xFDD0, 0xFDF0))
"""Unicode noncharacters: no text has a use for them."""

MAX_MESSAGES: Final = 10_000


class Refused(Exception):
    """A template called raise_exception: it will not have these messages."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered conversation with its guards still in it."""

    text: str
    guard: str

    def unguard(self, piece: str) -> str:
        """A piece of the text, as it was written."""
        return piece.replace(self.guard, "")


class ChatTemplate:
    """A template, compiled anew for each conversation: a bad one stands in nobody's way but a chat's.

    Args:
        source: Jinja, as Hugging Face writes it (``messages``, ``add_generation_prompt``, ``bos_token``…).
        markup: the texts of all control tokens.
        bos: text of the BOS token, or "".
        eos: text of the EOS token, or "".
    """

    def __init__(self, source: str, *, markup: Sequence[str], bos: str, eos: str) -> None:
        self._environment = environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        self._source = source
        self._markup = tuple(markup)
        # A token of one character has no inside to guard, and is none that a template writes.
        spelled = sorted((mark for mark in markup if len(mark) > 1), key=len, reverse=True)
        self._spelling = re.compile("|".join(map(re.escape, spelled))) if spelled else None
        self._longest = max(map(len, markup), default=0)
        self._first = frozenset(mark[0] for mark in markup)
        self._tokens = {"bos_token": bos, "eos_token": eos}

    def render(self, messages: Sequence[Mapping[str, str]]) -> Rendered:
        """The conversation as text, up to where the model's answer begins.

        Raises:
            InvalidRequest: no messages, a malformed one, or an order that the template refuses.
            UnsupportedModel: the template does not compile, or fails.
        """
        _check(messages)
        guard = self._free_guard(messages)
        guarded = [{key: self._guarded(text, guard) for key, text in each.items()} for each in messages]
        try:
            template = self._environment.from_string(self._source)
            text = template.render(messages=guarded, add_generation_prompt=True, **self._tokens)
        except Refused as error:
            raise InvalidRequest(
                f"the model's chat template refuses these messages: {error}", field="chat"
            ) from error
        except (
            jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError,
            RecursionError,
        ) as error:  # fmt: skip  # whatever an expression of the template's can raise
            raise UnsupportedModel(f"the model's chat template fails ({error})") from error
        return Rendered(text, guard)

    def _free_guard(self, messages: Sequence[Mapping[str, str]]) -> str:
        texts = [self._source, *(text for each in messages for text in each.values())]
        for guard in GUARDS:
            if not any(guard in text for text in texts):
                return guard
        raise InvalidRequest(
            f"the messages use all {len(GUARDS)} Unicode noncharacters from U+FDD0 on", field="chat"
        )

    def _guarded(self, text: str, guard: str) -> str:
        if self._spelling is not None:
            pieces, at = [], 0
            for found in find_marks(text, self._spelling, self._longest):
                pieces += [text[at : found.start() + 1], guard]
                at = found.start() + 1
            text = "".join((*pieces, text[at:]))
        # A template may put two messages side by side; a token must not arise on their border.
        kept = text.rstrip()
        if self._first.isdisjoint(kept[-self._longest :]):
            return text
        begun = max((overlap(kept, mark) for mark in self._markup), default=0)
        if begun:
            cut = len(kept) - begun + 1
            text = text[:cut] + guard + text[cut:]
        return text


def _check(messages: Sequence[Mapping[str, str]]) -> None:
    if isinstance(messages, str | Mapping) or not 1 <= len(messages) <= MAX_MESSAGES:
        got = f"{len(messages)}" if isinstance(messages, list | tuple) else f"{messages!r:.80}"
        raise InvalidRequest(
            f"expected a sequence of 1 to {MAX_MESSAGES} messages, got {got}", field="messages"
        )
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or not {"role", "content"} <= set(message):
            raise InvalidRequest(
                f"message {number}: expected role and content, got {message!r:.80}", field="messages"
            )
        for text in (*message, *message.values()):
            check_text(text, field="content")


def _refuse(reason: object = "") -> NoReturn:
    raise Refused(str(reason))


def _to_json(value: Any, indent: int | None = None) -> str:
    # Jinja's own filter writes for HTML.
    return json.dumps(value, ensure_ascii=False, indent=indent)
