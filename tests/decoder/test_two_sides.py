"""Windows with two sides: what the ring must still hold, and ropes, truncates and seals with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from asked import Asked
from comparators import assert_same_bits
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import ENGINES, Case, Stream

from rondel import Arena, AttendOptions, DecoderSession, Rope, StreamSpec
from rondel.decoder import kernels
from rondel.decoder.errors import SequenceGap, StreamSealed, WindowEvicted

engines = pytest.mark.parametrize(("tier", "storage"), ENGINES)
SIDES: dict[str, Any] = {"window": 30, "causal": False, "window_right": 20, "reserve": 40}


@engines
def test_the_oldest_row_that_is_answered_is_answered_right(tier: str, storage: str) -> None:
    stream = Stream(Case(tier=tier, storage=storage, **SIDES)).grow(700)
    with pytest.raises(WindowEvicted) as caught:
        stream.session.attend(0, stream.queries(1), position=300)
    oldest = caught.value.oldest
    assert oldest <= 700 - 40 - 20  # rows whose right side is still growing, even after an undo
    Asked(stream, 3, oldest).check()
    with pytest.raises(WindowEvicted):
        stream.session.attend(0, stream.queries(1), position=oldest - 1)
    with pytest.raises(SequenceGap):
        stream.session.attend(0, stream.queries(2), position=699)


@engines
def test_after_the_deepest_truncate_all_rows_with_an_open_right_side_are_whole(
    tier: str, storage: str
) -> None:
    for length in (300, 511, 512, 513, 640):
        stream = Stream(Case(tier=tier, storage=storage, **SIDES)).grow(length)
        least = stream.session.min_length
        assert least == length - 40
        stream.session.truncate(least)
        stream.k, stream.v = stream.k[:least], stream.v[:least]
        Asked(stream, 21, least - 21).check()
        stream.append(*stream.draw(30))
        Asked(stream, 21).check(softcap=3.0)


@engines
def test_sides_wider_than_the_stream_are_no_sides(tier: str, storage: str) -> None:
    """Everything with positions: what an encoder with slopes or a rope needs."""
    wide = {"window": 1 << 20, "causal": False, "window_right": 1 << 20, "max_length": 200}
    asked = Asked(Stream(Case(tier=tier, storage=storage, **wide)).grow(180), 180)
    out, _ = asked.check()
    asked.check(alibi=np.full(4, 0.05, np.float32))
    memory = Case(tier=tier, storage=storage, window=None, causal=False, max_length=200)
    with memory.open() as session:
        session.append(0, asked.stream.k, asked.stream.v)
        assert_same_bits(session.attend(0, asked.q), out, "rows without positions")


@engines
def test_a_rope_turns_both_sides(tier: str, storage: str) -> None:
    sides: dict[str, Any] = {
        "layers": 1,
        "query_heads": 4,
        "kv_heads": 2,
        "head_dim": 32,
        "storage": storage,
        "window": 30,
        "causal": False,
        "window_right": 20,
        "reserve": 40,
    }
    rng, rope = np.random.default_rng(8), Rope().of_head(32)
    k, v = rng.standard_normal((2, 400, 2, 32), np.float32)
    q = rng.standard_normal((9, 4, 32), np.float32)
    turned_k, turned_q = rope.rotate(k, np.arange(400)), rope.rotate(q, np.arange(385, 394))
    with (
        DecoderSession(StreamSpec.uniform(**sides, rope=Rope()), Arena(8 << 20), tier=tier) as session,
        DecoderSession(StreamSpec.uniform(**sides), Arena(8 << 20), tier=tier) as plain,
    ):
        session.append_all(k[None], v[None])
        plain.append_all(turned_k[None], v[None])
        options = AttendOptions(softcap=5.0, ranges=((0, 380), (384, 500)))
        got = session.attend(0, q, position=385, options=options)
        assert_same_bits(got, plain.attend(0, turned_q, position=385, options=options), "out")
        explained, theirs = (
            one.explain(0, rows, position=385).raw for one, rows in ((session, q), (plain, turned_q))
        )
        assert_same_bits(explained, theirs, "raw scores")


def test_a_sealed_session_is_only_attended_to() -> None:
    stream = Stream(Case(tier=kernels.TIER, storage="int8", **SIDES)).grow(90)
    session, before = stream.session, stream.session.attend(0, q := stream.queries(2))
    session.seal()
    k, v = stream.draw(1)
    for call in (
        lambda: session.append(0, k, v),
        lambda: session.step(0, q[:1], k, v),
        lambda: session.step_all(q[None, :1], k[None], v[None]),
        lambda: session.truncate(80),
        lambda: session.append(0, k[:0], v[:0]),
    ):
        with pytest.raises(StreamSealed, match="sealed at 90 tokens"):
            call()
    assert session.sealed
    assert (session.length, session.generation, session.high_water) == (90, 0, 90)
    assert_same_bits(session.attend(0, q), before, "after the seal")
    assert session.matches(0, 89, stream.k[89:], stream.v[89:])
    session.close()


@st.composite
def combinations(draw: st.DrawFn) -> dict[str, Any]:
    window = draw(st.one_of(st.none(), st.integers(1, 200)))
    causal = draw(st.booleans())
    inner = window is not None
    return {
        "case": {
            "tier": draw(st.sampled_from(kernels.available())),
            "storage": draw(st.sampled_from(("int8", "float32"))),
            "heads": draw(st.sampled_from(((1, 1), (4, 4), (6, 2), (8, 1), (5, 5)))),
            "dims": draw(st.sampled_from(((64, 64), (16, 40), (33, 7), (8, 128)))),
            "window": window,
            "causal": causal,
            "sinks": draw(st.integers(0, 20)) if inner and causal else 0,
            "window_right": draw(st.integers(0, 150)) if inner and not causal else 0,
            "reserve": draw(st.integers(0, 60)) if inner else 0,
            "max_length": 600,
        },
        "length": draw(st.integers(1, 600)),
        "rows": draw(st.integers(1, 70)),
        "seed": draw(st.integers(0, 2**32 - 1)),
        "kinds": draw(st.sets(st.sampled_from(("cap", "alibi", "bias", "mask", "ranges", "null", "cold")))),
    }


@given(combinations())
@settings(max_examples=60)
def test_any_combination_is_the_references(drawn: dict[str, Any]) -> None:
    case, rng = Case(**drawn["case"]), np.random.default_rng(drawn["seed"])
    stream = Stream(case, seed=drawn["seed"]).grow(drawn["length"])
    everything = not case.causal and case.window is None
    rows = drawn["rows"] if everything else case.rows(drawn["rows"], drawn["length"])
    asked, kinds = Asked(stream, rows), drawn["kinds"]
    low, high = asked.reach
    heads = case.heads[0]
    spare = int(rng.integers(0, 4))  # more columns than needed do no harm
    shape = (*((heads, rows) if rng.random() < 0.5 else (1, 1)), high - low + spare)
    cuts = np.unique(rng.integers(low, high + 1, 6))
    options: dict[str, Any] = {"bias_first": low} if kinds & {"bias", "mask"} else {}
    if "cap" in kinds:
        options["softcap"] = float(rng.uniform(0.5, 20))
    if "cold" in kinds:
        options["temperature"] = float(rng.uniform(1, 4))
    if "alibi" in kinds and not everything:
        options["alibi"] = rng.uniform(0, 0.1, heads).astype(np.float32)
    if "bias" in kinds:
        options["bias"] = rng.standard_normal(shape).astype(np.float32)
    if "mask" in kinds:
        options["mask"] = rng.random(shape) < 0.6
    if "ranges" in kinds:
        options["ranges"] = tuple((int(a), int(b)) for a, b in zip(cuts[::2], cuts[1::2], strict=False))
    if "null" in kinds:
        options["null_logit"] = rng.standard_normal(heads).astype(np.float32)
    asked.check(**options)
    stream.session.close()
