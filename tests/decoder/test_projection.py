"""Steps from embeddings: against a float64 product and the reference, and to the bit however they are cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from comparators import assert_near, assert_same_bits
from hypothesis import given, settings
from hypothesis import strategies as st
from tinysafetensors import draw

from rondel.decoder import projection, reference
from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import (
    InvalidLayer,
    InvalidShape,
    InvalidSpec,
    ProjectionNotFound,
    RondelError,
    StreamClosed,
    ValueRange,
)
from rondel.decoder.projection import Projection, Projections
from rondel.decoder.rope import Rope
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec

D_MODEL = 37
GQA: dict[str, Any] = {"query_heads": 6, "kv_heads": 2, "head_dim": 16, "value_dim": 24}
SHAPES: list[dict[str, Any]] = [
    GQA,
    {"query_heads": 3, "kv_heads": 3, "head_dim": 7},
    {"query_heads": 4, "kv_heads": 1, "head_dim": 32, "value_dim": 5},
]


def spec_of(layers: int = 2, **changes: Any) -> StreamSpec:
    return StreamSpec.uniform(layers=layers, **{**GQA, "max_length": 400, **changes})


def opened(spec: StreamSpec, projections: Projections | None) -> DecoderSession:
    return DecoderSession(spec, Arena(budget=64 << 20), projections=projections)


def products(x: np.ndarray, projection: Projection, spec: StreamSpec) -> list[np.ndarray]:
    """q, k, v in float64."""
    group, made = spec.groups[0], []
    for part, heads in zip("qkv", (group.query_heads, group.kv_heads, group.kv_heads), strict=True):
        wide = x.astype(np.float64) @ getattr(projection, f"w_{part}").astype(np.float64)
        bias = getattr(projection, f"b_{part}")
        made.append((wide if bias is None else wide + bias).reshape(len(x), heads, -1))
    return made


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize(("storage", "bound"), [("float32", 2e-6), ("int8", 0.02)])
@pytest.mark.parametrize("rope", [None, Rope(dim=6)])
def test_the_answer_is_that_of_the_reference(
    rng: np.random.Generator,
    shape: dict[str, Any],
    biases: bool,
    storage: str,
    bound: float,
    rope: Rope | None,
) -> None:
    spec = StreamSpec.uniform(layers=2, **shape, max_length=400, storage=storage, rope=rope)
    projections = draw(spec, D_MODEL, biases=biases)
    session = opened(spec, projections)
    x = rng.standard_normal((70, D_MODEL), np.float32)
    for layer in range(2):
        got = np.concatenate([session.step_embeddings(layer, x[part]) for part in (slice(41), slice(41, 70))])
        q, k, v = products(x, projections.layers[layer], spec)
        if rope is not None:
            q, k = (reference.rotate(part, np.arange(70), dim=6) for part in (q, k))
        want, _ = reference.attend(q, k, v)
        assert_near(got, want, bound * float(np.abs(v).max()), f"layer {layer}")
    assert session.length == 70


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.sampled_from(SHAPES), st.booleans())
@settings(max_examples=25)
def test_a_token_has_the_same_bits_alone_and_in_any_chunk(
    sizes: list[int], shape: dict[str, Any], biases: bool
) -> None:
    spec = StreamSpec.uniform(layers=1, **shape, window=50, reserve=40, rope=Rope(dim=2))
    projections = draw(spec, D_MODEL, biases=biases)
    x = np.random.default_rng(sum(sizes)).standard_normal((sum(sizes), D_MODEL), np.float32)
    whole, single, cut = (opened(spec, projections) for _ in range(3))
    want = whole.step_embeddings(0, x)
    for i in range(len(x)):
        assert_same_bits(single.step_embeddings(0, x[i : i + 1]), want[i : i + 1], f"token {i}")
    start = 0
    for size in sizes:
        part = slice(start, start := start + size)
        assert_same_bits(cut.step_embeddings(0, x[part]), want[part], f"tokens {part}")


@pytest.mark.parametrize("d_model", [1, 64, 576, 1000])
def test_rows_do_not_depend_on_each_other(rng: np.random.Generator, d_model: int) -> None:
    # Large enough that OpenBLAS multiplies one row otherwise than many: x @ W itself fails here.
    spec = spec_of(1, query_heads=9, kv_heads=3, head_dim=64, value_dim=64)
    made = draw(spec, d_model).layers[0]
    x = rng.standard_normal((39, d_model), np.float32)
    want = np.concatenate(made.rows(x), axis=1)
    for part in (slice(0, 1), slice(15, 17), slice(38, 39), slice(3, 36), slice(9, 9)):
        assert_same_bits(np.concatenate(made.rows(x[part]), axis=1), want[part], f"rows {part}")


def test_a_blas_that_tells_places_apart_gets_its_rows_one_by_one(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    spec = spec_of(1)
    usual = draw(spec, D_MODEL)
    monkeypatch.setattr(projection, "_places_alike", lambda weights: False)
    careful = draw(spec, D_MODEL)
    x = rng.standard_normal((5, D_MODEL), np.float32)
    for careful_part, usual_part in zip(careful.layers[0].rows(x), usual.layers[0].rows(x), strict=True):
        np.testing.assert_allclose(careful_part, usual_part, atol=1e-5)
    alone = careful.layers[0].rows(x[3:4])
    for part, row in zip(careful.layers[0].rows(x), alone, strict=True):
        assert_same_bits(np.ascontiguousarray(part[3:4]), np.ascontiguousarray(row), "row 3")


def test_weights_are_copied_and_read_only(rng: np.random.Generator) -> None:
    w = rng.standard_normal((4, 6), np.float32)
    b = np.ones(6, np.float32)
    one = Projection(w, w, w, b_k=b)
    want = one.rows(np.eye(4, dtype=np.float32))[1]
    w[:], b[:] = 0, 0
    assert_same_bits(one.rows(np.eye(4, dtype=np.float32))[1], want, "k")
    assert one.b_q is None
    assert one.b_k is not None
    for array in (one.w_q, one.b_k):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


W = np.ones((4, 6), np.float32)


@pytest.mark.parametrize(
    ("arrays", "error", "text"),
    [
        ({"w_q": W.astype(np.float64)}, InvalidShape, r"w_q must be float32 .*, got float64 \[4, 6\]"),
        ({"w_k": W[0]}, InvalidShape, r"w_k must be float32 \[4, n\], got float32 \[6\]"),
        ({"w_v": W[:3]}, InvalidShape, r"w_v must be float32 \[4, n\], got float32 \[3, 6\]"),
        ({"w_q": W[:0], "w_k": W[:0], "w_v": W[:0]}, InvalidShape, "w_q must have no empty axis"),
        ({"w_k": W[:, :0]}, InvalidShape, "w_k must have no empty axis"),
        ({"w_q": None}, InvalidShape, "got NoneType"),
        ({"b_v": np.ones(5, np.float32)}, InvalidShape, r"b_v must be float32 \[6\], got float32 \[5\]"),
        ({"w_k": W * np.float32("nan")}, ValueRange, "w_k"),
        ({"b_q": np.full(6, np.inf, np.float32)}, ValueRange, "b_q"),
    ],
    ids=str,
)
def test_impossible_arrays_are_refused(arrays: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Projection(**{"w_q": W, "w_k": W, "w_v": W, **arrays})


def test_projections_must_fit_the_stream() -> None:
    arena = Arena(budget=64 << 20)
    for spec, error, text in (
        (spec_of(1), InvalidLayer, "got 1"),
        (spec_of(query_heads=4), InvalidShape, r"w_q of layer 0 must be \[d_model, 64\], got \[37, 96\]"),
        (spec_of(value_dim=16), InvalidShape, r"w_v of layer 0 must be \[d_model, 32\], got \[37, 48\]"),
    ):
        with pytest.raises(error, match=text):
            DecoderSession(spec, arena, projections=draw(spec_of(), D_MODEL))
    layer = draw(spec_of(1), D_MODEL).layers[0]
    for wrong in ({0: layer}, layer):
        with pytest.raises(InvalidSpec, match="must be Projections or None, got") as caught:
            DecoderSession(spec_of(), arena, projections=wrong)  # type: ignore[arg-type]
        assert caught.value.field == "projections"
    with pytest.raises(InvalidSpec, match="layer 0 must have a Projection, got tuple"):
        Projections({0: (W, W, W)})  # type: ignore[dict-item]
    assert arena.stats().reserved == 0


def test_a_refused_step_changes_nothing(rng: np.random.Generator) -> None:
    projections = Projections({1: draw(spec_of(), D_MODEL).layers[1]})
    session, twin = opened(spec_of(), projections), opened(spec_of(), projections)
    x = rng.standard_normal((3, D_MODEL), np.float32)
    cases: list[tuple[int, Any, type[RondelError]]] = [
        (0, x, ProjectionNotFound),
        (2, x, InvalidLayer),
        (-1, x, InvalidLayer),
        (1, x[:, :36], InvalidShape),
        (1, x[0], InvalidShape),
        (1, x.astype(np.float64), InvalidShape),
        (1, x * np.float32("inf"), ValueRange),
        (1, np.full_like(x, 3e15), ValueRange),
    ]
    for layer, wrong, error in cases:
        with pytest.raises(error):
            session.step_embeddings(layer, wrong)
    assert session.stats() == twin.stats()
    assert_same_bits(session.step_embeddings(1, x), twin.step_embeddings(1, x), "afterwards")


def test_products_that_are_too_large_are_refused_as_values() -> None:
    w = np.full((D_MODEL, 96), 1e15, np.float32)
    k, v = w[:, :32], w[:, :48]
    session = opened(spec_of(1), Projections({0: Projection(w, k, v)}))
    with pytest.raises(ValueRange, match="must hold finite numbers"):
        session.step_embeddings(0, np.full((1, D_MODEL), 1e15, np.float32))
    assert session.length == 0


def test_a_session_without_projections_says_so(rng: np.random.Generator) -> None:
    session = opened(spec_of(), None)
    x = rng.standard_normal((1, D_MODEL), np.float32)
    with pytest.raises(ProjectionNotFound, match="layer 0 has no projection") as caught:
        session.step_embeddings(0, x)
    assert isinstance(caught.value, KeyError)
    closed = opened(spec_of(), draw(spec_of(), D_MODEL))
    closed.close()
    with pytest.raises(StreamClosed):
        closed.step_embeddings(0, x)
