"""A session that turns keys and queries itself: to the bit a plain one that is given them turned."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import turning
from comparators import TINY, assert_near, assert_same_bits
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import ENGINES, GAUSSIAN, TIERS, gaussian

from rondel.decoder import reference
from rondel.decoder.batch import Step, StepResult, run_steps
from rondel.decoder.cache.arena import Arena
from rondel.decoder.call import QueryRows
from rondel.decoder.errors import ValueRange, WindowEvicted
from rondel.decoder.rope import Rope
from rondel.decoder.rope_scaling import Llama3Scaling, YarnScaling
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import LayerGroup, StreamSpec

ROPES = [
    Rope(),
    Rope(interleaved=True, theta=500_000.0, scaling=Llama3Scaling(8.0, 1.0, 4.0, 64)),
    Rope(dim=6, scaling=YarnScaling(4.0, 2048)),
]
SHAPE: dict[str, Any] = {"query_heads": 4, "kv_heads": 2, "head_dim": 16, "value_dim": 24}
Qkv = tuple[np.ndarray, np.ndarray, np.ndarray]


class Pair:
    """A session with a rope, and a twin without one that is given what the rope makes of the same data."""

    def __init__(self, rope: Rope, *, layers: int = 2, tier: str = TIERS[-1], **options: Any) -> None:
        options = {"window": 60, "reserve": 9, **options}
        self.arena = Arena(budget=64 << 20)
        self.rope = rope.of_head(16)
        self.spec = StreamSpec.uniform(layers=layers, **SHAPE, **options, rope=rope)
        self.ours = DecoderSession(self.spec, self.arena, tier=tier)
        self.plain = DecoderSession(
            StreamSpec.uniform(layers=layers, **SHAPE, **options), self.arena, tier=tier
        )
        self.rng = np.random.default_rng(7)

    def draw(self, *shape: int) -> Qkv:
        sizes = ((4, 16), (2, 16), (2, 24))
        q, k, v = (self.rng.standard_normal((*shape, *size), np.float32) for size in sizes)
        return q, k, v

    def turned(self, x: np.ndarray, position: int) -> np.ndarray:
        return self.rope.rotate(x, np.arange(position, position + x.shape[-3]))

    def step(self, layer: int, tokens: int) -> None:
        at = self.ours.layer_length(layer)
        q, k, v = self.draw(tokens)
        got = self.ours.step(layer, q, k, v, return_lse=True)
        want = self.plain.step(layer, self.turned(q, at), self.turned(k, at), v, return_lse=True)
        for ours, plain in zip(got, want, strict=True):
            assert_same_bits(ours, plain, f"step of {tokens} at {at}")

    def grow(self, tokens: int) -> None:
        for part in self.ours.chunks(tokens):
            for layer in range(self.spec.layers):
                self.step(layer, part.stop - part.start)

    def check_stored(self) -> None:
        assert self.ours.stats() == self.plain.stats()
        length = self.ours.length
        for layer in range(self.spec.layers):
            start = max(0, length - 50)
            got, want = (s.read(layer, start, length) for s in (self.ours, self.plain))
            assert_same_bits(got[0], want[0], "keys")
            assert_same_bits(got[1], want[1], "values")


@pytest.mark.parametrize("rope", ROPES, ids=repr)
@pytest.mark.parametrize(("tier", "storage"), ENGINES)
def test_every_way_in_turns_alike(tier: str, storage: str, rope: Rope) -> None:
    pair = Pair(rope, tier=tier, storage=storage)
    ours, plain = pair.ours, pair.plain
    for tokens in (1, 7, 120, 300, 1, 10):
        at = ours.length
        q, k, v = pair.draw(2, tokens)
        assert_same_bits(
            ours.step_all(q, k, v), plain.step_all(pair.turned(q, at), pair.turned(k, at), v), "step_all"
        )
        at += tokens
        q, k, v = pair.draw(2, 5)
        assert ours.append_all(k, v) == plain.append_all(pair.turned(k, at), v) == at + 5
        at += 5
        for layer in range(2):
            q, k, v = pair.draw(3)
            assert ours.append(layer, k, v) == plain.append(layer, pair.turned(k, at), v)
            assert ours.matches(layer, at, k, v)
            assert ours.matches(layer, at + 1, k[1:], v[1:])
            assert not ours.matches(layer, at + 1, k[:2], v[:2])
            # The same token one position further on is stored as other bytes.
            assert not ours.matches(layer, at, pair.turned(k, at), v)
            assert_same_bits(ours.attend(layer, q), plain.attend(layer, pair.turned(q, at)), "attend")
            got = ours.attend(layer, q[:2], position=at - 1)
            assert_same_bits(got, plain.attend(layer, pair.turned(q[:2], at - 1), position=at - 1), "earlier")
            q, k, v = pair.draw(1)
            steps = [
                Step(ours, layer, q, k, v),
                Step(plain, layer, pair.turned(q, at + 3), pair.turned(k, at + 3), v),
            ]
            one, other = run_steps(steps)
            assert isinstance(one, StepResult)
            assert isinstance(other, StepResult)
            assert_same_bits(one.out, other.out, "batch")
            assert_same_bits(one.lse, other.lse, "batch: lse")
    pair.check_stored()


@pytest.mark.parametrize(("tier", "storage"), ENGINES)
def test_against_the_oracle_with_everything_turned_in_60_digits(tier: str, storage: str) -> None:
    for rope in ROPES:
        pair = Pair(rope, layers=1, tier=tier, storage=storage)
        q, k, v = pair.draw(400)
        out = pair.ours.step(0, q, k, v)
        magnitude = 1.0 if rope.scaling is None else rope.scaling.magnitude
        at, rows = range(330, 400), slice(390, 400)
        q64, k64 = (
            turning.turn(
                x, list(positions), pair.rope.frequencies(), interleaved=rope.interleaved, magnitude=magnitude
            )
            for x, positions in ((q[rows], at[-10:]), (k[330:], at))
        )
        if storage == "int8":
            k64 = reference.dequantise(*reference.quantise_rows(k64.astype(np.float32)))
            v = reference.dequantise(*reference.quantise_rows(v)).astype(np.float32)
        want, _ = reference.attend(q64, k64, v[330:], position=390, key_positions=np.array(at), window=60)
        largest = float(np.abs(v[330:]).max())
        assert_near(out[rows], want, GAUSSIAN[storage] * largest + TINY, f"{tier} {storage} {rope}")


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_chunks_undone_and_done_again_change_no_bit(data: st.DataObject) -> None:
    pair = Pair(data.draw(st.sampled_from(ROPES)), storage=data.draw(st.sampled_from(["int8", "float32"])))
    tokens = [pair.draw(2, 1) for _ in range(400)]
    q, k, v = (np.concatenate(parts, axis=1) for parts in zip(*tokens, strict=True))
    single = Pair(pair.spec.groups[0].rope or Rope(), storage=pair.spec.groups[0].storage)
    want = np.concatenate(
        [single.ours.step_all(*(x[:, at : at + 1] for x in (q, k, v))) for at in range(400)], axis=1
    )
    session = pair.ours
    while session.length < 400:
        start = session.length
        size = data.draw(st.sampled_from([1, 2, 9, 64, 129, 400]))
        part = slice(start, min(400, start + size))
        if data.draw(st.booleans()):
            got = session.step_all(q[:, part], k[:, part], v[:, part])
            assert_same_bits(got, want[:, part], f"step_all {part}")
        else:
            for piece in session.chunks(part.stop - start):
                rows = slice(start + piece.start, start + piece.stop)
                for layer in range(2):
                    got = session.step(layer, q[layer, rows], k[layer, rows], v[layer, rows])
                    assert_same_bits(got, want[layer, rows], f"step {rows}")
        if data.draw(st.booleans()):
            session.truncate(data.draw(st.integers(session.min_length, session.length)))
    assert session.read(1, 350, 400)[0].tobytes() == single.ours.read(1, 350, 400)[0].tobytes()


def test_the_same_words_further_on_get_the_same_answer() -> None:
    """The window's content again, 200,000 positions later: only the distances matter."""
    pair = Pair(Rope(), layers=1, storage="float32")
    q, k, v = pair.draw(60)
    near = pair.ours.step(0, q, k, v)[-1]
    at = 60
    while at < 200_000:
        filler = pair.draw(4000)
        at = pair.ours.append(0, filler[1], filler[2])
    far = pair.ours.step(0, q, k, v)[-1]
    np.testing.assert_allclose(far, near, atol=2e-6)
    unturned = DecoderSession(StreamSpec.uniform(layers=1, **SHAPE, window=60, storage="float32"), pair.arena)
    assert np.abs(unturned.step(0, q, k, v)[-1] - near).max() > 1e-2


