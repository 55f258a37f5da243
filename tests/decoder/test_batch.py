"""Many sessions' steps in one native call: each to the bit what it is alone, each with its own error."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from oracle import TIERS, gaussian

from rondel.decoder import pool
from rondel.decoder.batch import Step, StepResult, run_steps
from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import (
    ChunkTooLong,
    InvalidRequest,
    InvalidShape,
    SessionBusy,
    StreamClosed,
    ValueRange,
)
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec

SPECS = [
    StreamSpec.uniform(layers=2, query_heads=9, kv_heads=3, head_dim=64, window=256, sinks=4, reserve=16),
    StreamSpec.uniform(layers=2, query_heads=4, kv_heads=1, head_dim=80, value_dim=33, max_length=900),
    StreamSpec.uniform(layers=1, query_heads=2, kv_heads=2, head_dim=16, window=5, reserve=2),
    StreamSpec.uniform(layers=2, query_heads=8, kv_heads=1, head_dim=32, max_length=900, storage="float32"),
]


def step_for(session: DecoderSession, rng: np.random.Generator, tokens: int, layer: int = 0) -> Step:
    group = session.spec.group(layer)
    return Step(
        session,
        layer,
        gaussian(rng, tokens, group.query_heads, group.key_dim),
        gaussian(rng, tokens, group.kv_heads, group.key_dim),
        gaussian(rng, tokens, group.kv_heads, group.value_dim),
    )


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("tier", TIERS)
def test_a_batch_is_its_steps(tier: str, threads: int) -> None:
    before = pool.threads()
    pool.set_threads(threads)
    arena = Arena(budget=512 << 20)
    rng = np.random.default_rng(3)
    pairs = [
        (DecoderSession(spec, arena, tier=tier), DecoderSession(spec, arena, tier=tier)) for spec in SPECS * 3
    ]
    try:
        for _ in range(25):
            tokens = [int(rng.choice([0, 1, 1, 1, 2, 17])) for _ in pairs]
            for layer in (0, 1):
                chosen = [
                    (pair, step_for(pair[0], rng, n, layer))
                    for pair, n in zip(pairs, tokens, strict=True)
                    if layer < pair[0].spec.layers
                ]
                results = run_steps([step for _, step in chosen])
                for ((_, alone), step), result in zip(chosen, results, strict=True):
                    assert isinstance(result, StepResult)
                    out, lse = alone.step(layer, step.q, step.k, step.v, return_lse=True)
                    assert result.out.tobytes() == out.tobytes()
                    assert result.lse.tobytes() == lse.tobytes()
        assert [a.length for a, _ in pairs] == [b.length for _, b in pairs]
    finally:
        pool.set_threads(before)


def test_errors_stay_with_their_items() -> None:
    arena = Arena(budget=64 << 20)
    rng = np.random.default_rng(4)
    sessions = [DecoderSession(SPECS[0], arena) for _ in range(6)]
    for session in sessions:
        for part in session.chunks(700):
            for layer in (0, 1):
                session.append(layer, *_tokens(session, rng, part.stop - part.start))
    steps = [step_for(session, rng, 1) for session in sessions]
    steps[1].k[0, 1, 2] = np.nan
    steps[2] = Step(sessions[2], 0, steps[2].q[:, :8], steps[2].k, steps[2].v)
    sessions[3].close()
    steps[4] = step_for(sessions[4], rng, 18)
    steps.append(step_for(sessions[5], rng, 1))
    steps.append(dataclasses.replace(steps[0], session=None))
    results = run_steps(steps)
    kinds = [type(result) for result in results]
    assert kinds == [
        StepResult,
        ValueRange,
        InvalidShape,
        StreamClosed,
        ChunkTooLong,
        StepResult,
        SessionBusy,
        InvalidRequest,
    ]
    assert [s.layer_length(0) for s in sessions] == [701, 700, 700, 700, 700, 701]
    assert isinstance(run_steps([step_for(sessions[1], rng, 1)])[0], StepResult)
    assert run_steps([]) == []


def _tokens(session: DecoderSession, rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    group = session.spec.group(0)
    return gaussian(rng, n, group.kv_heads, group.key_dim), gaussian(rng, n, group.kv_heads, group.value_dim)
