"""Every kernel against the float64 oracle: tiers x storages x head ratios x fill states x dims x windows."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from comparators import HULL, assert_near, assert_same_bits, covering
from oracle import ENGINES, GAUSSIAN, LSE, STORAGES, TIERS, Case, Stream

from rondel.decoder.errors import SequenceGap

HEADS = ((3, 3), (4, 2), (9, 3), (8, 2), (14, 2), (8, 1), (5, 1))
CORNERS = (1, 7, 8, 15, 16, 17, 63, 64, 65, 80, 96, 128, 256)
DIMS = (*((d, d) for d in CORNERS), (64, 128), (128, 64), (1, 65), (65, 1), (17, 96), (256, 7))
FILLS = ("empty", "one", "partial", "full", "full+1", "once", "many")
WINDOWS, SINKS, RESERVES = (1, 5, 128, 130, 256), (0, 1, 4, 16, 17, 40), (0, 1, 64)
ROWS = (1, 2, 5, 33)


def length_of(fill: str, case: Case) -> int:
    lengths = {"empty": 0, "one": 1, "partial": case.ring // 2 + 5, "full": case.sinks + case.ring}
    laps = {"full+1": case.ring + 1, "once": case.ring * 3 // 2 + 3, "many": case.ring * 4 + 77}
    return lengths[fill] if fill in lengths else case.sinks + laps[fill]


def matrix() -> list[Any]:
    rows = covering(
        {
            "engine": ENGINES,
            "dims": DIMS,
            "heads": HEADS,
            "fill": FILLS,
            "window": WINDOWS,
            "sinks": SINKS,
            "reserve": RESERVES,
            "rows": ROWS,
        }
    )
    found = []
    for row in rows:
        (tier, storage), fill, n = row.pop("engine"), row.pop("fill"), row.pop("rows")
        case = Case(tier=tier, storage=storage, **row)
        found.append(pytest.param(case, fill, n, id=f"{case}-{fill}-N{n}"))
    return found


@pytest.mark.parametrize(("case", "fill", "rows"), matrix())
def test_matrix(case: Case, fill: str, rows: int) -> None:
    length = length_of(fill, case)
    stream = Stream(case, seed=length).grow(length)
    n = case.rows(rows, length)
    at = stream.seen(n)
    for got, want, name in zip(stream.held(at), stream.stored(at), ("keys", "values"), strict=True):
        assert_same_bits(got, want, f"{case} stored {name}")
    stream.check(stream.queries(n), bound=GAUSSIAN, lse_bound=LSE)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("reserve", RESERVES)
@pytest.mark.parametrize("sinks", SINKS)
@pytest.mark.parametrize("window", WINDOWS)
def test_every_length_where_the_window_or_the_ring_turns(
    window: int, sinks: int, reserve: int, storage: str
) -> None:
    """Off by one at the window's edge, the sinks' end, a page's end or the wrap shows here."""
    index = sum(options.index(x) for options, x in zip(
        (WINDOWS, SINKS, RESERVES), (window, sinks, reserve), strict=True
    ))  # fmt: skip
    tier = TIERS[index % len(TIERS)]
    case = Case(
        tier=tier, storage=storage, heads=(2, 1), dims=(8, 9), window=window, sinks=sinks, reserve=reserve
    )
    turns = {window, 2 * window, sinks, sinks + window, sinks + 128, sinks + case.ring, sinks + 2 * case.ring}
    lengths = {turn + d for turn in turns for d in (-1, 0, 1)} | {window - 2, window + 2, 1}
    stream = Stream(case, seed=index)
    for length in sorted(x for x in lengths if x > 0):
        stream.grow(length)
        for rows in {1, case.rows(5, length), case.rows(70, length)}:
            stream.check(stream.queries(rows), bound=GAUSSIAN, lse_bound=LSE)


@pytest.mark.parametrize(("tier", "storage"), ENGINES)
def test_without_window(tier: str, storage: str) -> None:
    """One stream up to max_length, past the 16 pages that one partial result covers."""
    case = Case(
        tier=tier, storage=storage, heads=(6, 2), dims=(32, 24), window=None, max_length=2 * 2048 + 131
    )
    stream = Stream(case)
    for length in (1, 2, 16, 17, 127, 128, 129, 1000, 2047, 2048, 2049, 2177, 4096, 4097, 4227):
        stream.grow(length)
        for rows in {1, case.rows(3, length), case.rows(40, length)}:
            stream.check(stream.queries(rows), bound=GAUSSIAN, lse_bound=LSE)


