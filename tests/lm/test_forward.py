import hashlib
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import straightline
import tinygguf

from rondel.decoder.errors import InvalidRequest, InvalidSpec, LengthExceeded, ValueRange
from rondel.decoder.lm.forward import CHUNK, LanguageModel, rms_norm, silu
from rondel.decoder.rope import Rope
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec

Open = Callable[[StreamSpec], DecoderSession]

TOKENS = np.random.default_rng(11).integers(0, len(tinygguf.TOKENS), 150).tolist()
SCALED = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
FACTORS = np.linspace(1.0, 8.0, 8, dtype=np.float32)
DIVIDED = tinygguf.tensors() | {"rope_freqs.weight": FACTORS}
YARN = {
    "llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0,
    "llama.rope.scaling.original_context_length": 64,
}  # fmt: skip
# The ramp goes from pair 0 to pair 3: 16 ln(64 / 2π) / 2 ln 10000 is 2.02.
STRETCH = [1 / (1 - ramp + ramp / 4) for ramp in (0, 1 / 3, 2 / 3, 1, 1, 1, 1, 1)]


def expected(tokens: list[int], weights: dict[str, Any], **options: Any) -> np.ndarray:
    defaults = {"heads": 4, "kv_heads": 2, "eps": 1e-5, "base": 10_000.0, "rope_dim": 16}
    return straightline.logits(tokens, weights, **(defaults | options))


@pytest.mark.parametrize(
    ("changes", "weights", "options"),
    [
        ({}, tinygguf.tensors(), {}),
        ({}, tinygguf.tensors(tied=True), {}),
        ({"llama.rope.dimension_count": 6}, tinygguf.tensors(), {"rope_dim": 6}),
        (SCALED, tinygguf.tensors(), {"factor": 4.0}),
        ({}, DIVIDED, {"factors": FACTORS}),
        (SCALED, DIVIDED, {"factors": FACTORS, "factor": 4.0}),
        (YARN, tinygguf.tensors(), {"factors": STRETCH, "magnitude": 0.1 * math.log(4.0) + 1.0}),
        (
            {"llama.attention.key_length": 24, "llama.attention.value_length": 8},
            tinygguf.tensors(key_dim=24, value_dim=8),
            {"rope_dim": 24},
        ),
    ],
    ids=[
        "plain",
        "tied",
        "partial rotary",
        "linear scaling",
        "rope factors",
        "both",
        "yarn",
        "unequal heads",
    ],
)
@pytest.mark.parametrize(("storage", "tolerance"), [("float32", 2e-5), ("int8", 0.05)])
def test_equals_the_model_written_straight_down(
    tmp_path: Path,
    open_session: Open,
    changes: dict[str, object],
    weights: dict[str, Any],
    options: dict[str, Any],
    storage: str,
    tolerance: float,
) -> None:
    model = LanguageModel.load(tinygguf.write(tmp_path / "m.gguf", changes=changes, weights=weights))
    logits = expected(TOKENS, weights, **options)
    stream = open_session(model.spec(storage=storage))
    for part in (slice(0, 97), slice(97, 98), slice(98, 150)):
        got = model.forward(TOKENS[part], stream)
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, logits[part][-1], atol=tolerance * np.abs(logits).max())


def test_chunks_make_no_difference(tiny: LanguageModel) -> None:
    whole = tiny.forward(TOKENS, straightline.PlainStream(tiny.spec()))
    for size in (1, 7, CHUNK):
        got = tiny.forward(TOKENS, straightline.PlainStream(tiny.spec(), at_most=size))
        np.testing.assert_allclose(got, whole, atol=1e-4)


def test_a_wrapped_window_takes_a_prompt_in_chunks_of_its_reserve(
    tiny: LanguageModel, open_session: Open
) -> None:
    spec = tiny.spec(window=32, sinks=4, reserve=7, storage="float32")
    whole, single = open_session(spec), open_session(spec)
    got = tiny.forward(TOKENS, whole)
    for token in TOKENS:
        last = tiny.forward([token], single)
    assert whole.length == single.length == len(TOKENS)
    np.testing.assert_allclose(got, last, atol=1e-4)