def test_groups_turn_by_their_own_rope_and_some_not_at_all() -> None:
    shape: dict[str, Any] = {"query_heads": 4, "kv_heads": 2, "key_dim": 16, "value_dim": 24}
    near, far = Rope(theta=10_000.0), Rope(theta=1_000_000.0, scaling=YarnScaling(8.0, 1024))
    groups = (
        LayerGroup(layers=(0, 2), window=20, **shape, rope=near),
        LayerGroup(layers=(1,), **shape, rope=far),
        LayerGroup(layers=(3,), **shape),
    )
    arena = Arena(budget=64 << 20)
    ours = DecoderSession(StreamSpec(groups=groups, max_length=200), arena)
    plain_groups = (
        LayerGroup(layers=(0, 2), window=20, **shape),
        LayerGroup(layers=(1, 3), **shape),
    )
    plain = DecoderSession(StreamSpec(groups=plain_groups, max_length=200), arena)
    rng = np.random.default_rng(8)
    q, k, v = (
        gaussian(rng, 4 * 90, heads, dim).reshape(4, 90, heads, dim)
        for heads, dim in ((4, 16), (2, 16), (2, 24))
    )
    turned = [q.copy(), k.copy()]
    for layer, rope in ((0, near), (1, far), (2, near)):
        for x in turned:
            x[layer] = rope.rotate(x[layer], np.arange(90))
    assert_same_bits(ours.step_all(q, k, v), plain.step_all(turned[0], turned[1], v), "two ropes")


