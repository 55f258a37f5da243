"""A text of any length as one stream with a window and sinks, beside the same predictions from scratch.

The stream never forgets its first tokens and always sees its last; all that the model is told are distances
in the cache (StreamingLLM, arXiv 2309.17453). At sampled positions its prediction is put beside that of the
same model run on the last window + sinks tokens alone. A second stream, with a window as large and no sinks,
shows what they are for.

The two are not the same computation: what the window has of a token was computed when that token's own window
lay further back, so a deep model's stream remembers more than window + sinks tokens.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rondel.decoder.errors import InvalidRequest
from rondel.decoder.lm.distributions import Wide, log_softmax, surprise
from rondel.decoder.lm.forward import CHUNK, LanguageModel
from rondel.decoder.lm.segments import Endless, Footprint, Segment
from rondel.decoder.lm.stream import AttentionStream
from rondel.decoder.lm.tokenizer import Tokenizer
from rondel.decoder.lm.weights import Progress
from rondel.decoder.spec import StreamSpec, integer

TIMED: Final = 200
"""Tokens of each of the two streams whose times are compared."""

Positions = NDArray[np.int64]
OpenStream = Callable[[StreamSpec], AbstractContextManager[AttentionStream]]
Weigh = Callable[[AttentionStream], Footprint]


def stream_of(tokenizer: Tokenizer, text: str, *, tokens: int | None = None) -> list[int]:
    """A text's tokens, all or the first ``tokens``; where the model's texts begin with BOS, so does this.

    Raises:
        InvalidRequest: the text has fewer.
    """
    ids: list[int] = []
    for piece in tokenizer.pieces(text):
        ids += piece
        if tokens is not None and len(ids) >= tokens:
            return ids[:tokens]
    if tokens is not None:
        raise InvalidRequest(f"the text has {len(ids)} tokens, expected at least {tokens}", field="tokens")
    return ids


def sampled(tokens: int, *, least: int, segment: int, samples: int, seed: int) -> list[Positions]:
    """Positions whose next token is known and that have at least ``least`` tokens, themselves included: up to
    ``samples`` in each stretch of ``segment`` positions, ascending. Stretches without any are empty."""
    rng = np.random.default_rng(seed)
    drawn = []
    for start in range(0, tokens, segment):
        possible = np.arange(max(start, least - 1), min(start + segment, tokens - 1), dtype=np.int64)
        drawn.append(np.sort(rng.choice(possible, min(samples, len(possible)), replace=False)))
    return drawn


def measure(
    model: LanguageModel,
    tokens: Sequence[int],
    open_stream: OpenStream,
    weigh: Weigh,
    *,
    window: int,
    sinks: int,
    segment: int = 4096,
    samples: int = 64,
    storage: str = "int8",
    seed: int = 0,
    timed: int = TIMED,
    progress: Progress | None = None,
) -> Endless:
    """Run a text as one stream and compare it with recomputation.

    Args:
        model: the model.
        tokens: the text; from scratch are run the last window + sinks of them, the first replaced by BOS
            where the model's texts begin with it.
        open_stream: opens a stream.
        weigh: tells what a stream takes; called when it has gone round and when it has all tokens.
        window, sinks: of the stream.
        segment, samples: see :func:`sampled`; ``seed`` is its.
        storage: of all streams.
        timed: tokens whose times are compared, behind the text: its own again.
        progress: called as ``progress(done, total)``, in tokens.

    Raises:
        InvalidRequest: no position can be sampled, or a token is not in the vocabulary, or a number is too
            small.
        InvalidSpec: window and sinks are beyond the model's context, or the storage type is unknown.
        ValueRange: the model computes numbers that are not finite.
        RondelError: what a stream raises.
    """
    for name, value in (("segment", segment), ("samples", samples), ("timed", timed)):
        integer(name, value, least=1)
    span = window + sinks
    places = sampled(len(tokens), least=span, segment=segment, samples=samples, seed=seed)
    wanted = np.concatenate(places) if places else np.zeros(0, np.int64)
    if not len(wanted):
        raise InvalidRequest(
            f"the text has {len(tokens)} tokens, expected more than window and sinks, {span}", field="tokens"
        )
    # So that a wrapped ring takes the model's chunks whole.
    length = len(tokens) + timed
    spec = model.spec(window=window, sinks=sinks, reserve=CHUNK - 1, storage=storage, max_length=length)
    bare = model.spec(window=span, reserve=CHUNK - 1, storage=storage, max_length=length)
    alone = model.spec(storage=storage, max_length=span)
    # A token behind the ring's last slot: the first page has begun a new lap.
    ring = spec.groups[0].capacity
    fresh = min(len(tokens), sinks + (len(tokens) if ring is None else ring) + 1)
    report = _Report(progress, 2 * len(tokens) + fresh + 2 * timed + span * len(wanted))

    def from_scratch(at: int) -> Wide:
        begin = model.tokenizer.encode("")
        context = [*begin, *tokens[at - span + 1 + len(begin) : at + 1]]
        with open_stream(alone) as stream:
            logits = model.forward(context, stream)
        report(span)
        return surprise(log_softmax(logits[None]), np.asarray(tokens[at + 1 : at + 2]))

    with open_stream(spec) as stream:
        surprises, wrapped = [], None
        for block in _predictions(model, tokens, stream, wanted, report):
            surprises.append(block)
            if wrapped is None and stream.length >= fresh < len(tokens):
                wrapped = weigh(stream)
        ended = weigh(stream)
        with open_stream(spec) as other:
            model.forward(tokens[:fresh], other)
            report(fresh)
            fresh_seconds, long_seconds = _times(model, tokens, other, stream, timed)
            report(2 * timed)
    with open_stream(bare) as stream:
        bare_surprises = np.concatenate(list(_predictions(model, tokens, stream, wanted, report)))
    scratch = np.concatenate([from_scratch(int(at)) for at in wanted])
    segments = _segments(places, segment, len(tokens), np.concatenate(surprises), bare_surprises, scratch)
    return Endless(
        tokens=len(tokens),
        window=window,
        sinks=sinks,
        storage=storage,
        segments=segments,
        wrapped=wrapped,
        ended=ended,
        fresh_seconds=fresh_seconds,
        long_seconds=long_seconds,
    )


def _segments(
    places: Sequence[Positions], segment: int, tokens: int, stream: Wide, no_sinks: Wide, recomputed: Wide
) -> tuple[Segment, ...]:
    """The surprises [wanted positions] by stretches of the text, those without any left out."""
    ends = np.cumsum([len(positions) for positions in places]).tolist()
    return tuple(
        Segment(
            start=number * segment,
            stop=min(tokens, (number + 1) * segment),
            positions=tuple(positions.tolist()),
            stream=stream[end - len(positions) : end],
            no_sinks=no_sinks[end - len(positions) : end],
            recomputed=recomputed[end - len(positions) : end],
        )
        for number, (positions, end) in enumerate(zip(places, ends, strict=True))
        if len(positions)
    )


class _Report:
    """Adds up what is done."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def __call__(self, more: int) -> None:
        self._done += more
        if self._progress is not None:
            self._progress(self._done, self._total)


def _predictions(
    model: LanguageModel,
    tokens: Sequence[int],
    stream: AttentionStream,
    wanted: Positions,
    report: Callable[[int], None],
) -> Iterator[Wide]:
    """Runs all tokens; -log p of the token after each wanted position, those of a chunk at a time."""
    ids, at = np.asarray(tokens, np.int64), 0
    for logits in model.logits(tokens, stream):
        here = wanted[(wanted >= at) & (wanted < at + len(logits))]
        yield surprise(log_softmax(logits[here - at]), ids[here + 1]) if len(here) else np.zeros(0)
        at += len(logits)
        report(len(logits))


def _times(
    model: LanguageModel, tokens: Sequence[int], a: AttentionStream, b: AttentionStream, timed: int
) -> tuple[float, float]:
    """Median seconds of a token in either stream, A B A B: what else the machine does falls on both."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for number in range(timed):
        for stream, times in zip((a, b), seconds, strict=True):
            began = time.perf_counter()
            model.forward([tokens[number % len(tokens)]], stream)
            times.append(time.perf_counter() - began)
    return statistics.median(seconds[0]), statistics.median(seconds[1])
