"""An explanation is what the reference says, and what attend has done."""

from __future__ import annotations

import numpy as np
import pytest
from asked import Asked
from comparators import TINY, assert_near
from oracle import ENGINES, GAUSSIAN, LSE, Case, Stream
from test_session_options import KINDS, LENGTHS, PLACES, drawn

from rondel import Arena, AttendOptions, DecoderSession, Explanation, Rope, StreamSpec
from rondel.decoder import kernels, reference
from rondel.decoder.errors import InvalidRequest, SequenceGap

SCORES = {"int8": 2.0**-10, "float32": 2.0**-18}
"""Largest error of a score here (they stay below 8). Int16 queries: see ``oracle.LSE``, with no averaging."""


def explained(asked: Asked, kind: str) -> tuple[Explanation, reference.Stages]:
    options = drawn(kind, asked.stream.case.heads[0], asked.rows, *asked.reach)
    session = asked.stream.session
    got = session.explain(0, asked.q, position=asked.first, options=AttendOptions(**options))
    return got, asked.explained(**options)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("tier", "storage"), ENGINES)
def test_every_stage_is_the_references(place: str, tier: str, storage: str) -> None:
    if place == "centred" and storage != "int8":
        return  # there is no such thing
    case = Case(tier=tier, storage=storage, heads=(6, 2), **PLACES[place])
    stream = Stream(case).grow(LENGTHS[place])
    for rows in (1, 7):
        asked = Asked(stream, rows)
        for kind in KINDS:
            if place == "everything" and kind in ("alibi", "together"):
                continue
            got, want = explained(asked, kind)
            name = f"{case} rows {rows}: {kind}"
            np.testing.assert_array_equal(got.key_positions, want.key_positions)
            if got.positions[0] >= 0:
                np.testing.assert_array_equal(got.positions, want.positions)
            sees = np.isfinite(got.raw)
            for stage in ("raw", "capped", "masked"):
                theirs = getattr(want, stage)
                finite = np.where(sees, theirs, -np.inf)
                assert_near(getattr(got, stage), finite, SCORES[storage], f"{name}: {stage}")
            assert_near(got.weights, want.weights, SCORES[storage], f"{name}: weights")
            assert_near(got.null_weight, want.null_weight, SCORES[storage], f"{name}: null_weight")
            assert_near(got.lse, want.lse, LSE[storage] * np.maximum(1, np.abs(want.lse)), f"{name}: lse")
            assert_near(got.entropy(), reference.entropy(want), 8 * SCORES[storage], f"{name}: entropy")
            np.testing.assert_allclose(
                got.weights.sum(axis=-1).T + got.null_weight, 1.0, rtol=1e-5, err_msg=name
            )


@pytest.mark.parametrize(("tier", "storage"), ENGINES)
def test_the_weights_mix_what_attend_gives(tier: str, storage: str) -> None:
    case = Case(tier=tier, storage=storage, window=150, sinks=5, reserve=40)
    asked = Asked(Stream(case).grow(700), 3, 690)
    options = AttendOptions(
        softcap=3.0, null_logit=np.array([0, 1, 2, 3], np.float32), ranges=((0, 600), (640, 800))
    )
    got = asked.stream.session.explain(0, asked.q, position=690, options=options)
    out = asked.stream.session.attend(0, asked.q, position=690, options=options)
    v = asked.stream.held(got.key_positions)[1]
    mixed = reference.weighted_sum(got.weights, v)
    assert_near(out, mixed, 2 * GAUSSIAN[storage] * np.abs(v).max() + TINY, "out")


@pytest.mark.parametrize(("tier", "storage"), ENGINES)
def test_turned_rows_are_explained_as_they_are_answered(tier: str, storage: str) -> None:
    """With a rope the sinks are scored by queries of their own."""
    spec = StreamSpec.uniform(
        layers=1,
        query_heads=4,
        kv_heads=2,
        head_dim=32,
        window=40,
        sinks=4,
        reserve=8,
        storage=storage,
        rope=Rope(),
    )
    rng = np.random.default_rng(1)
    with DecoderSession(spec, Arena(8 << 20), tier=tier) as session:
        k, v = rng.standard_normal((2, 1, 400, 2, 32), np.float32)
        session.append_all(k, v)
        q = rng.standard_normal((5, 4, 32), np.float32)
        options = AttendOptions(softcap=5.0, alibi=np.full(4, 0.05, np.float32))
        got, out = session.explain(0, q, options=options), session.attend(0, q, options=options)
    values = v[0, got.key_positions]
    if storage == "int8":
        values = reference.dequantise(*reference.quantise_rows(values)).astype(np.float32)
    mixed = reference.weighted_sum(got.weights, values)
    assert_near(out, mixed, 2 * GAUSSIAN[storage] * np.abs(values).max(), "out")