@pytest.mark.parametrize(("tier", "storage"), ENGINES)
def test_long_window_wrapped(tier: str, storage: str) -> None:
    """A window over several partial results, whose ring has turned."""
    case = Case(tier=tier, storage=storage, heads=(4, 2), dims=(16, 16), window=2300, sinks=4, reserve=64)
    stream = Stream(case)
    for length in (2300, case.ring + 4, case.ring + 70, 2 * case.ring + 1000):
        stream.grow(length)
        for rows in {1, 65}:
            stream.check(stream.queries(rows), bound=GAUSSIAN, lse_bound=LSE)


@pytest.mark.parametrize(("tier", "storage"), ENGINES)
def test_rows_before_the_first_position_are_refused(tier: str, storage: str) -> None:
    """More rows than tokens, the empty stream included: a typed error; no rows: an empty answer."""
    stream = Stream(Case(tier=tier, storage=storage, window=5, sinks=1, reserve=1))
    for length in range(4):
        stream.grow(length)
        with pytest.raises(SequenceGap):
            stream.session.attend(0, stream.queries(length + 1))
        stream.check(stream.queries(length), bound=GAUSSIAN, lse_bound=LSE)


@pytest.mark.parametrize(("tier", "storage"), ENGINES)
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_query_head_reads_its_kv_head(heads: tuple[int, int], tier: str, storage: str) -> None:
    """A distinct constant in each kv head's values comes out of exactly its query heads."""
    case = Case(tier=tier, storage=storage, heads=heads, window=130, sinks=4, reserve=1)
    stream = Stream(case)
    constant = (10.0 + np.arange(heads[1], dtype=np.float32))[None, :, None]
    for length in (3, 4, 140, 700):
        k, v = stream.draw(length - len(stream.k))
        stream.append(k, np.broadcast_to(constant, v.shape).copy())
        out = stream.session.attend(0, stream.queries(2))
        stored = stream.held(np.array([0]))[1]
        want = np.repeat(stored, heads[0] // heads[1], axis=1)[:, :, :1]
        assert_near(out, np.broadcast_to(want, out.shape), HULL[storage] * want, f"{case} at {length}")


@pytest.mark.parametrize("scale", [1e-3, 1.0, 0.3])
@pytest.mark.parametrize(("tier", "storage"), ENGINES)
def test_scale_of_the_spec(tier: str, storage: str, scale: float) -> None:
    case = Case(tier=tier, storage=storage, dims=(16, 16), scale=scale)
    stream = Stream(case).grow(300)
    stream.check(stream.queries(3) / np.float32(4 * scale**0.5), bound=GAUSSIAN, lse_bound=None)


@pytest.mark.parametrize(
    ("heads", "dims", "window", "sinks"),
    [
        ((9, 3), (64, 64), 130, 4),
        ((5, 1), (17, 96), 256, 17),
        ((3, 3), (128, 1), 5, 40),
        ((8, 1), (80, 80), 1, 0),
    ],
    ids=str,
)
@pytest.mark.parametrize("storage", STORAGES)
def test_tiers_agree(storage: str, heads: Any, dims: Any, window: int, sinks: int) -> None:
    """The same stored bytes on every tier, and outputs no further apart than two errors."""
    cases = [
        Case(tier=tier, storage=storage, heads=heads, dims=dims, window=window, sinks=sinks, reserve=1)
        for tier in TIERS
    ]
    streams = [Stream(case, seed=5).grow(sinks + 3 * case.ring) for case in cases]
    q = streams[0].queries(2)
    at = streams[0].seen(2)
    answers = [stream.session.attend(0, q, return_lse=True) for stream in streams]
    held = [stream.held(at) for stream in streams]
    largest = float(np.abs(held[0][1]).max())
    for (first, one), (second, other) in itertools.combinations(
        zip(cases, range(len(cases)), strict=True), 2
    ):
        name = f"{first} and {second.tier}"
        for got, want in zip(held[other], held[one], strict=True):
            assert_same_bits(got, want, f"{name}: stored")
        assert_near(answers[other][0], answers[one][0], 2 * GAUSSIAN[storage] * largest, f"{name}: out")
        assert_near(answers[other][1], answers[one][1], 16 * LSE[storage], f"{name}: lse")