@pytest.mark.parametrize(
    "tokens",
    [[], [5, -1], [5, len(tinygguf.TOKENS)], [[1, 2]], [1.5], ["a"], [True], [5, [6]], [5, None], [1 << 70]],
)
def test_what_is_no_token_is_refused(tiny: LanguageModel, open_session: Open, tokens: list[Any]) -> None:
    stream = open_session(tiny.spec())
    tiny.forward([1, 2, 3], stream)
    with pytest.raises(InvalidRequest):
        tiny.forward(tokens, stream)
    assert stream.length == 3
    assert stream.layer_length(0) == 3


def test_more_than_the_context_is_refused_before_anything_changes(
    tiny: LanguageModel, open_session: Open
) -> None:
    stream = open_session(tiny.spec())
    with pytest.raises(LengthExceeded, match="got 301 tokens at position 0, expected at most 300") as caught:
        tiny.forward([1] * 301, stream)
    assert caught.value.limit == 300
    short = open_session(tiny.spec(max_length=10))
    tiny.forward([1] * 8, short)
    with pytest.raises(LengthExceeded, match="expected at most 10"):
        tiny.forward([1] * 3, short)
    assert (stream.length, short.length) == (0, 8)
    wide = open_session(StreamSpec(groups=tiny.spec(window=296, sinks=5).groups))
    with pytest.raises(LengthExceeded, match="expected at most 300"):
        tiny.forward([1] * 301, wide)


def test_a_window_within_the_context_has_no_end(tiny: LanguageModel, open_session: Open) -> None:
    unbounded = StreamSpec(groups=tiny.spec(window=296, sinks=4, reserve=63).groups)
    assert tiny.limit(unbounded) == unbounded.length_limit
    endless = open_session(unbounded)
    tiny.forward([1] * 700, endless)
    assert endless.length == 700
    bounded = open_session(tiny.spec(window=296, sinks=4, reserve=63, max_length=800))
    tiny.forward([1] * 799, bounded)
    assert tiny.room(bounded) == 1
    with pytest.raises(LengthExceeded, match="expected at most 800"):
        tiny.forward([1, 1], bounded)


def test_what_came_before_the_window_leaves_no_trace(tiny: LanguageModel, open_session: Open) -> None:
    """Far beyond the context: what is left of the stream is its last tokens, as if they stood at its start.

    Of two layers the upper sees what the lower saw, so two windows of the same tokens are the same answer.
    """
    rng = np.random.default_rng(31)
    before, after = rng.integers(0, 256, 1500).tolist(), rng.integers(0, 256, 200).tolist()
    spec = tiny.spec(window=100, reserve=63, storage="float32", max_length=2000)
    far, near = open_session(spec), open_session(spec)
    tiny.forward(before, far)
    np.testing.assert_allclose(tiny.forward(after, far), tiny.forward(after, near), atol=2e-4)


OTHER_ROPES = [None, Rope(), Rope(interleaved=True, theta=1e6), Rope(interleaved=True, dim=8)]


@pytest.mark.parametrize(
    "changes",
    [
        {"layers": 3},
        {"kv_heads": 4},
        {"head_dim": 32},
        {"scale": 1.0},
        *({"rope": rope} for rope in OTHER_ROPES),
    ],
)
def test_a_stream_of_another_shape_is_refused(
    tiny: LanguageModel, open_session: Open, changes: dict[str, Any]
) -> None:
    shape: dict[str, Any] = {"layers": 2, "query_heads": 4, "kv_heads": 2, "head_dim": 16, "max_length": 50,
                             "rope": Rope(interleaved=True)}  # fmt: skip
    tiny.forward([1], open_session(StreamSpec.uniform(**shape)))
    with pytest.raises(InvalidSpec, match="do not fit the model"):
        tiny.forward([1], open_session(StreamSpec.uniform(**(shape | changes))))


