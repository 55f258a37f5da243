"""Snapshots: what was restored is the stream that was written, and goes on as it would have, to the bit."""

from __future__ import annotations

import pytest
from comparators import assert_same_bits
from mirror import Mirror, small
from oracle import TIERS
from snapshot_parts import assert_equal, restored, written

from rondel.decoder.errors import (
    RollbackTooDeep,
    StreamSealed,
)
from rondel.decoder.rope import Rope
from rondel.decoder.rope_scaling import NtkScaling, YarnScaling
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import LayerGroup, StreamSpec


def assert_same_tokens(mirror: Mirror, other: DecoderSession) -> None:
    """What can be read of them is the same; slots that hold no token may differ after an undone one."""
    for layer in range(mirror.spec.layers):
        for run in mirror.readable(layer):
            for a, b in zip(other.read(layer, *run), mirror.session.read(layer, *run), strict=True):
                assert_same_bits(a, b, f"layer {layer} {run}")


def go_on(mirror: Mirror, other: DecoderSession, tokens: int, chunk: int) -> None:
    """Step both by the same tokens, all layers in turn; every output is the same to the bit."""
    end = mirror.length + tokens
    while mirror.length < end:
        for layer in range(mirror.spec.layers):
            q, k, v = mirror.draw(layer, min(chunk, end - mirror.session.layer_length(layer)))
            if not len(k):
                continue
            want = mirror.session.step(layer, q, k, v, return_lse=True)
            got = other.step(layer, q, k, v, return_lse=True)
            assert_same_bits(got[0], want[0], f"layer {layer} at {mirror.length}: out")
            assert_same_bits(got[1], want[1], f"layer {layer} at {mirror.length}: lse")
            mirror.note(layer, k, v)


SPECS = {
    "int8": small(),
    "centred": small(centring=True),
    "float32": small(storage="float32"),
    "roped": small(centring=True, rope=Rope(dim=10, scaling=YarnScaling(4.0, 64)), sinks=0),
    "two sides": small(sinks=0, causal=False, window_right=20, reserve=100),
    "unbounded": small(window=None, sinks=0, reserve=0, max_length=1500, centring=True),
    "deep": small(reserve=300, window=1, sinks=128),
    "groups": StreamSpec(
        groups=(
            LayerGroup(
                layers=(0, 2), query_heads=4, kv_heads=2, key_dim=16, value_dim=8, window=60, reserve=9
            ),
            LayerGroup(layers=(3,), query_heads=3, kv_heads=1, key_dim=7, value_dim=17, storage="float32"),
            LayerGroup(
                layers=(1,), query_heads=2, kv_heads=2, key_dim=9, value_dim=1, window=200, sinks=17,
                reserve=30, centring=True, scale=0.3, rope=Rope(dim=8, scaling=NtkScaling(2.0)),
            ),
        ),
        max_length=2000,
    ),
}  # fmt: skip


@pytest.mark.parametrize("length", [0, 1, 3, 130, 131, 259, 700, 1300])
@pytest.mark.parametrize("name", SPECS)
def test_a_restored_stream_goes_on_as_the_one_that_was_never_written(name: str, length: int) -> None:
    mirror = Mirror(SPECS[name], tier_of(name)).grow(length)
    other = restored(written(mirror.session), tier=mirror.tier)
    assert_equal(mirror.session, other)
    assert other.stats() == mirror.session.stats()
    go_on(mirror, other, 150, 5)
    assert_equal(mirror.session, other)


def tier_of(name: str) -> str:
    """Tiers take turns: the stored bytes have none, the outputs do."""
    return TIERS[sorted(SPECS).index(name) % len(TIERS)]


@pytest.mark.parametrize("name", SPECS)
def test_the_deepest_truncate_after_restoring(name: str) -> None:
    mirror = Mirror(SPECS[name]).grow(700)
    other = restored(written(mirror.session))
    least = mirror.session.min_length
    if least:
        with pytest.raises(RollbackTooDeep):
            other.truncate(least - 1)
    mirror.truncate(least)
    other.truncate(least)
    assert_equal(mirror.session, other)
    go_on(mirror, other, 140, 7)
    assert_equal(mirror.session, other)


@pytest.mark.parametrize("name", SPECS)
def test_restoring_after_the_deepest_truncate(name: str) -> None:
    """What was undone is not written; nothing misses it."""
    mirror = Mirror(SPECS[name]).grow(700)
    mirror.truncate(mirror.session.min_length)
    other = restored(written(mirror.session))
    assert_equal(mirror.session, other)
    go_on(mirror, other, 300, 7)
    assert_same_tokens(mirror, other)
    mirror.truncate(mirror.session.min_length)
    other.truncate(other.min_length)
    go_on(mirror, other, 40, 3)


@pytest.mark.parametrize("start", [0, 100, 126, 700, 767])
def test_layers_of_different_lengths_stay_so(start: int) -> None:
    mirror = Mirror(small(layers=3, centring=True)).grow(start)
    for layer, tokens in ((0, 10), (1, 4)):
        _, k, v = mirror.draw(layer, tokens)
        mirror.append(layer, k, v)
    other = restored(written(mirror.session))
    assert_equal(mirror.session, other)
    for layer, tokens in ((2, 7), (1, 3), (2, 3)):
        q, k, v = mirror.draw(layer, tokens)
        want = mirror.session.step(layer, q, k, v)
        assert_same_bits(other.step(layer, q, k, v), want, f"layer {layer}")
        mirror.note(layer, k, v)
    assert mirror.session.length == other.length == start + 7
    go_on(mirror, other, 150, 2)


def test_a_sealed_memory() -> None:
    mirror = Mirror(small(window=None, sinks=0, reserve=0, causal=False, max_length=300)).grow(200)
    mirror.session.seal()
    other = restored(written(mirror.session))
    assert_equal(mirror.session, other)
    q, k, v = mirror.draw(0, 5)
    assert_same_bits(other.attend(0, q), mirror.session.attend(0, q), "the memory")
    with pytest.raises(StreamSealed):
        other.append(0, k, v)


def test_options_and_explanations_see_the_same() -> None:
    mirror = Mirror(small()).grow(500)
    other = restored(written(mirror.session))
    q = mirror.queries(1, 4)
    assert_same_bits(
        other.explain(1, q, position=480).weights,
        mirror.session.explain(1, q, position=480).weights,
        "weights",
    )
