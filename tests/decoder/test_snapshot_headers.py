"""Headers of snapshots: all of a specification is in them, and whatever cannot be a stream is refused."""

from __future__ import annotations

import io
import json
import tracemalloc
from copy import deepcopy
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mirror import Mirror, small
from snapshot_parts import Parts, restored, written
from snapshot_refusals import ARENA, TINY, arena_is_as_before, refused, tiny

from rondel.decoder.attach import attach
from rondel.decoder.cache.arena import Arena
from rondel.decoder.cache.record import GENERATION, StreamRecord
from rondel.decoder.cache.words import MAX_VALUE
from rondel.decoder.errors import (
    BudgetExceeded,
    CorruptSnapshot,
    InvalidSpec,
    UnsupportedSnapshot,
)
from rondel.decoder.rope import Rope
from rondel.decoder.rope_scaling import DivisorScaling, Llama3Scaling
from rondel.decoder.session import DecoderSession
from rondel.decoder.snapshot_header import MAX_HEADER_BYTES, SnapshotHeader
from rondel.decoder.spec import LayerGroup, StreamSpec


def test_the_header_says_everything_that_a_spec_has() -> None:
    """A field that is added to a description and forgotten here would be lost without a word."""
    scalings = (Llama3Scaling(8.0, 1.0, 4.0, 8192), DivisorScaling((1.0, 2.0, 3.5)))
    groups = tuple(
        LayerGroup(
            layers=(layer,), query_heads=2, kv_heads=1, key_dim=8, value_dim=3, window=5, sinks=2, reserve=1,
            centring=True, scale=0.1, rope=Rope(theta=5e5, dim=6, interleaved=True, scaling=scaling),
        )
        for layer, scaling in enumerate(scalings)
    )  # fmt: skip
    session = Mirror(StreamSpec(groups=groups, max_length=10)).session
    raw = written(session)
    plain = json.loads(raw[24 : raw.index(b"}", raw.index(b"page_format")) + 1])
    for group, got in zip(groups, plain["groups"], strict=True):
        assert group.rope is not None
        assert set(got) == {field.name for field in fields(LayerGroup)}
        assert set(got["rope"]) == {field.name for field in fields(Rope) if field.init}
        scaling: Any = group.rope.scaling
        assert set(got["rope"]["scaling"]) == {"kind", *(field.name for field in fields(scaling))}
    assert restored(raw).spec == session.spec


def test_a_header_beyond_its_limit_is_refused() -> None:
    rope = Rope(scaling=DivisorScaling(tuple((1 + np.random.default_rng(0).random(512)).tolist())))
    groups = tuple(
        LayerGroup(layers=(n,), query_heads=1, kv_heads=1, key_dim=1024, value_dim=1, window=1, rope=rope)
        for n in range(120)
    )
    header = SnapshotHeader(
        spec=StreamSpec(groups=groups), page_format=1, lengths=(0,) * 120, claimed=(0,) * 120,
        high_water=0, generation=0, sealed=False,
    )  # fmt: skip
    with pytest.raises(InvalidSpec, match="at most 1048576 bytes"):
        header.encode()


@pytest.mark.parametrize(
    "header",
    [
        b"{}",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"9" * 100_000,
        b'{"claimed":NaN}',
        b"{",
    ],
)
def test_headers_that_are_none(header: bytes) -> None:
    refused(Parts({}).join_with(header), "header")


def test_headers_that_are_spelt_otherwise() -> None:
    parts = Parts.of(tiny(), TINY)
    text = json.dumps(parts.header, sort_keys=True, separators=(",", ":"))
    for other in (
        text.replace(",", ", ", 1),
        text.replace('"generation":0', '"generation":0,"generation":0'),
        text.replace('"generation":0', '"generation":0,"more":0'),
        text.replace('"generation":0,', ""),
        text.replace('"generation":0', '"generation":-0'),
        text.replace('"generation":0', '"generation":0.0'),
        text.replace('"generation":0', '"generation":false'),
        text.replace('"storage":"int8"', '"storage":"\\u0069nt8"'),
    ):
        assert other != text
        refused(parts.join_with(other.encode()), "header")


def test_a_header_that_is_too_long_is_not_even_read() -> None:
    refused(Parts({}).join_with(b" " * (MAX_HEADER_BYTES + 1)), "preamble")
    refused(Parts({}).join_with(b""), "preamble")


HOSTILE = (
    st.sampled_from(
        [-(2**63), -1, 0, 1, 127, 128, 129, 1 << 24, 2**31, 2**48, 2**63 - 1, 2**63, 2**64, 10**30]
    )
    | st.integers(-300, 3000)
    | st.sampled_from([None, True, "int8", "", [], {}, 1e308, -0.0, 0.5, [0] * 2000])
)


