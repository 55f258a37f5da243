"""One stream over its whole life: flat memory, exact windows, chunks that change no bit."""

from __future__ import annotations

import random

import numpy as np
import pytest
from comparators import assert_near, assert_same_bits
from mirror import Mirror, assert_same_answers, refused, small
from oracle import ENGINES, GAUSSIAN, Floats

from rondel.decoder import reference
from rondel.decoder.errors import ChunkTooLong, DuplicateTooOld, LengthExceeded, SequenceGap, WindowEvicted
from rondel.decoder.spec import StreamSpec

engines = pytest.mark.parametrize(("tier", "storage"), ENGINES)


def smollm2(storage: str, layers: int = 2) -> StreamSpec:
    return StreamSpec.uniform(
        layers=layers, query_heads=9, kv_heads=3, head_dim=64, window=256, sinks=4, reserve=64,
        storage=storage,
    )  # fmt: skip


def walk(mirror: Mirror, tokens: list[tuple[Floats, Floats, Floats]], start: int, size: int) -> list[Floats]:
    """Step every layer from ``start`` on in chunks of ``size``: per layer all outs, then all lses."""
    answers: list[list[tuple[Floats, Floats]]] = [[] for _ in tokens]
    for at in range(start, len(tokens[0][0]), size):
        for layer, (q, k, v) in enumerate(tokens):
            part = slice(at, at + size)
            answers[layer].append(mirror.step(layer, q[part], k[part], v[part]))
    return [np.concatenate(parts) for layer in answers for parts in zip(*layer, strict=True)]


@engines
def test_memory_is_flat_and_every_97th_token_right(tier: str, storage: str) -> None:
    mirror = Mirror(smollm2(storage), tier)
    at_1000 = None
    for position in range(5000):
        for layer in range(2):
            q, k, v = mirror.draw(layer, 1)
            answer = mirror.step(layer, q, k, v)
            if position % 97 == 0:
                mirror.check(layer, q, answer, position)
        if position == 999:
            at_1000 = mirror.session.stats(), mirror.arena.stats()
    assert at_1000 is not None
    stats = mirror.session.stats()
    assert (stats.length, stats.high_water, stats.layers) == (5000, 5000, 2)
    assert stats.bytes_resident == at_1000[0].bytes_resident == stats.bytes_reserved
    assert stats.pages == at_1000[0].pages == 2 * (1 + 4)
    assert mirror.arena.stats() == at_1000[1]
    mirror.check_stored()


@engines
def test_wrapped_prefill_in_chunks_equals_single_steps(tier: str, storage: str) -> None:
    single = Mirror(smollm2(storage), tier).grow(700)
    tokens = [single.draw(layer, 330) for layer in range(2)]
    want = walk(single, tokens, 0, 1)
    for size in (3, 64, 65):
        chunked = Mirror(smollm2(storage), tier).grow(700)
        for got, expected in zip(walk(chunked, tokens, 0, size), want, strict=True):
            assert_same_bits(got, expected, f"{tier} {storage} chunks of {size}")
        assert chunked.state() == single.state()


@engines
def test_a_chunk_of_one_too_many_is_refused_and_changes_nothing(tier: str, storage: str) -> None:
    mirror, twin = (Mirror(smollm2(storage), tier).grow(700) for _ in range(2))
    assert mirror.session.max_chunk == 65
    q, k, v = mirror.draw(0, 66)
    for _ in range(2):
        with refused(mirror, ChunkTooLong, limit=65):
            mirror.session.step(0, q, k, v)
        with refused(mirror, ChunkTooLong, limit=65):
            mirror.session.append(0, k, v)
    assert_same_answers(mirror.step(0, q[:65], k[:65], v[:65]), twin.step(0, q[:65], k[:65], v[:65]), "next")
    with refused(mirror, ChunkTooLong, limit=65):  # now 65 ahead
        mirror.session.step(0, q[65:], k[65:], v[65:])
    with refused(mirror, ChunkTooLong, limit=65):
        mirror.session.step(1, q, k, v)
    assert_same_answers(mirror.step(1, q[:65], k[:65], v[:65]), twin.step(1, q[:65], k[:65], v[:65]), "next")
    assert_same_answers(mirror.step(0, q[65:], k[65:], v[65:]), twin.step(0, q[65:], k[65:], v[65:]), "after")