def tiny(*, storage: str = "float32") -> DecoderSession:
    return Case(
        tier=kernels.TIER, storage=storage, heads=(1, 1), dims=(2, 3), window=None, max_length=8
    ).open()


@pytest.mark.parametrize("storage", ["float32", "int8"])
def test_the_worked_lookup(storage: str) -> None:
    """Four keys and one query, small enough to check by hand: scores (2, 2, 6, -1) / √2."""
    k = np.array([[1, 0], [0, 2], [2, 2], [-1, 1]], np.float32)[:, None]
    v = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]], np.float32)[:, None]
    q = np.array([[[2, 1]]], np.float32)
    with tiny(storage=storage) as session:
        session.append(0, k, v)
        explained = session.explain(0, q)
        out = session.attend(0, q)
    np.testing.assert_allclose(explained.raw[0, 0], np.array([2, 2, 6, -1]) / np.sqrt(2), atol=2e-2)
    np.testing.assert_allclose(explained.weights[0, 0], [0.053, 0.053, 0.889, 0.006], atol=1.5e-3)
    np.testing.assert_allclose(out[0, 0], [0.059, 0.059, 0.894], atol=1.5e-3)
    positions, weights = explained.top_k(2)
    assert positions[0, 0].tolist()[0] == 2
    np.testing.assert_allclose(weights[0, 0], [0.889, 0.053], atol=1.5e-3)
    assert explained.entropy()[0, 0] == pytest.approx(0.443, abs=5e-3)


def test_entropy_runs_from_one_key_to_all_alike() -> None:
    with tiny() as session:
        session.append(0, np.zeros((5, 1, 2), np.float32), np.ones((5, 1, 3), np.float32))
        q = np.ones((1, 1, 2), np.float32)
        assert session.explain(0, q).entropy()[0, 0] == pytest.approx(np.log(5), rel=1e-6)
        one = AttendOptions(ranges=((3, 4),), null_logit=np.array([50.0], np.float32))
        assert session.explain(0, q, options=one).entropy()[0, 0] == 0
        none = session.explain(0, q, options=AttendOptions(ranges=()))
        assert none.entropy()[0, 0] == 0
        assert none.top_k(2)[0].tolist() == [[[-1, -1]]]


def test_top_k_is_largest_first_and_of_equals_the_earlier() -> None:
    rng = np.random.default_rng(4)
    k = rng.integers(-2, 3, (40, 1, 2)).astype(np.float32)  # with many equal ones
    case = Case(tier=kernels.TIER, storage="float32", heads=(2, 1), dims=(2, 3), window=None, max_length=64)
    with case.open() as session:
        session.append(0, k, np.ones((40, 1, 3), np.float32))
        q = np.array([[[1, 2], [3, -1]], [[0, 0], [1, 1]]], np.float32)
        asked = session.explain(0, q, options=AttendOptions(ranges=((0, 5), (6, 39))))
        for count in (1, 7, 38, 45):
            positions, weights = asked.top_k(count)
            assert (positions.shape, weights.shape) == ((2, 2, count), (2, 2, count))
            for row, head in np.ndindex(2, 2):
                alpha = asked.weights[head, row]
                order = sorted(
                    (key for key in range(40) if np.isfinite(asked.masked[head, row, key])),
                    key=lambda key: (-alpha[key], key),
                )
                listed = [*order[:count], *[-1] * (count - 38)]
                assert positions[row, head].tolist() == listed
                assert weights[row, head].tolist() == [alpha[key] if key >= 0 else 0 for key in listed]
        for wrong in (0, -1, 1.5, True):
            with pytest.raises(InvalidRequest, match="count"):
                asked.top_k(wrong)  # type: ignore[arg-type]


def test_an_explanation_that_would_be_too_large_is_refused() -> None:
    case = Case(tier=kernels.TIER, storage="int8", heads=(64, 1), dims=(8, 8), window=None, max_length=1024)
    stream = Stream(case).grow(1024)
    with pytest.raises(InvalidRequest, match="at most 16777216 cells, got 300 rows x 64 heads x 1024 keys"):
        stream.session.explain(0, stream.queries(300))
    with pytest.raises(SequenceGap):
        stream.session.explain(0, stream.queries(1), position=1024)
