"""Sinks under a rope: once the window has left them they are scored by a second query, S + W - 1 away."""

from __future__ import annotations

import numpy as np
import pytest
import turning
from comparators import TINY, assert_near, assert_same_bits
from oracle import ENGINES, GAUSSIAN, LSE, TIERS, gaussian

from rondel.decoder import reference
from rondel.decoder.batch import Step, StepResult, run_steps
from rondel.decoder.cache.arena import Arena
from rondel.decoder.rope import Rope
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec

S, W = 4, 60
ROPE = Rope(dim=16)


def spec(storage: str, layers: int = 1) -> StreamSpec:
    return StreamSpec.uniform(
        layers=layers, query_heads=4, kv_heads=2, head_dim=16, value_dim=24, window=W, sinks=S, reserve=9,
        storage=storage, rope=ROPE,
    )  # fmt: skip


@pytest.mark.parametrize(("tier", "storage"), ENGINES)
@pytest.mark.parametrize("first", [0, 55, 60, 64, 100, 390])
def test_against_the_oracle_with_two_queries(tier: str, storage: str, first: int) -> None:
    rng = np.random.default_rng(3)
    q, k, v = (gaussian(rng, 400, heads, dim) for heads, dim in ((4, 16), (2, 16), (2, 24)))
    session = DecoderSession(spec(storage), Arena(budget=64 << 20), tier=tier)
    session.append(0, k[: first + 10], v[: first + 10])
    rows = range(first, first + 10)
    out, lse = session.attend(0, q[first : first + 10], position=first, return_lse=True)
    keys = turning.turn(k[: first + 10], range(first + 10), ROPE.frequencies()).astype(np.float32)
    values = v[: first + 10]
    if storage == "int8":
        keys, values = (reference.dequantise(*reference.quantise_rows(x)) for x in (keys, values))
    near, far = (
        reference.scores(turning.turn(q[first : first + 10], at, ROPE.frequencies()), keys)
        for at in (rows, [min(p, S + W - 1) for p in rows])
    )
    scores = np.where(np.arange(first + 10) < S, far, near)
    seen = reference.visible(list(rows), np.arange(first + 10), W, S)
    weights, want_lse = reference.softmax(np.where(seen[None], scores, -np.inf))
    want = np.einsum("hnm,mhd->nhd", weights, np.repeat(values, 2, axis=1))
    limit = GAUSSIAN[storage] * float(np.abs(values).max()) + TINY
    assert_near(out, want, limit, f"{tier} {storage} rows from {first}")
    assert_near(lse, want_lse.T, LSE[storage] * np.maximum(1.0, np.abs(want_lse.T)), "lse")


@pytest.mark.parametrize("tier", TIERS)
def test_chunks_steps_and_batches_give_the_same_bits(tier: str) -> None:
    rng = np.random.default_rng(4)
    q, k, v = (rng.standard_normal((2, 400, *shape), np.float32) for shape in ((4, 16), (2, 16), (2, 24)))
    arena = Arena(budget=64 << 20)
    sessions = [DecoderSession(spec("int8", 2), arena, tier=tier) for _ in range(3)]
    want = sessions[0].step_all(q, k, v)
    for at in range(0, 400, 7):
        part = slice(at, at + 7)
        assert_same_bits(sessions[1].step_all(q[:, part], k[:, part], v[:, part]), want[:, part], f"at {at}")
    for at in range(400):
        part = slice(at, at + 1)
        for layer in range(2):
            (result,) = run_steps([Step(sessions[2], layer, q[layer, part], k[layer, part], v[layer, part])])
            assert isinstance(result, StepResult)
            assert_same_bits(result.out, want[layer, part], f"batch at {at}")