def test_the_last_chunk_before_the_wrap_may_be_as_long_as_the_ring() -> None:
    """Nothing is overwritten yet, so nothing is refused; one token more would wrap."""
    mirror = Mirror(small())
    q, k, v = mirror.draw(0, 3 + 256 + 1)
    with refused(mirror, ChunkTooLong, limit=10):
        mirror.session.append(0, k, v)
    for layer in range(2):
        mirror.check(layer, q[:-1], mirror.step(layer, q[:-1], k[:-1], v[:-1]), 0)


@engines
def test_a_stream_of_one_layer_splits_long_calls_itself(tier: str, storage: str) -> None:
    spec = small(1, storage=storage)
    single = Mirror(spec, tier)
    tokens = [single.draw(0, 700)]
    want = walk(single, tokens, 0, 1)
    for size in (700, 260, 61):
        assert_same_answers(walk(Mirror(spec, tier), tokens, 0, size), want, f"calls of {size}")
    appended = Mirror(spec, tier)
    appended.append(0, *tokens[0][1:])
    assert appended.state() == single.state()


@pytest.mark.parametrize("sinks", [0, 3])
@pytest.mark.parametrize("window", [1, 2, 5, 128, 130])
@engines
def test_window_at_the_lengths_where_it_fills(tier: str, storage: str, window: int, sinks: int) -> None:
    """Against a mask built from the one sentence: p sees j if p - W < j <= p, or j < S and j <= p."""
    mirror = Mirror(small(window=window, sinks=sinks, storage=storage), tier, seed=window)
    lengths = {window + d for d in range(-2, 3)} | {2 * window + d for d in (-1, 0, 1)}
    for length in sorted(x for x in lengths if x > 0):
        mirror.grow(length - 1)
        for layer in range(2):
            q, k, v = mirror.draw(layer, 1)
            out, _ = mirror.step(layer, q, k, v)
            p = length - 1
            mask = np.array([p - window < j <= p or j < min(sinks, p + 1) for j in range(length)])
            stored_k, stored_v = mirror.stored(layer, range(length))
            want, _ = reference.attend(q, stored_k, stored_v, mask=mask, causal=False)
            bound = GAUSSIAN[storage] * np.abs(stored_v).max()
            assert_near(out, want, bound, f"{tier} {storage} W {window} S {sinks} length {length}")


@pytest.mark.parametrize(("window", "reserve"), [(20, 6), (150, 40)])
@engines
def test_chunks_of_all_sizes_in_random_order(tier: str, storage: str, window: int, reserve: int) -> None:
    """Every row of every chunk against the plain list; nothing still in a window is ever dropped."""
    mirror = Mirror(small(window=window, reserve=reserve, storage=storage), tier)
    sizes = 2 * [1, 3, window - 1, window, window + 1, 3 * window]
    random.Random(f"{tier}{storage}{window}").shuffle(sizes)
    for size in sizes:
        tokens = [mirror.draw(layer, size) for layer in range(2)]
        for part in mirror.session.chunks(size):
            position = mirror.length
            for layer, (q, k, v) in enumerate(tokens):
                mirror.check(layer, q[part], mirror.step(layer, q[part], k[part], v[part]), position)
        assert mirror.session.length == mirror.length
        mirror.check_stored()


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("window", [None, 60])
def test_length_limit_is_exact(window: int | None, layers: int) -> None:
    rules = {"window": window, "sinks": 0, "reserve": 0}
    mirror = Mirror(small(layers, max_length=300, **rules)).grow(298)
    q, k, v = mirror.draw_stack(range(layers), 3)
    for call in (
        lambda: mirror.session.append(0, k[0], v[0]),
        lambda: mirror.session.step(0, q[0], k[0], v[0]),
        lambda: mirror.session.append_all(k, v),
        lambda: mirror.session.step_all(q, k, v),
    ):
        with refused(mirror, LengthExceeded, limit=300):
            call()
    for i in range(2):
        for layer in range(layers):
            row = (layer, slice(i, i + 1))
            mirror.check(layer, q[row], mirror.step(layer, q[row], k[row], v[row]), 298 + i)
    with refused(mirror, LengthExceeded, limit=300):
        mirror.session.append(0, k[0, :1], v[0, :1])
    mirror.truncate(mirror.session.min_length)
    assert mirror.session.length == (300 if window else 0)


