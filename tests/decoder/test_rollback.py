"""Undoing tokens: afterwards the stream is, to the bit, one that never had them."""

from __future__ import annotations

import random

import pytest
from mirror import Mirror, assert_same_answers, refused, small
from oracle import ENGINES, TIERS

from rondel.decoder.errors import ChunkTooLong, RollbackTooDeep, SequenceGap

engines = pytest.mark.parametrize(("tier", "storage"), ENGINES)
RESERVE = 9
LENGTHS = {
    "no wrap": 150,
    "wraps inside the draft": 256 - 3,
    "ring exactly full": 256,
    "one lap, page begun in the draft": 256 + 125,
    "one lap, page just full": 256 + 128,
    "many laps": 3 * 256 + 60,
    "many laps, page begun in the draft": 4 * 256 + 128 - 1,
}
lengths = pytest.mark.parametrize("ring", LENGTHS.values(), ids=list(LENGTHS))
SINKS = pytest.mark.parametrize("sinks", [0, 3])


def draft(mirror: Mirror, tokens: int) -> None:
    """Take tokens, with attention, that will be undone: loud ones, so that nothing of them goes unseen."""
    for _ in range(tokens):
        for layer in range(mirror.spec.layers):
            q, k, v = mirror.draw(layer, 1)
            mirror.step(layer, q, k * 100, v * 1e6)


@SINKS
@lengths
@engines
def test_continues_as_if_it_had_never_gone_there(tier: str, storage: str, ring: int, sinks: int) -> None:
    spec = small(sinks=sinks, storage=storage)
    length = ring + (sinks if ring > 200 else 0)
    never = Mirror(spec, tier).grow(length)
    tokens = [never.draw(layer, 30) for layer in range(2)]
    parts = [slice(0, 1), slice(1, 2), slice(2, 12), slice(12, 20), slice(20, 30)]
    want = [never.step(n, q[at], k[at], v[at]) for at in parts for n, (q, k, v) in enumerate(tokens)]
    for depth in range(RESERVE + 1) if tier == TIERS[-1] else (1, RESERVE):
        mirror = Mirror(spec, tier).grow(length)
        draft(mirror, depth)
        mirror.truncate(length)
        assert (mirror.session.length, mirror.session.generation) == (length, 1)
        assert mirror.session.high_water == length + depth
        got = [mirror.step(n, q[at], k[at], v[at]) for at in parts for n, (q, k, v) in enumerate(tokens)]
        for a, b in zip(got, want, strict=True):
            assert_same_answers(a, b, f"{tier} {storage} undone {depth} at {length}")
        mirror.check_stored()