def test_a_spec_beyond_the_context_is_refused(tiny: LanguageModel) -> None:
    assert tiny.spec().max_length == 300
    for options in ({}, {"window": 301}, {"window": 297, "sinks": 4}):
        with pytest.raises(
            InvalidSpec, match="context of 300 unless window and sinks lie within it, got 301"
        ):
            tiny.spec(max_length=301, **options)
    assert tiny.spec(max_length=301, window=296, sinks=4).max_length == 301


class Failing:
    """A session whose step fails at one call."""

    def __init__(self, session: DecoderSession, fail_at: int) -> None:
        self._session, self._left = session, fail_at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def step(self, *arguments: Any) -> Any:
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt
        return self._session.step(*arguments)


def test_a_failure_between_layers_leaves_them_even(tiny: LanguageModel, open_session: Open) -> None:
    spec = tiny.spec(window=40, reserve=15)
    stream, clean = open_session(spec), open_session(spec)
    with pytest.raises(KeyboardInterrupt):
        tiny.forward(TOKENS, Failing(stream, 4))
    length = stream.length
    assert 0 < length < len(TOKENS)
    assert [stream.layer_length(layer) for layer in range(2)] == [length] * 2
    got = tiny.forward(TOKENS[length:], stream)
    np.testing.assert_allclose(got, tiny.forward(TOKENS, clean), atol=1e-4)


def test_a_checkpoint_can_end_the_call_at_a_whole_chunk(tiny: LanguageModel, open_session: Open) -> None:
    stream = open_session(tiny.spec())
    lengths = []

    def checkpoint() -> None:
        lengths.append(stream.length)
        if len(lengths) == 3:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        tiny.forward(TOKENS, stream, checkpoint=checkpoint)
    assert lengths == [0, CHUNK, 2 * CHUNK]
    assert stream.layer_length(0) == stream.layer_length(1) == 2 * CHUNK


def test_an_overflow_is_reported_not_computed_with(tmp_path: Path, open_session: Open) -> None:
    weights = tinygguf.tensors()
    for name in ("gate", "up"):
        weights[f"blk.0.ffn_{name}.weight"] *= np.float32(1e25)
    model = LanguageModel.load(tinygguf.write(tmp_path / "m.gguf", weights=weights))
    stream = open_session(model.spec())
    with pytest.raises(ValueRange):
        model.forward([1, 2], stream)
    assert stream.length == stream.layer_length(0) == 0


PROGRAM = """
import sys, hashlib, numpy
from rondel.decoder.cache.arena import Arena
from rondel.decoder.lm.forward import LanguageModel
from rondel.decoder.session import DecoderSession
model = LanguageModel.load(sys.argv[1])
with DecoderSession(model.spec(), Arena(budget=1 << 26)) as stream:
    logits = model.forward([int(token) for token in sys.argv[2].split(",")], stream)
print(hashlib.sha256(logits.tobytes()).hexdigest())
"""


def test_another_process_computes_the_same_bits(
    tiny: LanguageModel, tiny_file: Path, open_session: Open
) -> None:
    here = tiny.forward(TOKENS, open_session(tiny.spec()))
    there = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tiny_file), ",".join(map(str, TOKENS))],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    assert there == hashlib.sha256(here.tobytes()).hexdigest()


def test_rms_norm_and_silu(rng: np.random.Generator) -> None:
    x, weight = rng.standard_normal((5, 64)), rng.standard_normal(64)
    expected = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-5) * weight
    got = rms_norm(x.astype(np.float32), weight.astype(np.float32), 1e-5)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    assert not rms_norm(np.zeros((1, 4), np.float32), np.ones(4, np.float32), 1e-5).any()
    y = np.array([-3e38, -200.0, -80.0, -5.0, -1e-3, 0.0, 2.0, 90.0, 3e38])
    wide = y / (1 + np.exp(-np.maximum(y, -300.0)))
    np.testing.assert_allclose(silu(y[1:].astype(np.float32)), wide[1:], rtol=1e-5, atol=1e-30)
    assert np.isfinite(silu(y.astype(np.float32))).all()


def test_loading_reports_progress(tiny_file: Path) -> None:
    seen: list[tuple[int, int]] = []
    LanguageModel.load(tiny_file, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(0, 2), (1, 2), (2, 2)]
