"""Streams of many layers: groups that differ, lengths that differ, and calls on several layers at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from comparators import assert_same_bits
from mirror import Mirror, assert_same_answers, refused, small
from oracle import ENGINES, STORAGES, TIERS

from rondel.decoder.errors import (
    ChunkTooLong,
    InvalidLayer,
    InvalidShape,
    LengthExceeded,
    SequenceGap,
    ValueRange,
)
from rondel.decoder.spec import LayerGroup, StreamSpec

engines = pytest.mark.parametrize(("tier", "storage"), ENGINES)
MIXED = StreamSpec(
    groups=(
        LayerGroup(layers=(0, 3), query_heads=4, kv_heads=2, key_dim=16, value_dim=24, window=60, sinks=4,
                   reserve=7),
        LayerGroup(layers=(1, 4), query_heads=3, kv_heads=1, key_dim=33, value_dim=8, window=130, reserve=33,
                   storage="float32"),
        LayerGroup(layers=(2,), query_heads=6, kv_heads=6, key_dim=8, value_dim=8, scale=0.5),
        LayerGroup(layers=(5, 6), query_heads=4, kv_heads=2, key_dim=16, value_dim=24, window=1, sinks=40,
                   reserve=200, storage="float32"),
    ),
    max_length=1500,
)  # fmt: skip


@pytest.mark.parametrize("tier", TIERS)
def test_groups_that_differ_in_everything_live_in_one_stream(tier: str) -> None:
    mirror = Mirror(MIXED, tier)
    assert (mirror.session.stats().layers, mirror.session.max_chunk) == (7, 8)
    for size in (1, 200, 90, 3, 129, 300, 8, 700):
        tokens = [mirror.draw(layer, size) for layer in range(7)]
        for part in mirror.session.chunks(size):
            position = mirror.length
            for layer, (q, k, v) in enumerate(tokens):
                mirror.check(layer, q[part], mirror.step(layer, q[part], k[part], v[part]), position)
        mirror.check_stored()
        assert mirror.session.stats().min_length == mirror.min_length
    assert mirror.length == 1431
    mirror.truncate(mirror.min_length)
    for layer in range(7):
        mirror.check_attend(layer, 1, mirror.length - 1)
    mirror.grow(1500)
    with refused(mirror, LengthExceeded, limit=1500):
        mirror.session.append(2, *mirror.draw(2, 1)[1:])


@engines
def test_a_lagging_layer_never_feels_the_others(tier: str, storage: str) -> None:
    """Now one layer leads, now the other, as far as allowed; each answers as in a stream of its own."""
    mirror = Mirror(small(2, storage=storage), tier)
    alone = [Mirror(small(1, storage=storage), tier) for _ in range(2)]
    tokens = [mirror.draw(layer, 600) for layer in range(2)]
    ends = [0, 0]
    for turn, size in enumerate([200, 40, 19, *[10] * 25, 3, 7]):
        for layer in (0, 1) if turn % 3 else (1, 0):
            q, k, v = (x[ends[layer] : ends[layer] + size] for x in tokens[layer])
            answer = mirror.step(layer, q, k, v)
            assert_same_answers(answer, alone[layer].step(0, q, k, v), f"layer {layer} at {ends[layer]}")
            mirror.check(layer, q, answer, ends[layer])
            ends[layer] += size
            assert [mirror.session.layer_length(n) for n in range(2)] == ends
            assert mirror.session.length == min(ends)
            assert mirror.session.high_water == max(ends)
            other = 1 - layer
            if ends[other]:
                mirror.check_attend(other, 1, ends[other] - 1)
                mirror.check_attend(layer, 1, ends[other] - 1)


@engines
def test_all_layers_at_once_take_any_number(tier: str, storage: str) -> None:
    """step_all and append_all equal the loop over layers to the bit, whatever the chunks."""
    spec = small(3, storage=storage)
    loop, stepped, appended = (Mirror(spec, tier) for _ in range(3))
    for size in (1, 60, 3, 180, 500, 11, 0):
        q, k, v = loop.draw_stack(range(3), size)
        want = np.zeros((3, size, 4, 24), np.float32)
        for part in loop.session.chunks(size):
            for layer in range(3):
                want[layer, part], _ = loop.step(layer, q[layer, part], k[layer, part], v[layer, part])
        assert_same_bits(stepped.session.step_all(q, k, v), want, f"step_all of {size}")
        assert appended.session.append_all(k, v) == loop.length
        for other in (stepped, appended):
            for layer in range(3):
                other.note(layer, k[layer], v[layer])
            assert other.state() == loop.state()
        for layer in range(3):
            if size:
                last = appended.session.attend(layer, q[layer, -1:])
                assert_same_bits(last, want[layer, -1:], f"attend after append_all of {size}")


@pytest.mark.parametrize("storage", STORAGES)
def test_a_run_of_layers_at_once(storage: str) -> None:
    spec = small(4, storage=storage)
    run, loop = Mirror(spec).grow(400), Mirror(spec).grow(400)
    q, k, v = run.draw_stack(range(4), 10)
    for first, layers in ((1, slice(1, 3)), (3, slice(3, 4)), (0, slice(0, 1))):
        got = run.session.step_all(q[layers], k[layers], v[layers], first_layer=first)
        for layer in range(layers.start, layers.stop):
            run.note(layer, k[layer], v[layer])
            want, _ = loop.step(layer, q[layer], k[layer], v[layer])
            assert_same_bits(got[layer - first], want, f"layer {layer}")
        assert run.state() == loop.state()
    assert run.session.append_all(k[2:], v[2:], first_layer=2) == 420
    assert (run.session.length, run.session.high_water) == (410, 420)


def test_a_run_of_layers_is_taken_whole_or_not_at_all() -> None:
    mirror = Mirror(small(3)).grow(400)
    q, k, v = mirror.draw_stack(range(3), 11)
    for layers, first in ((slice(0, 2), 0), (slice(1, 3), 1)):
        with refused(mirror, ChunkTooLong, limit=10):
            mirror.session.append_all(k[layers], v[layers], first_layer=first)
        with refused(mirror, ChunkTooLong, limit=10):
            mirror.session.step_all(q[layers], k[layers], v[layers], first_layer=first)
    for x in (q, k, v):
        kept = x[-1, -1, -1, -1]
        for bad in (np.nan, np.inf, -np.inf, 1e16):
            x[-1, -1, -1, -1] = bad
            with refused(mirror, ValueRange):
                mirror.session.step_all(q, k, v)
            if x is not q:
                with refused(mirror, ValueRange):
                    mirror.session.append_all(k, v)
        x[-1, -1, -1, -1] = kept
    mirror.append(1, k[1, :4], v[1, :4])
    with refused(mirror, SequenceGap, expected=400):
        mirror.session.append_all(k, v)
    with refused(mirror, SequenceGap, expected=404):
        mirror.session.step_all(q[1:, :1], k[1:, :1], v[1:, :1], first_layer=1)


def test_a_run_must_be_of_one_shape_and_inside_the_stream() -> None:
    mirror = Mirror(MIXED)
    q, k, v = mirror.draw_stack((5, 6), 2)
    assert mirror.session.append_all(k, v, first_layer=5) == 2
    for layer in (5, 6):
        mirror.note(layer, k[layer - 5], v[layer - 5])
    for first in (0, 3, 4):  # their neighbours differ
        with refused(mirror, InvalidShape):
            mirror.session.step_all(q, k, v, first_layer=first)
    with refused(mirror, InvalidShape):  # runs over the end
        mirror.session.append_all(k, v, first_layer=6)
    with refused(mirror, InvalidShape):
        mirror.session.append_all(k[:0], v[:0], first_layer=5)
    for first in (-1, 7, 2**40):
        with refused(mirror, InvalidLayer, layers=7):
            mirror.session.append_all(k, v, first_layer=first)


def test_layers_of_one_shape_but_other_windows_can_be_stacked() -> None:
    """Shape is what stacks; window, sinks, reserve and storage are each layer's own."""
    shape: dict[str, Any] = {"query_heads": 4, "kv_heads": 2, "key_dim": 16, "value_dim": 24}
    spec = StreamSpec(
        groups=(
            LayerGroup(layers=(1,), window=60, sinks=3, reserve=9, **shape),
            LayerGroup(layers=(0, 2), window=200, reserve=70, storage="float32", **shape),
        )
    )
    stacked, loop = Mirror(spec), Mirror(spec)
    for size in (300, 250):
        q, k, v = loop.draw_stack(range(3), size)
        got = stacked.session.step_all(q, k, v)
        for part in loop.session.chunks(size):
            position = loop.length
            for layer in range(3):
                row = (layer, part)
                answer = loop.step(layer, q[row], k[row], v[row])
                loop.check(layer, q[row], answer, position)
                assert_same_bits(got[row], answer[0], f"layer {layer} at {position}")
