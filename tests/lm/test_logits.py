"""Logits after many tokens, a block at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import straightline
import tinygguf

from rondel.decoder.errors import InvalidRequest, LengthExceeded
from rondel.decoder.lm.forward import CHUNK, LanguageModel
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec

Open = Callable[[StreamSpec], DecoderSession]

TOKENS = np.random.default_rng(12).integers(0, len(tinygguf.TOKENS), 150).tolist()


@pytest.mark.parametrize("first", [0, 1, 63, 64, 65, 128, 149])
def test_every_row_from_one_on_and_no_block_larger_than_a_chunk(
    tiny: LanguageModel, open_session: Open, first: int
) -> None:
    exact = straightline.logits(
        TOKENS, tinygguf.tensors(), heads=4, kv_heads=2, eps=1e-5, base=10_000.0, rope_dim=16
    )
    stream = open_session(tiny.spec(storage="float32"))
    blocks = list(tiny.logits(TOKENS, stream, first=first))
    assert stream.length == len(TOKENS)
    assert all(0 < len(block) <= CHUNK and block.dtype == np.float32 for block in blocks)
    np.testing.assert_allclose(np.concatenate(blocks), exact[first:], atol=2e-5 * np.abs(exact).max())


def test_the_last_row_is_what_forward_gives(tiny: LanguageModel, open_session: Open) -> None:
    *_, block = tiny.logits(TOKENS, open_session(tiny.spec()))
    last = tiny.forward(TOKENS, open_session(tiny.spec()))
    np.testing.assert_allclose(block[-1], last, rtol=1e-5, atol=1e-5 * np.abs(last).max())


def test_a_chunk_runs_when_its_block_is_asked_for(tiny: LanguageModel, open_session: Open) -> None:
    stream = open_session(tiny.spec())
    blocks = tiny.logits(TOKENS, stream, first=70)
    assert stream.length == 0
    assert len(next(blocks)) == 2 * CHUNK - 70
    assert stream.length == stream.layer_length(1) == 2 * CHUNK


def test_an_overflow_is_silent_and_the_callers_settings_stay(tmp_path: Path, open_session: Open) -> None:
    weights = tinygguf.tensors()
    weights["output.weight"] *= np.float32(1e38)
    weights["output_norm.weight"] *= np.float32(1e3)
    model = LanguageModel.load(tinygguf.write(tmp_path / "m.gguf", weights=weights))
    blocks = model.logits(TOKENS, open_session(model.spec()))
    before = np.geterr()
    assert np.isinf(next(blocks)).any()
    assert np.geterr() == before


def test_bad_calls_are_refused_at_once(tiny: LanguageModel, open_session: Open) -> None:
    stream = open_session(tiny.spec())
    for first in (-1, 3):
        with pytest.raises(InvalidRequest, match=f"first must be from 0 to 2, got {first}"):
            tiny.logits([1, 2, 3], stream, first=first)
    with pytest.raises(InvalidRequest, match="at least one id"):
        tiny.logits([], stream)
    with pytest.raises(LengthExceeded):
        tiny.logits([1] * 301, stream)
    assert stream.length == 0