@pytest.mark.parametrize("sinks", [0, 3])
@engines
def test_earlier_positions_up_to_the_border(tier: str, storage: str, sinks: int) -> None:
    """Just wrapped, at a page's end and start, many laps on: all that is whole is answered, nothing else."""
    for length in (100, sinks + 256, sinks + 257, sinks + 384, sinks + 385, sinks + 1300):
        mirror = Mirror(small(sinks=sinks, storage=storage), tier, seed=length).grow(length)
        oldest = mirror.oldest(0)
        border = 0 if oldest == sinks else oldest + 60 - 1
        for position in {border, border + 1, (border + length) // 2, length - 1}:
            mirror.check_attend(1, 1, position)
        mirror.check_attend(0, length - border, border)
        for p in range(min(sinks, border)):  # sinks never leave
            mirror.check_attend(0, 1, p)
        q = mirror.queries(0, 2)
        for position in {sinks, border - 1} if border else ():
            with refused(mirror, WindowEvicted, oldest=border):
                mirror.session.attend(0, q, position=position)
        for position in (length - 1, length, length + 1, 2**62, -1, -(2**62)):
            with refused(mirror, SequenceGap, expected=length):
                mirror.session.attend(0, q, position=position)


@engines
def test_rows_from_the_sinks_into_the_evicted_ring_are_refused(tier: str, storage: str) -> None:
    """The first rows see only sinks, which are there; the last ones' windows are long gone."""
    mirror = Mirror(small(storage=storage), tier).grow(700)
    mirror.check_attend(0, 3, 0)
    for position, rows in ((0, 4), (2, 2), (0, 100)):
        with refused(mirror, WindowEvicted, oldest=mirror.oldest(0) + 60 - 1):
            mirror.session.attend(0, mirror.queries(0, rows), position=position)


@engines
def test_repeated_attend_gives_the_same_bits(tier: str, storage: str) -> None:
    """Also after later tokens came, as long as the window is whole; with and without a named position."""
    mirror = Mirror(small(storage=storage), tier).grow(500)
    q = mirror.queries(0, 7)
    first = mirror.session.attend(0, q, return_lse=True)
    assert_same_bits(mirror.session.attend(0, q), first[0], "without lse")
    for length in (500, 501, 510, 560):
        mirror.grow(length)
        again = mirror.session.attend(0, q, position=493, return_lse=True)
        assert_same_answers(again, first, f"at {length}")


@engines
def test_stored_tokens_can_be_compared_until_they_are_evicted(tier: str, storage: str) -> None:
    mirror = Mirror(small(storage=storage), tier).grow(700)
    oldest = mirror.oldest(0)
    for start, stop in ((0, 3), (oldest, 700), (oldest + 100, oldest + 101), (699, 700)):
        k, v = (np.array(x[1][start:stop]) for x in (mirror.k, mirror.v))
        assert mirror.session.matches(1, start, k, v)
        for x in (k, v):
            x[-1, -1, -1] += 1
            assert not mirror.session.matches(1, start, k, v)
            x[-1, -1, -1] -= 1
    for start, stop in ((2, 4), (3, 4), (oldest - 1, oldest + 1), (0, 700)):
        with refused(mirror, DuplicateTooOld):
            mirror.session.read(0, start, stop)
        with refused(mirror, DuplicateTooOld):
            mirror.session.matches(0, start, *(np.array(x[0][start:stop]) for x in (mirror.k, mirror.v)))
    for start, stop in ((699, 701), (700, 701), (-1, 1)):
        with refused(mirror, SequenceGap, expected=700):
            mirror.session.read(0, start, stop)
