"""Bitwise rules: a row depends on its query, the stored bytes it may see and their slots. Nothing else."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from comparators import assert_same_bits
from oracle import ENGINES, STORAGES, TIERS, Case, Floats, Stream

from rondel.decoder.cache.arena import Arena

SHAPES = {
    "gqa": {"heads": (9, 3), "dims": (64, 64), "window": 256, "sinks": 4, "reserve": 64},
    "mha": {"heads": (3, 3), "dims": (17, 80), "window": 130, "sinks": 17, "reserve": 64},
    "mqa": {"heads": (5, 1), "dims": (96, 7), "window": 65, "sinks": 0, "reserve": 64},
    "tiny": {"heads": (2, 1), "dims": (1, 1), "window": 1, "sinks": 1, "reserve": 64},
}
engines = pytest.mark.parametrize(("tier", "storage"), ENGINES)
shapes = pytest.mark.parametrize("shape", SHAPES)


def case_of(shape: str, tier: str, storage: str) -> Case:
    return Case(tier=tier, storage=storage, **SHAPES[shape])  # type: ignore[arg-type]


def walk(case: Case, q: Floats, k: Floats, v: Floats, chunks: list[int]) -> tuple[Floats, Floats]:
    """Step through all tokens in chunks of these sizes, over and over; every row's out and lse."""
    session, outs, lses, at = case.open(), [], [], 0
    for size in itertools.cycle(chunks):
        if at == len(q):
            break
        part = slice(at, min(len(q), at + size))
        out, lse = session.step(0, q[part], k[part], v[part], return_lse=True)
        outs.append(out)
        lses.append(lse)
        at = part.stop
    return np.concatenate(outs), np.concatenate(lses)


@shapes
@engines
def test_chunks_equal_single_steps(shape: str, tier: str, storage: str) -> None:
    case = case_of(shape, tier, storage)
    stream = Stream(case)
    tokens = case.sinks + 2 * case.ring + 200
    q, (k, v) = stream.queries(tokens), stream.draw(tokens)
    want = walk(case, q, k, v, [1])
    for chunks in ([64], [65], [3, 1, 64, 2, 65, 33]):
        got = walk(case, q, k, v, chunks)
        for a, b, name in zip(got, want, ("out", "lse"), strict=True):
            assert_same_bits(a, b, f"{case} chunks {chunks}: {name}")


@shapes
@engines
def test_rows_together_equal_rows_alone(shape: str, tier: str, storage: str) -> None:
    case = case_of(shape, tier, storage)
    for length in (70, case.sinks + case.ring, case.sinks + 3 * case.ring + 9):
        stream = Stream(case, seed=length).grow(length)
        q = stream.queries(65)
        together = stream.session.attend(0, q, return_lse=True)
        for i in (0, 1, 31, 63, 64):
            alone = stream.session.attend(0, q[i : i + 1], position=length - 65 + i, return_lse=True)
            for a, b in zip(alone, together, strict=True):
                assert_same_bits(a[0], b[i], f"{case} length {length} row {i}")


@shapes
@engines
def test_repeating_changes_nothing(shape: str, tier: str, storage: str) -> None:
    stream = Stream(case_of(shape, tier, storage)).grow(600)
    q = stream.queries(7)
    first = stream.session.attend(0, q)
    stream.session.attend(0, stream.queries(65))
    assert_same_bits(stream.session.attend(0, q), first, "the same attend again")


@engines
def test_heads_and_rows_do_not_touch_each_other(tier: str, storage: str) -> None:
    case = case_of("gqa", tier, storage)
    q, (k, v) = Stream(case).queries(400), Stream(case).draw(400)
    out, lse = walk(case, q, k, v, [37])
    other_k, other_v, other_q = k.copy(), v.copy(), q.copy()
    other_k[:, 1:] *= -1e6
    other_v[:, 1:] = 1e15
    other_q[:, 1:] *= 1e3
    got, got_lse = walk(case, other_q, other_k, other_v, [37])
    assert_same_bits(got[:, 0], out[:, 0], "query head 0, all other heads changed")
    assert_same_bits(got_lse[:, 0], lse[:, 0], "lse of query head 0, all other heads changed")
    other_q = q.copy()
    other_q[::2] *= -1e12
    got, _ = walk(case, other_q, k, v, [37])
    assert_same_bits(got[1::2], out[1::2], "odd rows, even rows changed")


