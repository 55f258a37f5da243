"""Snapshots: what was restored is the stream that was written, and goes on as it would have, to the bit."""

from __future__ import annotations

import io
import json
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from comparators import assert_same_bits
from mirror import Mirror, small
from oracle import STORAGES, TIERS

from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import (
    InvalidRequest,
    InvalidSpec,
    RollbackTooDeep,
    SessionBusy,
    StreamClosed,
    StreamSealed,
)
from rondel.decoder.rope import Rope
from rondel.decoder.rope_scaling import DivisorScaling, Llama3Scaling, NtkScaling, YarnScaling
from rondel.decoder.session import DecoderSession
from rondel.decoder.snapshot_header import SnapshotHeader
from rondel.decoder.spec import LayerGroup, StreamSpec


def written(session: DecoderSession) -> bytes:
    file = io.BytesIO()
    assert session.snapshot(file) == len(file.getvalue())
    return file.getvalue()


def restored(raw: bytes, arena: Arena | None = None, **options: Any) -> DecoderSession:
    return DecoderSession.restore(io.BytesIO(raw), arena or Arena(budget=64 << 20), **options)


def assert_equal(session: DecoderSession, other: DecoderSession) -> None:
    """Everything that can be told of a stream is the same, its stored bytes included."""
    assert other.spec == session.spec
    for name in ("length", "high_water", "min_length", "generation", "sealed"):
        assert getattr(other, name) == getattr(session, name), name
    layers = range(session.spec.layers)
    assert [other.layer_length(n) for n in layers] == [session.layer_length(n) for n in layers]
    assert written(other) == written(session)


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


@pytest.mark.parametrize("size", [1, 7, 1000, 4096, 1 << 20])
def test_pieces_are_the_snapshot(size: int) -> None:
    session = Mirror(small()).grow(20).session
    pieces = session.snapshot_pieces(at_most=size)
    parts = list(pieces)
    assert all(len(part) == size for part in parts[:-1])
    assert 0 < len(parts[-1]) <= size
    assert b"".join(parts) == written(session)
    assert pieces.total_bytes == len(written(session))


def test_pieces_are_at_most_a_mebibyte_however_large_a_page_is() -> None:
    spec = StreamSpec.uniform(
        layers=1, query_heads=8, kv_heads=8, head_dim=1024, storage="float32", max_length=128
    )
    mirror = Mirror(spec).grow(10)
    sizes: list[int] = []
    raw = bytearray()

    class File:
        def write(self, data: bytes) -> None:
            sizes.append(len(data))
            raw.extend(data)

    class Source(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            assert size == 1 << 20
            return super().read(size)

    mirror.session.snapshot(File())
    assert max(sizes) == 1 << 20
    other = DecoderSession.restore(Source(raw), Arena(budget=64 << 20))
    assert_equal(mirror.session, other)


@pytest.mark.parametrize("change", ["append", "truncate", "seal"])
def test_pieces_end_when_the_stream_changes(change: str) -> None:
    mirror = Mirror(small()).grow(300)
    session, pieces = mirror.session, mirror.session.snapshot_pieces(at_most=5000)
    assert len(next(pieces)) == 5000
    mirror.check_attend(0, 3, 290)
    assert len(next(pieces)) == 5000
    {"append": lambda: mirror.grow(301), "truncate": lambda: mirror.truncate(300), "seal": session.seal}[
        change
    ]()
    for _ in range(2):
        with pytest.raises(SessionBusy, match="changed"):
            next(pieces)


def test_closed_streams() -> None:
    session = Mirror(small()).grow(300).session
    pieces = session.snapshot_pieces(at_most=100)
    next(pieces)
    session.close()
    for call in (lambda: next(pieces), lambda: session.snapshot(io.BytesIO()), session.snapshot_pieces):
        with pytest.raises(StreamClosed):
            call()


def test_a_file_that_fails_leaves_the_stream_as_it_is() -> None:
    mirror = Mirror(small()).grow(300)
    before = mirror.state()

    class Full:
        def write(self, data: bytes) -> int:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        mirror.session.snapshot(Full())
    assert mirror.state() == before


def test_files_that_take_a_part_of_what_they_are_given() -> None:
    session = Mirror(small()).grow(300).session
    raw = bytearray()

    class Narrow:
        def write(self, data: bytes) -> int:
            raw.extend(data[:1009])
            return min(1009, len(data))

    class Full(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> None:
            return None

    session.snapshot(Narrow())
    assert raw == written(session)
    with pytest.raises(BlockingIOError):
        session.snapshot(Full())


def test_what_is_no_binary_file() -> None:
    with pytest.raises(InvalidRequest, match="binary file, got str"):
        DecoderSession.restore(io.StringIO("text"), Arena(budget=2 << 20))  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="at_most"):
        Mirror(small()).session.snapshot_pieces(at_most=0)


@pytest.mark.parametrize("storage", STORAGES)
def test_only_pages_with_tokens_are_written(storage: str) -> None:
    mirror = Mirror(small(storage=storage))
    empty = len(written(mirror.session))
    assert empty < 1000
    page = mirror.session._rings[0].layout.page.page_bytes
    sinks = mirror.session._rings[0].layout.sink_page
    assert sinks is not None
    sizes = {}
    for length in (3, 4, 131, 132, 2000):
        mirror.grow(length)
        sizes[length] = (len(written(mirror.session)) - empty) / 2
    pages = {3: 0, 4: 1, 131: 1, 132: 2, 2000: 2}
    assert sizes == {n: pytest.approx(sinks.page_bytes + pages[n] * page, abs=60) for n in sizes}


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
