"""Generating text: prompt in, tokens out, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from typing import Literal

from rondel.decoder.errors import InvalidSpec
from rondel.decoder.lm.detokenizer import StreamingDetokenizer
from rondel.decoder.lm.forward import LanguageModel
from rondel.decoder.lm.sampling import GREEDY, MAX_INDEX, Sampling
from rondel.decoder.lm.stops import StopTexts
from rondel.decoder.lm.stream import AttentionStream

__all__ = ["AttentionStream", "FinishReason", "Token", "generate"]

FinishReason = Literal["stop", "length"]
"""``stop``: an end token or a stop text. ``length``: max_tokens, or stream or context are full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One generated token."""

    id: int
    index: int
    """Its number in the generation; with the seed it picks the sampling noise."""
    text: str
    """Text that can be shown now: whole characters, no end token, no part of a stop text. May be
    empty, and may complete characters of earlier tokens. All joined are the answer."""
    logprob: float
    """Natural log of the probability that the model gave it, before any sampling setting."""
    finish_reason: FinishReason | None
    """Set on the last token only."""


def generate(
    model: LanguageModel,
    stream: AttentionStream,
    prompt: Sequence[int],
    sampling: Sampling = GREEDY,
    max_tokens: int | None = None,
    *,
    stop_ids: Collection[int] | None = None,
    stop: Sequence[str] = (),
    first_index: int = 0,
    checkpoint: Callable[[], None] | None = None,
) -> Generator[Token, None, None]:
    """Run a prompt and generate until something ends it.

    A token is fed to the stream when the one after it is asked for: after the generation, or when it
    is abandoned, the stream has the prompt and every token yielded but the last. Nothing else is kept.

    Args:
        model: the model.
        stream: where its keys and values go; the caller's, before and after. It may hold tokens already.
        prompt: at least one token id.
        sampling: how tokens are chosen.
        max_tokens: at least 1; None = until the stream or the context is full.
        stop_ids: tokens that end the answer; None = the model's own.
        stop: texts that end the answer; neither they nor what follows is shown.
        first_index: number of the first token. A resumed run gives the tokens that it already has in the
            prompt and their count here, and goes on with the same noise.
        checkpoint: called before each chunk of at most 64 prompt tokens and before each later token; may
            raise to end the run.

    Raises (at once, before anything has changed):
        InvalidRequest: no prompt, or a token id that is not in the vocabulary.
        LengthExceeded: the prompt is longer than the stream or the model's context has room for.
        InvalidSpec: an option is out of range, or the stream was made for another model.
    """
    if max_tokens is not None and (not isinstance(max_tokens, int) or max_tokens < 1):
        raise InvalidSpec(f"max_tokens must be at least 1, got {max_tokens!r}", field="max_tokens")
    if not isinstance(first_index, int) or not 0 <= first_index <= MAX_INDEX:
        raise InvalidSpec(f"first_index must be at least 0, got {first_index!r}", field="first_index")
    model.check(prompt, stream)
    ends = model.tokenizer.end_ids if stop_ids is None else frozenset(stop_ids)
    last = None if max_tokens is None else first_index + max_tokens - 1
    return _run(model, stream, prompt, sampling, last, ends, StopTexts(stop), first_index, checkpoint)


def _run(
    model: LanguageModel,
    stream: AttentionStream,
    tokens: Sequence[int],
    sampling: Sampling,
    last: int | None,
    ends: Collection[int],
    stops: StopTexts,
    index: int,
    checkpoint: Callable[[], None] | None,
) -> Generator[Token, None, None]:
    detokenizer = StreamingDetokenizer(model.tokenizer)
    reason: FinishReason | None = None
    while reason is None:
        logits = model.forward(tokens, stream, checkpoint=checkpoint)
        token, logprob = sampling.choose(logits, index)
        text = stops.feed("" if token in ends else detokenizer.feed(token))
        if token in ends or stops.found:
            reason = "stop"
        elif index == last or model.room(stream) == 0:
            reason = "length"
        if reason is not None:
            text += stops.feed(detokenizer.flush()) + stops.flush()
        yield Token(id=token, index=index, text=text, logprob=logprob, finish_reason=reason)
        tokens, index = (token,), index + 1
