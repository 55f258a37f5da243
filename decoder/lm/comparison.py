"""Running a text with several cache storage types, and comparing what the model then expects.

A text is cut into contexts. Each is run with all storage types in step, a chunk at a time as any prompt is:
attention reads keys and values as stored, and no more than a chunk of distributions is held. Compared are
those that predict the second half of a context: a cache that is nearly empty has little to lose. The first
half is also a prompt, which each storage type continues greedily.

How sure the numbers are: the last bit of an activation can decide between two codes, and a deep model makes
much of it. Another kernel tier or another BLAS gives other rows; on a model of 30 layers the mean KL over
4,096 tokens then moves by some 3%, over 256 by 6%. Without codes the same changes come to 1e-11 nats.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from itertools import count
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rondel.decoder.errors import InvalidRequest, InvalidSpec
from rondel.decoder.lm.accuracy import COMPARED, REFERENCE, Accuracy
from rondel.decoder.lm.distributions import Rows, compare, log_softmax
from rondel.decoder.lm.engine import generate
from rondel.decoder.lm.forward import LanguageModel
from rondel.decoder.lm.stream import AttentionStream
from rondel.decoder.lm.tokenizer import Tokenizer
from rondel.decoder.lm.weights import Progress
from rondel.decoder.spec import StreamSpec

GREEDY_TOKENS: Final = 256

OpenStream = Callable[[StreamSpec], AbstractContextManager[AttentionStream]]


def contexts(tokenizer: Tokenizer, text: str, *, context: int, chunks: int) -> list[list[int]]:
    """The first ``chunks`` runs of ``context`` tokens of a text, one after the other.

    Where the model's texts begin with BOS, it takes the place of the first token of each.

    Raises:
        InvalidRequest: the text has fewer tokens, or is none; or context or chunks is too small.
    """
    for name, value, least in (("context", context, 2), ("chunks", chunks, 1)):
        if value < least:
            raise InvalidRequest(f"{name} must be at least {least}, got {value}", field=name)
    ids: list[int] = []
    for piece in tokenizer.pieces(text, bos=False):
        ids += piece
        if len(ids) >= context * chunks:
            break
    else:
        raise InvalidRequest(
            f"the text has {len(ids)} tokens, expected at least {context * chunks} "
            f"({chunks} contexts of {context})",
            field="text",
        )
    begin = tokenizer.encode("")
    cuts = (ids[at : at + context] for at in range(0, context * chunks, context))
    return [begin + cut[len(begin) :] for cut in cuts]


def measure(
    model: LanguageModel,
    texts: Sequence[Sequence[int]],
    open_stream: OpenStream,
    *,
    storages: Sequence[str] = COMPARED,
    greedy_tokens: int = GREEDY_TOKENS,
    progress: Progress | None = None,
) -> list[Accuracy]:
    """Compare storage types with float32 storage.

    Args:
        model: the model.
        texts: contexts, of at least 2 tokens each.
        open_stream: opens a stream; each context has one of its own for every storage type.
        storages: what to compare.
        greedy_tokens: length of the continuations, at least 1. End tokens do not end them.
        progress: called as ``progress(done, total)``, in tokens.

    Returns:
        An Accuracy per storage type, in their order.

    Raises:
        InvalidRequest: no contexts, one that is too short, or a token that is not in the vocabulary.
        InvalidSpec: greedy_tokens is out of range, the model's context is too short, or a storage type is
            unknown.
        ValueRange: the model computes numbers that are not finite.
        RondelError: what a stream raises.
    """
    if not texts or min(map(len, texts)) < 2:
        raise InvalidRequest(f"expected contexts of at least 2 tokens, got {len(texts)}", field="texts")
    if greedy_tokens < 1:
        raise InvalidSpec(f"greedy_tokens must be at least 1, got {greedy_tokens}", field="greedy_tokens")
    longest = max(map(len, texts))
    needed = max(longest, longest // 2 + greedy_tokens)
    if needed > model.context_length:
        raise InvalidSpec(
            f"the model's context has {model.context_length} positions, expected at least {needed} for "
            f"contexts of {longest} tokens and {greedy_tokens} greedy tokens after their first halves",
            field="context",
        )
    specs = [model.spec(storage=storage, max_length=needed) for storage in (REFERENCE, *storages)]
    tallies = [_Tally(storage) for storage in storages]
    total = sum(map(len, texts)) + len(specs) * greedy_tokens * len(texts)
    before = 0
    for text in texts:
        with ExitStack() as stack:
            streams = [stack.enter_context(open_stream(spec)) for spec in specs]
            for done in _run(model, text, streams, tallies, greedy_tokens):
                if progress is not None:
                    progress(before + done, total)
        before += len(text) + len(specs) * greedy_tokens
    return [tally.result() for tally in tallies]


@dataclass(slots=True)
class _Tally:
    """What has been seen of one storage type so far."""

    storage: str
    positions: list[NDArray[np.int64]] = field(default_factory=list)
    rows: list[Rows] = field(default_factory=list)
    first_divergences: list[int] = field(default_factory=list)
    seconds: float = 0.0

    def result(self) -> Accuracy:
        return Accuracy(
            storage=self.storage,
            positions=np.concatenate(self.positions),
            rows=Rows(*(np.concatenate(column) for column in zip(*self.rows, strict=True))),
            first_divergences=tuple(self.first_divergences),
            seconds=self.seconds,
        )


def _run(
    model: LanguageModel,
    text: Sequence[int],
    streams: Sequence[AttentionStream],
    tallies: Sequence[_Tally],
    greedy_tokens: int,
) -> Iterator[int]:
    """Compare and continue one context; the first stream is float32's. Yields how many tokens are done."""
    half = len(text) // 2
    # The token at ``half`` is predicted after the one before it; the last of the text predicts none of it.
    expected, *others = (model.logits(text[:-1], stream, first=half - 1) for stream in streams)
    tokens, at = np.asarray(text, np.int64), half
    for logits in expected:
        wanted = log_softmax(logits)
        predicted = np.arange(at, at + len(wanted))
        for tally, blocks in zip(tallies, others, strict=True):
            began = time.perf_counter()
            tally.positions.append(predicted)
            tally.rows.append(compare(wanted, log_softmax(next(blocks)), tokens[predicted]))
            tally.seconds += time.perf_counter() - began
        at += len(wanted)
        yield at
    done = len(text) + greedy_tokens
    reference = list(_continuation(model, text[:half], streams[0], greedy_tokens))
    yield done
    for number, (tally, stream) in enumerate(zip(tallies, streams[1:], strict=True), start=1):
        began = time.perf_counter()
        made = _continuation(model, text[:half], stream, greedy_tokens)
        pairs = zip(count(), made, reference, strict=False)
        differ = (index for index, ours, theirs in pairs if ours != theirs)
        tally.first_divergences.append(next(differ, greedy_tokens))
        tally.seconds += time.perf_counter() - began
        yield done + number * greedy_tokens


def _continuation(
    model: LanguageModel, prompt: Sequence[int], stream: AttentionStream, tokens: int
) -> Iterator[int]:
    """Greedy tokens after a prompt that the stream has, and more behind it."""
    stream.truncate(len(prompt) - 1)
    return (token.id for token in generate(model, stream, prompt[-1:], max_tokens=tokens, stop_ids=()))
