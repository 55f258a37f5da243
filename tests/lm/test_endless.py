"""A text as one stream with a window and sinks, against the model written straight down the page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import straightline
import tinygguf

from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import InvalidRequest, InvalidSpec, ValueRange
from rondel.decoder.lm.endless import measure, sampled, stream_of
from rondel.decoder.lm.forward import LanguageModel
from rondel.decoder.lm.segments import Endless, Footprint, Segment
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec

W, S, SPAN = 60, 4, 64
TEXT = np.random.default_rng(41).integers(0, 256, 700).tolist()
SIZES: dict[str, Any] = {"window": W, "sinks": S, "segment": 200, "samples": 12, "timed": 3}


@pytest.fixture
def opened() -> list[DecoderSession]:
    return []


@pytest.fixture
def open_stream(opened: list[DecoderSession]) -> Callable[[StreamSpec], DecoderSession]:
    arena = Arena(budget=256 << 20)

    def open_one(spec: StreamSpec) -> DecoderSession:
        opened.append(DecoderSession(spec, arena))
        return opened[-1]

    return open_one


def weigh(stream: Any) -> Footprint:
    return Footprint(stream.stats().bytes_resident, stream.length)


def straight(tokens: list[int], **options: int) -> np.ndarray:
    """-log p of every token but the first, in float64."""
    shape: dict[str, Any] = {"heads": 4, "kv_heads": 2, "eps": 1e-5, "base": 10_000.0, "rope_dim": 16}
    logits = straightline.logits(tokens[:-1], tinygguf.tensors(), **shape, **options)
    odds = logits - logits.max(axis=1, keepdims=True)
    rows = np.log(np.exp(odds).sum(axis=1)) - odds[np.arange(len(odds)), tokens[1:]]
    return np.asarray(rows)


def test_surprises_are_those_of_the_model_written_straight_down(
    tiny: LanguageModel, open_stream: Any, opened: list[DecoderSession]
) -> None:
    done: list[tuple[int, int]] = []
    got = measure(
        tiny, TEXT, open_stream, weigh, **SIZES, storage="float32", progress=lambda *now: done.append(now)
    )
    assert [(each.start, each.stop, len(each.positions)) for each in got.segments] == [
        (0, 200, 12), (200, 400, 12), (400, 600, 12), (600, 700, 12),
    ]  # fmt: skip
    whole = got.whole
    at = np.array(whole.positions)
    assert (np.diff(at) > 0).all()
    assert SPAN - 1 <= at[0] < at[-1] < 699
    np.testing.assert_allclose(whole.stream, straight(TEXT, window=W, sinks=S)[at], atol=2e-3)
    np.testing.assert_allclose(whole.no_sinks, straight(TEXT, window=SPAN)[at], atol=2e-3)
    scratch = [straight(TEXT[p - SPAN + 1 : p + 2])[-1] for p in at]
    np.testing.assert_allclose(whole.recomputed, scratch, atol=2e-3)
    # The three are not the same by far, or this would show nothing.
    for one, other in ((whole.stream, whole.no_sinks), (whole.stream, whole.recomputed)):
        assert np.abs(one - other).max() > 0.1
    assert whole.ppl_stream == pytest.approx(np.exp(whole.stream.mean()))
    assert whole.ppl_ratio == pytest.approx(whole.ppl_stream / whole.ppl_recomputed)
    assert whole.ppl_ratio_no_sinks == pytest.approx(whole.ppl_no_sinks / whole.ppl_recomputed)
    assert all(session.closed for session in opened)
    assert done[-1][0] == done[-1][1]
    assert done == sorted(done)


def test_memory_stands_still_and_both_streams_have_gone_round(
    tiny: LanguageModel, open_stream: Any, opened: list[DecoderSession]
) -> None:
    got = measure(tiny, TEXT, open_stream, weigh, **SIZES)
    assert got.wrapped is not None
    assert got.wrapped.resident == got.ended.resident > 0
    # Here ``process`` is the length: past a ring of 256 slots and the sinks, by less than a chunk.
    assert got.wrapped.process is not None
    assert 256 + S < got.wrapped.process <= 256 + S + 64
    assert got.ended.process == 700
    long, fresh = opened[0], opened[1]
    assert long.spec == fresh.spec
    assert (long.length, fresh.length) == (703, 256 + S + 1 + 3)
    assert got.token_time_ratio == got.long_seconds / got.fresh_seconds > 0.0


def test_a_window_that_holds_the_text_is_the_text_from_scratch(tiny: LanguageModel, open_stream: Any) -> None:
    text = TEXT[:120]
    got = measure(tiny, text, open_stream, weigh, window=115, sinks=4, segment=500, samples=9, timed=1)
    (segment,) = got.segments
    assert segment.positions == (118,)
    assert segment.ppl_ratio == pytest.approx(1.0, abs=1e-4)
    assert segment.ppl_ratio_no_sinks == pytest.approx(1.0, abs=1e-4)
    assert got.wrapped is None


def test_int8_storage_comes_close(tiny: LanguageModel, open_stream: Any) -> None:
    exact, stored = (
        measure(tiny, TEXT, open_stream, weigh, **SIZES, storage=storage) for storage in ("float32", "int8")
    )
    assert stored.storage == "int8"
    assert stored.whole.positions == exact.whole.positions
    assert 0.0 < np.abs(stored.whole.stream - exact.whole.stream).max() < 0.5
    assert stored.whole.ppl_stream == pytest.approx(exact.whole.ppl_stream, rel=0.03)


def test_where_texts_begin_with_bos_so_does_what_is_recomputed(tmp_path: Path, open_stream: Any) -> None:
    changes = {"tokenizer.ggml.add_bos_token": True}
    model = LanguageModel.load(tinygguf.write(tmp_path / "bos.gguf", changes=changes))
    text = stream_of(model.tokenizer, "the other thing, the naïve one. " * 8)
    assert text[0] == tinygguf.START
    got = measure(model, text, open_stream, weigh, window=30, sinks=2, samples=3, timed=1, storage="float32")
    scratch = [straight([tinygguf.START, *text[p - 30 : p + 2]])[-1] for p in got.whole.positions]
    np.testing.assert_allclose(got.whole.recomputed, scratch, atol=2e-3)


def test_positions_are_drawn_once_and_for_all() -> None:
    def draw(**changes: int) -> list[list[int]]:
        options = {"least": 100, "segment": 300, "samples": 20, "seed": 0} | changes
        return [positions.tolist() for positions in sampled(1000, **options)]

    first = draw()
    assert first == draw()
    assert first != draw(seed=1)
    assert [len(positions) for positions in first] == [20] * 4
    for number, positions in enumerate(first):
        assert positions == sorted(set(positions))
        assert max(99, 300 * number) <= positions[0] <= positions[-1] < min(999, 300 * number + 300)
    assert draw(samples=500) == [
        [*range(99, 300)],
        [*range(300, 600)],
        [*range(600, 900)],
        [*range(900, 999)],
    ]
    assert draw(least=650) == [[], [], *draw(least=650)[2:]]


def test_as_much_of_the_text_as_is_asked_for(tiny: LanguageModel) -> None:
    text = "the other thing, " * 300
    ids = tiny.tokenizer.encode(text)
    assert stream_of(tiny.tokenizer, text) == ids
    assert stream_of(tiny.tokenizer, text, tokens=77) == ids[:77]
    with pytest.raises(InvalidRequest, match=f"has {len(ids)} tokens, expected at least {len(ids) + 1}"):
        stream_of(tiny.tokenizer, text, tokens=len(ids) + 1)


def refuse(spec: StreamSpec) -> Any:
    pytest.fail("a stream was opened")


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"tokens": TEXT[:64]}, InvalidRequest, "has 64 tokens, expected more than window and sinks, 64"),
        ({"samples": 0}, InvalidRequest, "samples must be an integer of at least 1"),
        ({"segment": 0}, InvalidRequest, "segment"),
        ({"timed": 0}, InvalidRequest, "timed"),
        ({"window": 297}, InvalidSpec, "context of 300"),
        ({"storage": "int9"}, InvalidSpec, "storage must be one of"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_a_stream_is_opened(
    tiny: LanguageModel, changes: dict[str, Any], error: type[Exception], words: str
) -> None:
    options = {"tokens": TEXT, **SIZES, **changes}
    with pytest.raises(error, match=words):
        measure(tiny, options.pop("tokens"), refuse, weigh, **options)


def test_a_perplexity_beyond_float64_is_refused() -> None:
    far, near = np.array([1000.0]), np.array([1.0])
    segment = Segment(start=0, stop=9, positions=(3,), stream=far, no_sinks=far, recomputed=near)
    with pytest.raises(ValueRange, match="1000 nats"):
        _ = segment.ppl_stream
    one = Endless(
        tokens=9, window=2, sinks=1, storage="int8", segments=(segment, segment), wrapped=None,
        ended=Footprint(1, None), fresh_seconds=2.0, long_seconds=3.0,
    )  # fmt: skip
    assert one.token_time_ratio == 1.5
    assert one.whole.ppl_recomputed == pytest.approx(np.e)