@given(data=st.data(), values=st.lists(HOSTILE, min_size=1, max_size=3))
def test_hostile_numbers_in_the_header(data: st.DataObject, values: list[Any]) -> None:
    """Refused, or what they say is a stream: then it can be used."""
    spec = small(rope=None)
    parts = Parts.of(HONEST, spec)
    for value in values:
        place: Any = data.draw(st.sampled_from([parts.header, parts.header["groups"][0]]))
        key = data.draw(st.sampled_from(sorted(set(place) - {"groups", "rope"})))
        if isinstance(place[key], list) and place[key] and data.draw(st.booleans()):
            place, key = place[key], data.draw(st.integers(0, len(place[key]) - 1))
        place[key] = deepcopy(value)  # or a list could come to be in itself
    with arena_is_as_before():
        try:
            session = DecoderSession.restore(io.BytesIO(parts.join()), ARENA)
        except (CorruptSnapshot, UnsupportedSnapshot, BudgetExceeded):
            return
        with session:
            group = session.spec.groups[0]
            rows = min(1, session.layer_length(0))
            q = np.ones((rows, group.query_heads, group.key_dim), np.float32)
            assert np.isfinite(session.attend(0, q)).all()


HONEST = written(Mirror(small()).grow(700).session)


@pytest.mark.parametrize(
    "change",
    [
        {"max_length": 1 << 48, "window": None, "sinks": 0, "reserve": 0},
        {"window": 1 << 24, "reserve": 1 << 20, "layers": list(range(1024))},
        {"kv_heads": 1024, "query_heads": 1024, "key_dim": 1024, "value_dim": 1024},
    ],
)
def test_sizes_that_no_memory_has(change: dict[str, Any]) -> None:
    parts = Parts.of(HONEST, small())
    for name, value in change.items():
        (parts.header if name in parts.header else parts.header["groups"][0])[name] = value
    layers = len(parts.header["groups"][0]["layers"])
    parts.header["lengths"] = parts.header["claimed"] = [700] * layers
    raw = parts.join()
    tracemalloc.start()
    try:
        refused(raw, error=BudgetExceeded)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("lengths", "claimed", "high_water"),
    [
        ([700, 700], [700, 700], 699),
        ([701, 700], [700, 700], 700),
        ([700, 700], [700, 711], 711),
        ([0, 0], [700, 700], 700),
        ([700, 0], [700, 700], 700),
        ([700, 0], [700, 0], 700),
        ([700], [700], 700),
        ([700, 700, 700], [700, 700, 700], 700),
    ],
)
def test_lengths_that_no_stream_can_have(lengths: list[int], claimed: list[int], high_water: int) -> None:
    parts = Parts.of(HONEST, small())
    parts.header.update(lengths=lengths, claimed=claimed, high_water=high_water)
    refused(parts.join(), "header")


def test_a_seal_on_uneven_layers() -> None:
    mirror = Mirror(small()).grow(10)
    _, k, v = mirror.draw(0, 1)
    mirror.append(0, k, v)
    parts = Parts.of(written(mirror.session), small())
    parts.header["sealed"] = True
    refused(parts.join(), "header")


@pytest.mark.parametrize("field", ["generation", "length"])
def test_numbers_without_room_for_what_comes_after(field: str) -> None:
    """No stream gets there. In an arena's file the next start would fail with all streams in it."""
    parts = Parts.of(HONEST, small())
    for number in ((1 << 47) + 1, (1 << 48) - 1, 1 << 48, (1 << 63) - 1):
        if field == "generation":
            parts.header["generation"] = number
        else:
            parts.header.update(lengths=[number] * 2, claimed=[number] * 2, high_water=number)
        refused(parts.join(), "header")


def test_a_restored_stream_has_generations_left_beyond_starts_on_its_file(tmp_path: Path) -> None:
    parts = Parts.of(HONEST, small())
    parts.header["generation"] = 1 << 47
    arena = Arena(16 << 20, path=tmp_path / "arena")
    DecoderSession.restore(io.BytesIO(parts.join()), arena).truncate(699)
    arena.close()
    arena = Arena(16 << 20, path=tmp_path / "arena")
    (found,) = attach(arena)
    assert found.session is not None
    assert (found.session.generation, found.session.length) == ((1 << 47) + 2, 699)
    arena.close()


def test_a_record_whose_generations_are_at_their_end_is_set_aside(tmp_path: Path) -> None:
    """Not an error of the start, which is every other stream's too."""
    arena = Arena(16 << 20, path=tmp_path / "arena")
    last, other = (DecoderSession(TINY, arena) for _ in range(2))
    record = last._pages.record
    assert isinstance(record, StreamRecord)
    record.words.put(GENERATION, MAX_VALUE)
    arena.close()
    arena = Arena(16 << 20, path=tmp_path / "arena")
    damaged, sound = attach(arena)
    assert "generation" in damaged.reason
    assert sound.session is not None
    arena.close()
    assert other.closed
