"""What options must never do, and what different ways of asking must agree about."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from asked import Asked
from comparators import TINY, assert_near, assert_same_bits
from oracle import ENGINES, GAUSSIAN, LSE, Case, Stream

from rondel import Arena, AttendOptions, DecoderSession, StreamSpec, merge_partials
from rondel.decoder import kernels
from rondel.decoder.batch import Step, StepResult, run_steps
from rondel.decoder.errors import ChunkTooLong
from rondel.decoder.partials import null_share

engines = pytest.mark.parametrize(("tier", "storage"), ENGINES)
WRAPPED: dict[str, Any] = {"window": 150, "sinks": 5, "reserve": 40}


def wrapped(tier: str, storage: str) -> Stream:
    return Stream(Case(tier=tier, storage=storage, **WRAPPED)).grow(700)


def answers(asked: Asked, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    return asked.stream.session.attend(
        0, asked.q, position=asked.first, options=AttendOptions(**options), return_lse=True
    )


@engines
def test_what_does_nothing_changes_no_bit(tier: str, storage: str) -> None:
    asked = Asked(wrapped(tier, storage), 3)
    width = asked.reach[1]
    plain = asked.stream.session.attend(0, asked.q, return_lse=True)
    for options in (
        {},
        {"mask": np.ones((4, 3, width), np.bool_)},
        {"ranges": ((0, 300), (300, 1000))},
        {"scale": asked.stream.case.score_scale},
        {"null_logit": np.full(4, -np.inf, np.float32)},
    ):
        for got, want in zip(answers(asked, **options), plain, strict=True):
            assert_same_bits(got, want, f"{sorted(options)}")


@engines
def test_a_bias_of_zeros_changes_no_more_than_rounding(tier: str, storage: str) -> None:
    # Not to the bit: pages of edited scores go the general way, which rounds int8 weights by another scale.
    asked = Asked(wrapped(tier, storage), 3)
    out, lse = asked.stream.session.attend(0, asked.q, return_lse=True)
    zeros = answers(asked, bias=np.zeros((1, 1, 700), np.float32))
    assert_near(zeros[0], out.astype(np.float64), 2 * GAUSSIAN[storage] * np.abs(asked.stream.v).max(), "out")
    assert_near(zeros[1], lse.astype(np.float64), 2 * LSE[storage] * np.maximum(1, np.abs(lse)), "lse")


@engines
def test_options_of_one_call_are_gone_in_the_next(tier: str, storage: str) -> None:
    stream, twin = wrapped(tier, storage), wrapped(tier, storage)
    asked = Asked(stream, 2)
    before = stream.session.attend(0, asked.q, return_lse=True)
    hide = np.zeros((1, 1, 702), np.bool_)
    answers(asked, mask=hide, softcap=0.5, temperature=3.0, null_logit=np.ones(4, np.float32))
    after = stream.session.attend(0, asked.q, return_lse=True)
    for got, want in zip(after, before, strict=True):
        assert_same_bits(got, want, "attend after options")
    k, v = stream.draw(2)
    options = AttendOptions(softcap=0.5, mask=hide)
    stream.session.step(0, asked.q, k, v, options=options)
    twin.session.step(0, asked.q, k, v)
    q = stream.queries(2)
    for got, want in zip(
        stream.session.attend(0, q, return_lse=True), twin.session.attend(0, q, return_lse=True), strict=True
    ):
        assert_same_bits(got, want, "the same stream, stepped without options")


@engines
@pytest.mark.parametrize("rows", [1, 5])
def test_a_row_that_sees_nothing_gives_zeros(tier: str, storage: str, rows: int) -> None:
    asked = Asked(wrapped(tier, storage), rows)
    none = np.full((1, 1, 700), -np.inf, np.float32)
    lowest = np.full((1, 1, 700), np.finfo(np.float32).min, np.float32)
    for options in (
        {"mask": np.zeros((1, 1, 700), np.bool_)},
        {"bias": none},
        {"bias": lowest},
        {"ranges": ()},
        {"ranges": ((20, 30),)},  # long evicted
        {"bias": none, "null_logit": np.zeros(4, np.float32), "softcap": 2.0},
    ):
        out, lse = answers(asked, **options)
        assert not out.any(), sorted(options)
        assert np.isneginf(lse).all(), sorted(options)
    one = np.ones((1, rows, 700), np.bool_)
    one[0, 0] = False  # and only the first row
    out, lse = asked.check(mask=one)
    assert not out[0].any()
    assert np.isneginf(lse[0]).all()


@engines
@pytest.mark.parametrize("way", ["mask", "ranges"])
def test_what_a_hidden_slot_holds_never_matters(tier: str, storage: str, way: str) -> None:
    hidden = np.array([1, 40, 41, 99, 128, 255])
    shown = np.ones((1, 1, 300), np.bool_)
    shown[..., hidden] = False
    runs = tuple((int(low) + 1, int(high)) for low, high in zip([-1, *hidden], [*hidden, 300], strict=True))
    options: dict[str, Any] = (
        {"mask": shown} if way == "mask" else {"ranges": tuple(run for run in runs if run[0] < run[1])}
    )
    case = Case(tier=tier, storage=storage, window=None, max_length=300)
    rng = np.random.default_rng(5)
    k, v = rng.standard_normal((2, 300, 2, 64), np.float32)
    q = rng.standard_normal((2, 4, 64), np.float32)
    results = []
    for value in (0.0, 1e15, -1e15):
        k[hidden], v[hidden] = value, -value
        with case.open() as session:
            session.append(0, k, v)
            results.append(session.attend(0, q, options=AttendOptions(**options), return_lse=True))
    for other in results[1:]:
        for got, want in zip(other, results[0], strict=True):
            assert_same_bits(got, want, f"{case}: {way}")


@engines
def test_an_earlier_position_with_ranges_sees_what_was_there(tier: str, storage: str) -> None:
    stream = wrapped(tier, storage)
    for first in (660, 661, 680):
        Asked(stream, 7, first).check(ranges=((0, 3), (560, 590), (650, 690)))
    two_sided = Case(tier=tier, storage=storage, window=30, causal=False, window_right=20, reserve=40)
    stream = Stream(two_sided).grow(500)
    for first in (430, 460, 475, 496):
        Asked(stream, 4, first).check(ranges=((410, 440), (450, 492)))


@engines
@pytest.mark.parametrize("parts", range(1, 8))
def test_parts_by_ranges_make_the_whole(tier: str, storage: str, parts: int) -> None:
    asked = Asked(wrapped(tier, storage), 2)
    null = np.array([-1.0, 0.0, 3.0, 6.0], np.float32)
    cuts = [0, *(555 + np.random.default_rng(parts).permutation(140)[: parts - 1]), 700]
    cuts = sorted(int(cut) for cut in cuts)
    runs = [((low, high),) for low, high in pairwise(cuts)]
    runs.insert(1, ())  # an empty part, and one that lies where nothing is
    runs.append(((900, 950),))
    both = [answers(asked, ranges=run, softcap=4.0) for run in runs]
    merged = merge_partials([out for out, _ in both], [lse for _, lse in both], null)
    whole = answers(asked, softcap=4.0, null_logit=null)
    largest = np.abs(asked.stream.v[-160:]).max()
    assert_near(merged[0], whole[0].astype(np.float64), 2 * GAUSSIAN[storage] * largest + TINY, "out")
    assert_near(merged[1], whole[1].astype(np.float64), 2 * LSE[storage] * np.abs(whole[1]), "lse")


@engines
def test_steps_answer_what_attend_answers(tier: str, storage: str) -> None:
    """Also a step that is cut into pieces, each of which takes its rows of the bias."""
    for tokens in (1, 9, 600):
        stream = Stream(Case(tier=tier, storage=storage, heads=(4, 1), **WRAPPED)).grow(100)
        twin = Stream(stream.case).grow(100)
        (k, v), q = stream.draw(tokens), stream.queries(tokens)
        bias = stream.rng.standard_normal((1, tokens, 100 + tokens)).astype(np.float32)
        options = AttendOptions(bias=bias, null_logit=np.zeros(4, np.float32), ranges=((0, 90), (95, 2000)))
        out, lse = stream.session.step(0, q, k, v, options=options, return_lse=True)
        (outcome,) = run_steps([Step(twin.session, 0, q, k, v, options)])
        assert isinstance(outcome, StepResult), outcome
        assert_same_bits(outcome.out, out, "a batch")
        assert_same_bits(outcome.lse, lse, "a batch's lse")
        last = slice(max(0, tokens - 20), tokens)
        late = AttendOptions(
            bias=bias[:, last], null_logit=options.null_logit, ranges=options.ranges, bias_first=0
        )
        assert_same_bits(stream.session.attend(0, q[last], options=late), out[last], "attend")


def test_steps_of_all_layers_take_options() -> None:
    spec = StreamSpec.uniform(layers=2, query_heads=4, kv_heads=2, head_dim=16, window=64)
    rng = np.random.default_rng(2)
    q = rng.standard_normal((2, 5, 4, 16), np.float32)
    k, v = rng.standard_normal((2, 2, 5, 2, 16), np.float32)
    options = AttendOptions(softcap=1.0, null_logit=np.ones(4, np.float32), temperature=2.0)
    with DecoderSession(spec, Arena(8 << 20)) as session, DecoderSession(spec, Arena(8 << 20)) as twin:
        together = session.step_all(q, k, v, options=options)
        for layer in range(2):
            alone = twin.step(layer, q[layer], k[layer], v[layer], options=options)
            assert_same_bits(together[layer], alone, f"layer {layer}")


@engines
def test_rows_that_look_ahead_see_the_whole_step(tier: str, storage: str) -> None:
    for sides in ({"window": None, "max_length": 900}, {"window": 400, "window_right": 300}):
        case = Case(tier=tier, storage=storage, causal=False, **sides)  # type: ignore[arg-type]
        stream = Stream(case)
        (k, v), q = stream.draw(600), stream.queries(600)
        out = stream.session.step(0, q, k, v)
        assert_same_bits(stream.session.attend(0, q), out, f"{case}: all rows of a step")
        (outcome,) = run_steps([Step(case.open(), 0, q, k, v)])
        assert isinstance(outcome, StepResult)
        assert_same_bits(outcome.out, out, f"{case}: batch")


def test_a_step_that_looks_ahead_is_not_cut() -> None:
    case = Case(tier=kernels.TIER, storage="int8", window=64, causal=False, window_right=32, reserve=8)
    stream = Stream(case).grow(250)
    (k, v), q = stream.draw(20), stream.queries(20)
    with pytest.raises(ChunkTooLong) as caught:
        stream.session.step(0, q, k, v)
    assert caught.value.limit == 9
    assert (stream.session.length, stream.session.high_water) == (250, 250)
    stream.session.append(0, k, v)  # without rows it may be


def test_an_empty_memory_gives_zeros() -> None:
    with Case(tier=kernels.TIER, storage="int8", window=None, causal=False, max_length=9).open() as session:
        out, lse = session.attend(0, np.ones((3, 4, 64), np.float32), return_lse=True)
        assert not out.any()
        assert np.isneginf(lse).all()
        explained = session.explain(0, np.ones((3, 4, 64), np.float32))
        assert explained.weights.shape == (4, 3, 0)
        assert not explained.entropy().any()


@engines
def test_a_null_logit_takes_its_share_and_leaves_lse(tier: str, storage: str) -> None:
    asked = Asked(wrapped(tier, storage), 2)
    null = np.array([-100.0, 0.0, 6.0, 500.0], np.float32)
    plain, lse = answers(asked)
    out, same = answers(asked, null_logit=null)
    assert_same_bits(same, lse, "lse")
    share = null_share(null.astype(np.float64), lse.astype(np.float64))
    np.testing.assert_allclose(out, plain * share[..., None], rtol=1e-6, atol=TINY)
    assert_same_bits(out[:, 0], plain[:, 0], "a null logit far below")
    assert not out[:, 3].any()