@shapes
@engines
def test_tokens_out_of_sight_do_not_matter(shape: str, tier: str, storage: str) -> None:
    """Evicted tokens, tokens of dead pages and later tokens of the same chunk are never looked at."""
    case = case_of(shape, tier, storage)
    tokens = case.sinks + case.ring + 100
    stream, loud = Stream(case), Stream(case)
    q, (k, v) = stream.queries(1), stream.draw(tokens)
    stream.append(k, v)
    hidden = slice(case.sinks, tokens - case.window if case.window else 0)
    k[hidden], v[hidden] = 1e15, -1e15
    loud.append(k, v)
    assert_same_bits(loud.session.attend(0, q), stream.session.attend(0, q), f"{case}: older tokens loud")
    k, v = stream.draw(60)
    stream.session.append(0, k, v)
    k[1:], v[1:] = 1e15, -1e15
    loud.session.append(0, k, v)
    want = stream.session.attend(0, q, position=tokens, return_lse=True)
    for a, b in zip(loud.session.attend(0, q, position=tokens, return_lse=True), want, strict=True):
        assert_same_bits(a, b, f"{case}: later tokens loud")


@pytest.mark.parametrize("before", STORAGES)
@engines
@shapes
def test_memory_of_a_closed_stream_does_not_matter(shape: str, tier: str, storage: str, before: str) -> None:
    """Whatever bytes its pages held: huge values, or the NaN that int8 codes of -1 are as float32."""
    case = case_of(shape, tier, storage)
    lengths = (1, 20, 131, case.sinks + case.ring + 50)
    clean = Stream(case)
    q = clean.queries(1)
    want = [clean.grow(length).session.attend(0, q, return_lse=True) for length in lengths]
    arena = Arena(budget=4 << 20)
    for _ in range(3):
        for dims, fill in ((case.dims, -1.0), ((256, 256), -1.0), (case.dims, 1e15)):
            dirty = Case(tier=tier, storage=before, heads=(2, 1), dims=dims, window=512, sinks=16)
            with Stream(dirty, arena=arena).session as session:
                k = np.full((700, 1, dims[0]), fill, np.float32)
                v = np.full((700, 1, dims[1]), fill, np.float32)
                k[..., 0] = v[..., 0] = 127.0 if fill < 0 else fill
                for part in session.chunks(700):
                    session.append(0, k[part], v[part])
    reused = Stream(case, arena=arena)
    reused.queries(1)
    for length, answer in zip(lengths, want, strict=True):
        got = reused.grow(length).session.attend(0, q, return_lse=True)
        for a, b, name in zip(got, answer, ("out", "lse"), strict=True):
            assert_same_bits(a, b, f"{case} in used memory at {length}: {name}")


@pytest.mark.parametrize("storage", STORAGES)
def test_tiers_run_side_by_side(storage: str) -> None:
    """Sessions of all tiers at once, interleaved: each as if it were alone."""
    cases = [case_of("gqa", tier, storage) for tier in TIERS]
    alone, mixed = ([Stream(case) for case in cases] for _ in range(2))
    lengths = range(50, 501, 50)
    for stream in alone:
        for length in lengths:
            stream.grow(length)
    for length in lengths:
        for stream in mixed:
            stream.grow(length)
    q = alone[0].queries(5)
    for a, b in zip(alone, mixed, strict=True):
        assert_same_bits(b.session.attend(0, q), a.session.attend(0, q), str(a.case))
