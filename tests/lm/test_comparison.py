"""Storage types compared over a tiny model, against the same said token by token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import straightline
import tinygguf

from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import InvalidRequest, InvalidSpec, StreamClosed, ValueRange
from rondel.decoder.lm.accuracy import COMPARED, Accuracy
from rondel.decoder.lm.comparison import contexts, measure
from rondel.decoder.lm.distributions import Rows
from rondel.decoder.lm.engine import generate
from rondel.decoder.lm.forward import LanguageModel
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import STORAGE_TYPES, StreamSpec

Open = Callable[[StreamSpec], DecoderSession]

TEXTS = np.random.default_rng(5).integers(0, 256, (3, 151)).tolist()
HALF = 75


class Slow(DecoderSession):
    """A session that takes seven tokens at a time."""

    def chunks(self, tokens: int, *, at_most: int = 512) -> Iterator[slice]:
        return super().chunks(tokens, at_most=min(at_most, 7))


@pytest.fixture
def arena() -> Arena:
    return Arena(budget=256 << 20)


def opening(arena: Arena, kind: type[DecoderSession] = DecoderSession) -> Callable[[StreamSpec], Any]:
    return lambda spec: kind(spec, arena)


def probabilities(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return np.asarray(weights / weights.sum())


def test_what_is_compared_is_every_storage_type_but_float32() -> None:
    assert set(COMPARED) == set(STORAGE_TYPES) - {"float32"}


def test_float32_does_not_differ_from_itself(tiny: LanguageModel, arena: Arena) -> None:
    (got,) = measure(tiny, TEXTS, opening(arena), storages=["float32"], greedy_tokens=30)
    assert (got.kl_mean, got.kl_max, got.top1, got.ppl_delta) == (0.0, 0.0, 1.0, 0.0)
    assert got.first_divergences == (30, 30, 30)
    assert got.tokens == 3 * (151 - HALF)
    assert got.positions.tolist() == list(range(HALF, 151)) * 3
    assert got.ppl == got.ppl_float32
    assert got.seconds > 0.0


def test_equals_the_same_computed_token_by_token(
    tiny: LanguageModel, open_session: Open, arena: Arena
) -> None:
    (got,) = measure(tiny, TEXTS, opening(arena), storages=["int8"], greedy_tokens=4)
    kl, top, surprise = [], [], []
    for text in TEXTS:
        exact = straightline.logits(
            text, tinygguf.tensors(), heads=4, kv_heads=2, eps=1e-5, base=10_000.0, rope_dim=16
        )
        stream = open_session(tiny.spec(storage="int8"))
        for at, token in enumerate(text[:-1]):
            q = probabilities(tiny.forward([token], stream))
            if at + 1 < HALF:
                continue
            p = probabilities(exact[at])
            kl.append(sum(a * np.log(a / b) for a, b in zip(p, q, strict=True)))
            top.append(int(p.argmax()) == int(q.argmax()))
            surprise.append((-np.log(p[text[at + 1]]), -np.log(q[text[at + 1]])))
    assert got.kl_mean > 1e-6
    # Not closer: the last bit of a number can decide between two codes.
    np.testing.assert_allclose(got.rows.kl, kl, rtol=0.1, atol=1e-5)
    assert got.kl_mean == pytest.approx(np.mean(kl), rel=0.02)
    assert got.kl_max == pytest.approx(max(kl), rel=0.1)
    assert got.top1 == pytest.approx(np.mean(top), abs=0.01)
    plain, stored = np.exp(np.mean(surprise, axis=0))
    assert got.ppl_float32 == pytest.approx(plain, rel=1e-4)
    assert got.ppl == pytest.approx(stored, rel=1e-4)
    assert got.ppl_delta == pytest.approx(got.ppl / got.ppl_float32 - 1.0, rel=1e-9)


def test_first_divergences_are_those_of_whole_generations(tiny: LanguageModel, arena: Arena) -> None:
    def made(text: list[int], storage: str) -> list[int]:
        with DecoderSession(tiny.spec(storage=storage), arena) as stream:
            running = generate(tiny, stream, text[:HALF], max_tokens=120, stop_ids=())
            return [token.id for token in running]

    texts = [*TEXTS, [7] * 151]
    (got,) = measure(tiny, texts, opening(arena), greedy_tokens=120, storages=["int8"])
    wanted = []
    for text in texts:
        pairs = list(zip(made(text, "float32"), made(text, "int8"), strict=True))
        wanted.append(next((at for at, (a, b) in enumerate(pairs) if a != b), 120))
    assert got.first_divergences == tuple(wanted)
    assert min(wanted) < 120  # otherwise this shows nothing
    assert got.prompts == 4
    assert got.first_divergence_median == sum(sorted(wanted)[1:3]) / 2


def test_the_size_of_blocks_makes_no_difference(tiny: LanguageModel, arena: Arena) -> None:
    (one,) = measure(tiny, TEXTS, opening(arena), storages=["int8"], greedy_tokens=1)
    (other,) = measure(tiny, TEXTS, opening(arena, Slow), storages=["int8"], greedy_tokens=1)
    np.testing.assert_allclose(one.rows.kl, other.rows.kl, rtol=0.1, atol=1e-5)
    assert one.kl_mean == pytest.approx(other.kl_mean, rel=0.02)
    np.testing.assert_allclose(one.rows.surprise_p, other.rows.surprise_p, rtol=1e-4, atol=1e-4)
    assert one.positions.tolist() == other.positions.tolist()


def test_streams_are_closed_and_progress_comes_to_its_end(tiny: LanguageModel, arena: Arena) -> None:
    opened: list[DecoderSession] = []
    seen: list[tuple[int, int]] = []

    def open_one(spec: StreamSpec) -> DecoderSession:
        assert all(session.closed for session in opened if len(opened) % 2 == 0)
        opened.append(DecoderSession(spec, arena))
        return opened[-1]

    measure(tiny, TEXTS, open_one, greedy_tokens=5, storages=["int8"], progress=lambda *now: seen.append(now))
    assert [session.spec.groups[0].storage for session in opened] == ["float32", "int8"] * 3
    assert all(session.closed for session in opened)
    assert seen == sorted(seen)
    assert seen[-1] == (3 * (151 + 2 * 5), 3 * (151 + 2 * 5))


def test_kl_by_position_is_the_mean_over_contexts() -> None:
    kl = np.array([1.0, 2.0, 3.0, 6.0])
    rows = Rows(kl, kl > 2, kl, kl)
    positions = np.array([5, 6, 5, 6])
    one = Accuracy(storage="int8", positions=positions, rows=rows, first_divergences=(1, 9, 4), seconds=1.0)
    assert [part.tolist() for part in one.kl_by_position()] == [[5, 6], [2.0, 4.0]]
    assert (one.kl_mean, one.kl_max, one.top1, one.first_divergence_median) == (3.0, 6.0, 0.5, 4.0)


def test_a_perplexity_beyond_float64_is_refused() -> None:
    far = np.array([1000.0])
    rows = Rows(far, far > 0, far, far)
    one = Accuracy(storage="int8", positions=np.array([1]), rows=rows, first_divergences=(1,), seconds=1.0)
    with pytest.raises(ValueRange, match="1000 nats"):
        _ = one.ppl
    assert one.ppl_delta == 0.0


def test_contexts_follow_each_other(tiny: LanguageModel, tmp_path: Path) -> None:
    text = "the other thing, " * 30
    ids = tiny.tokenizer.encode(text)
    assert contexts(tiny.tokenizer, text, context=50, chunks=3) == [ids[:50], ids[50:100], ids[100:150]]
    changes = {"tokenizer.ggml.add_bos_token": True}
    begun = LanguageModel.load(tinygguf.write(tmp_path / "bos.gguf", changes=changes)).tokenizer
    start = [tinygguf.START]
    assert contexts(begun, text, context=50, chunks=2) == [start + ids[1:50], start + ids[51:100]]


def test_contexts_that_cannot_be(tiny: LanguageModel) -> None:
    with pytest.raises(InvalidRequest, match=r"has 5 tokens, expected at least 6 \(2 contexts of 3\)"):
        contexts(tiny.tokenizer, "12345", context=3, chunks=2)
    assert len(contexts(tiny.tokenizer, "123456", context=3, chunks=2)) == 2
    with pytest.raises(InvalidRequest, match="has 0 tokens"):
        contexts(tiny.tokenizer, "", context=2, chunks=1)
    with pytest.raises(InvalidRequest, match="context must be at least 2, got 1"):
        contexts(tiny.tokenizer, "1234", context=1, chunks=1)
    with pytest.raises(InvalidRequest, match="chunks must be at least 1, got 0"):
        contexts(tiny.tokenizer, "1234", context=2, chunks=0)


def refuse(spec: StreamSpec) -> AbstractContextManager[Any]:
    pytest.fail("a stream was opened")
    return nullcontext()


@pytest.mark.parametrize(
    ("texts", "options", "error", "words"),
    [
        ([], {}, InvalidRequest, "at least 2 tokens"),
        ([[1, 2], [1]], {}, InvalidRequest, "at least 2 tokens"),
        ([[1, 2]], {"greedy_tokens": 0}, InvalidSpec, "greedy_tokens must be at least 1, got 0"),
        ([[1] * 301], {"greedy_tokens": 1}, InvalidSpec, "context has 300 positions, expected at least 301"),
        ([[1] * 100], {"greedy_tokens": 251}, InvalidSpec, "expected at least 301"),
        ([[1, 2]], {"greedy_tokens": 9, "storages": ["fp8"]}, InvalidSpec, "storage must be one of"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_a_stream_is_opened(
    tiny: LanguageModel, texts: list[list[int]], options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        measure(tiny, texts, refuse, **options)


def test_the_whole_context_can_be_used(tiny: LanguageModel, arena: Arena) -> None:
    (got,) = measure(tiny, [[1] * 300], opening(arena), greedy_tokens=150, storages=["float32"])
    assert got.tokens == got.first_divergences[0] == 150


def test_a_failure_closes_the_streams(tiny: LanguageModel, arena: Arena) -> None:
    opened: list[DecoderSession] = []

    def open_one(spec: StreamSpec) -> DecoderSession:
        opened.append(DecoderSession(spec, arena))
        return opened[-1]

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(tiny, TEXTS, open_one, greedy_tokens=5, progress=stop)
    assert len(opened) == 1 + len(COMPARED)
    with pytest.raises(StreamClosed):
        tiny.forward([1], opened[0])