def test_a_refused_call_turns_nothing() -> None:
    pair = Pair(ROPES[0])
    pair.grow(600)
    q, k, v = pair.draw(2)
    before = [x.copy() for x in (q, k, v)]
    k[1, 0, 3] = np.nan
    with pytest.raises(ValueRange):
        pair.ours.step(0, q, k, v)
    with pytest.raises(WindowEvicted):
        pair.ours.attend(0, q, position=200)
    k[1, 0, 3] = before[1][1, 0, 3]
    pair.check_stored()
    pair.step(0, 2)
    for x, was in zip((q, k, v), before, strict=True):
        assert_same_bits(x, was, "the caller's arrays")


def test_the_largest_numbers_stay_finite() -> None:
    for storage in ("int8", "float32"):
        pair = Pair(Rope(scaling=YarnScaling(4.0, 2048, attention_factor=4.0)), storage=storage, scale=1e4)
        sign = np.where(pair.rng.random((40, 4, 16)) < 0.5, -1.0, 1.0).astype(np.float32)
        q = sign * np.float32(1e15)
        out, lse = pair.ours.step(0, q, q[:, :2], np.full((40, 2, 24), 1e15, np.float32), return_lse=True)
        assert np.isfinite(out).all()
        assert np.isfinite(lse).all()


class TestTheSecondQuery:
    """What a query asks the sinks once its window has left them: as if they lay right before it."""

    GROUP = LayerGroup(
        layers=(0,), query_heads=4, kv_heads=2, key_dim=16, value_dim=24, window=20, sinks=4, rope=Rope()
    )

    def rows(self, group: LayerGroup, first: int, count: int) -> tuple[np.ndarray, QueryRows]:
        q = gaussian(np.random.default_rng(9), count, 4, 16)
        return q, QueryRows.at(group, first, q)

    @pytest.mark.parametrize(("first", "count"), [(0, 24), (23, 1), (0, 0), (500, 0)])
    def test_is_not_there_while_a_row_lies_at_most_a_window_behind(self, first: int, count: int) -> None:
        q, rows = self.rows(self.GROUP, first, count)
        assert rows.q_sinks is None
        want = Rope(dim=16).rotate(q, np.arange(first, first + count))
        assert_same_bits(rows.q, want, "the query itself")

    @pytest.mark.parametrize(("first", "count"), [(24, 1), (0, 25), (10, 40), (10**9, 3)])
    def test_is_turned_to_the_last_position_of_sinks_and_window(self, first: int, count: int) -> None:
        q, rows = self.rows(self.GROUP, first, count)
        assert rows.q_sinks is not None
        at = [min(p, 4 + 20 - 1) for p in range(first, first + count)]
        want = turning.turn(q, at, turning.exact(10_000.0, 16))
        np.testing.assert_allclose(rows.q_sinks, want, atol=1e-6)
        part = rows.part(slice(1, None))
        assert part.q_sinks is not None
        assert_same_bits(part.q_sinks, rows.q_sinks[1:], "a part's")
        for i in range(count):  # each row's by itself
            alone = QueryRows.at(self.GROUP, first + i, q[i : i + 1])
            expected = alone.q if alone.q_sinks is None else alone.q_sinks
            assert_same_bits(rows.q_sinks[i : i + 1], expected, f"row {i}")

    @pytest.mark.parametrize("changes", [{"sinks": 0}, {"rope": None}, {"sinks": 0, "window": None}])
    def test_is_for_sinks_windows_and_ropes_only(self, changes: dict[str, Any]) -> None:
        sizes = {name: getattr(self.GROUP, name) for name in ("layers", "query_heads", "kv_heads", "key_dim",
                 "value_dim", "window", "sinks", "rope")}  # fmt: skip
        _, rows = self.rows(LayerGroup(**{**sizes, **changes}), 100, 5)
        assert rows.q_sinks is None