@SINKS
@lengths
@engines
def test_one_too_deep_is_refused_and_changes_nothing(tier: str, storage: str, ring: int, sinks: int) -> None:
    spec = small(sinks=sinks, storage=storage)
    mirror, twin = (Mirror(spec, tier).grow(sinks + ring + 20) for _ in range(2))
    wrapped = ring + 20 > 256
    least = mirror.length - RESERVE if wrapped else 0
    assert mirror.session.min_length == mirror.session.stats().min_length == least
    for length in {least - 1, least // 2, 0} if wrapped else ():
        with refused(mirror, RollbackTooDeep, limit=least):
            mirror.session.truncate(length)
    for length in (mirror.length + 1, 2**62, -1):
        with refused(mirror, SequenceGap, expected=mirror.length):
            mirror.session.truncate(length)
    q, k, v = mirror.draw(0, 5)
    assert_same_answers(mirror.step(0, q, k, v), twin.step(0, q, k, v), "the next step")


def test_what_was_claimed_counts_not_what_is_left() -> None:
    """Two truncates reach no deeper than one: the pages were written up to the high water."""
    mirror = Mirror(small()).grow(700)
    mirror.truncate(695)
    with refused(mirror, RollbackTooDeep, limit=691):
        mirror.session.truncate(690)
    mirror.truncate(691)
    with refused(mirror, RollbackTooDeep, limit=691):
        mirror.session.truncate(690)
    mirror.grow(695)
    assert (mirror.session.high_water, mirror.session.min_length) == (700, 691)
    mirror.grow(701)
    assert (mirror.session.high_water, mirror.session.min_length) == (701, 692)
    assert mirror.session.generation == 2


@engines
def test_before_the_first_wrap_anything_can_be_undone(tier: str, storage: str) -> None:
    spec = small(storage=storage)
    for length in (0, 1, 3, 60, 131, 258):
        mirror, never = Mirror(spec, tier).grow(length), Mirror(spec, tier).grow(length)
        mirror.grow(3 + 256)
        mirror.truncate(length)
        q, k, v = mirror.draw_stack(range(2), 400)
        for session in (mirror, never):
            for layer in range(2):
                session.note(layer, k[layer], v[layer])
        a, b = mirror.session.step_all(q, k, v), never.session.step_all(q, k, v)
        assert a.tobytes() == b.tobytes()
        mirror.check_stored()


@pytest.mark.parametrize("tier", TIERS)
def test_without_a_window_anything_can_be_undone(tier: str) -> None:
    mirror = Mirror(small(window=None, sinks=0, reserve=0, max_length=400), tier).grow(400)
    for length in (399, 131, 128, 127, 1, 0):
        mirror.truncate(length)
        mirror.grow(400)
        mirror.check_stored()
        mirror.check_attend(1, 20, 380)
        assert mirror.session.min_length == 0


@SINKS
@pytest.mark.parametrize("start", [100, 250, 256, 700])
@engines
def test_an_uncommitted_chunk_can_always_be_dropped(tier: str, storage: str, start: int, sinks: int) -> None:
    """Layer 0 took all it may, R + 1 tokens; layer 1 never did. Again and again, it leaves no trace."""
    spec = small(sinks=sinks, storage=storage)
    mirror, never = Mirror(spec, tier).grow(sinks + start), Mirror(spec, tier).grow(sinks + start)
    for turn in range(1, 40):
        _, k, v = mirror.draw(0, RESERVE + 1)
        mirror.append(0, k * 100, v * 1e6)
        if mirror.length + RESERVE + 1 > sinks + 256:
            with refused(mirror, ChunkTooLong, limit=RESERVE + 1):
                mirror.session.append(0, k[:1], v[:1])
        mirror.truncate(mirror.length)
        assert mirror.session.generation == turn
        assert mirror.session.layer_length(0) == mirror.session.length == mirror.length
        for layer in range(2):
            q, k, v = mirror.draw(layer, turn % (RESERVE + 2))
            assert_same_answers(mirror.step(layer, q, k, v), never.step(layer, q, k, v), f"turn {turn}")
    mirror.check_stored()


@SINKS
@engines
def test_speculation_for_a_long_time(tier: str, storage: str, sinks: int) -> None:
    """Draft up to R + 1 tokens, accept some, undo the rest; 150 rounds over several laps."""
    spec, luck = small(sinks=sinks, storage=storage), random.Random(sinks)
    mirror, never = Mirror(spec, tier).grow(200), Mirror(spec, tier).grow(200)
    for turn in range(1, 151):
        size = luck.randint(1, RESERVE + 1)
        accepted = luck.randint(1, size)
        for layer in range(2):
            q, k, v = mirror.draw(layer, size)
            out, lse = mirror.step(layer, q, k, v)
            at = slice(0, accepted)
            want = never.step(layer, q[at], k[at], v[at])
            assert_same_answers((out[at], lse[at]), want, f"turn {turn} layer {layer}")
        mirror.truncate(mirror.length - size + accepted)
        assert mirror.session.generation == turn
        if turn % 50 == 0:
            mirror.check_attend(1, 2, mirror.length - 2)
    mirror.check_stored()
