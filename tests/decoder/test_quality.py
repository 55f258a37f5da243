"""What stats(quality=True) says of a stream's keys, against what the session reads back."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest

from rondel.decoder import reference
from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import StreamClosed
from rondel.decoder.quality import WORRYING_ERROR, Quality, QualityWarning
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import LayerGroup, StreamSpec

HKV, DIM = 2, 64
Floats = Any


def session(layers: int = 1, **options: Any) -> DecoderSession:
    if "window" not in options:
        options["max_length"] = 2000
    spec = StreamSpec.uniform(
        layers=layers, query_heads=4, kv_heads=HKV, **{"head_dim": DIM, "value_dim": 8, **options}
    )
    return DecoderSession(spec, Arena(budget=64 << 20))


def keys(kind: str, tokens: int, channels: int = 1, dim: int = DIM) -> Floats:
    k = np.random.default_rng(5).standard_normal((tokens, HKV, dim), np.float32)
    if kind == "wide":
        k[:, 1, 3 : 3 + channels] *= 50
    elif kind == "offset":
        k[:, 1, 3 : 3 + channels] += 50
    return k


def feed(stream: DecoderSession, k: Floats, layers: tuple[int, ...] = (0,)) -> DecoderSession:
    v = np.ones((len(k), HKV, 8), np.float32)
    for part in stream.chunks(len(k)):
        for layer in layers:
            stream.append(layer, k[part], v[part])
    return stream


def quality(stream: DecoderSession) -> Quality:
    found = stream.stats(quality=True).quality
    assert found is not None
    return found


def check(found: Quality, seen: Floats, steps: Floats) -> None:
    """``seen`` [128, Hkv, Dk] as the codes have it, ``steps`` [128, Hkv]; against the worst head of both."""
    sizes = np.sqrt((seen.astype(np.float64) ** 2).mean(axis=0))
    assert found.outlier_ratio == pytest.approx(max(row.max() / np.median(row) for row in sizes), rel=1e-6)
    noise = (steps.astype(np.float64) ** 2).mean(axis=0) / 12
    spread = np.median(seen.astype(np.float64).var(axis=0), axis=-1)
    assert found.score_error == pytest.approx(math.sqrt((noise / spread).max()), rel=1e-5)


@pytest.mark.parametrize("dim", [5, 64, 72])
@pytest.mark.parametrize("sinks", [0, 5])
def test_the_newest_full_page_tells(dim: int, sinks: int) -> None:
    stream = session(window=200, sinks=sinks, head_dim=dim)
    k = keys("plain", 700, dim=dim) * np.linspace(0.5, 2.0, 700, dtype=np.float32)[:, None, None]
    for length in (sinks + 128, sinks + 255, sinks + 256, 700):
        feed(stream, k[stream.length : length])
        last = (length - sinks) // 128 * 128 + sinks
        _, scales = reference.quantise_rows(k[last - 128 : last])
        check(quality(stream), stream.read(0, last - 128, last)[0], scales)


def test_the_estimate_is_the_error_of_scores() -> None:
    """With queries that see all channels alike; within what 128 keys and 200 queries can tell."""
    for kind, channels in (("plain", 0), ("wide", 1), ("wide", 4), ("offset", 2)):
        k = keys(kind, 128, channels)
        stream = feed(session(), k)
        stored = stream.read(0, 0, 128)[0].astype(np.float64)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", QualityWarning)
            found = quality(stream)
        head = slice(1, 2) if channels else slice(0, 1)
        spread = k[:, head].astype(np.float64).std(axis=0)
        q = np.random.default_rng(6).standard_normal((200, DIM)) / spread
        exact, ours = (np.einsum("qd,md->qm", q, x[:, head][:, 0].astype(np.float64)) for x in (k, stored))
        exact -= exact.mean(axis=1, keepdims=True)
        error = ours - np.einsum("qd,md->qm", q, k[:, head][:, 0].astype(np.float64))
        error -= error.mean(axis=1, keepdims=True)
        measured = math.sqrt((error**2).mean() / (exact**2).mean())
        assert found.score_error == pytest.approx(measured, rel=0.1), kind


def test_gaussian_keys_are_no_trouble() -> None:
    for centring in (False, True):
        found = quality(feed(session(centring=centring), keys("plain", 600)))
        assert found.outlier_ratio < 1.4
        assert 0.004 < found.score_error < 0.008
        assert found.capped_channels == 0
        assert not found.worrying


@pytest.mark.parametrize("channels", [1, 2, 4])
@pytest.mark.parametrize("kind", ["wide", "offset"])
def test_outliers_are_told_and_warned_of_once_and_centring_is_the_cure(kind: str, channels: int) -> None:
    k = keys(kind, 600, channels)
    bare = feed(session(), k)
    with pytest.warns(QualityWarning, match=r"keys do not suit its storage: score error .* \(layer 0\)"):
        found = quality(bare)
    assert found.worrying
    assert WORRYING_ERROR < 0.1 < found.score_error < 0.2
    assert 40 < found.outlier_ratio < 60
    assert quality(bare) == found  # and no second warning, which would be an error here
    centred = quality(feed(session(centring=True), k))
    assert not centred.worrying
    assert centred.outlier_ratio < 2.0
    assert centred.score_error < 0.01


def test_the_worst_layer_is_named_and_float32_has_nothing_to_tell() -> None:
    shape: dict[str, Any] = {"query_heads": 4, "kv_heads": HKV, "key_dim": DIM, "value_dim": 8}
    groups = (
        LayerGroup(layers=(0, 2), **shape),
        LayerGroup(layers=(1,), **shape, storage="float32"),
        LayerGroup(layers=(3,), **shape, centring=True),
    )
    stream = DecoderSession(StreamSpec(groups=groups, max_length=600), Arena(budget=64 << 20))
    assert stream.stats(quality=True).quality is None
    feed(stream, keys("wide", 300), layers=(1,))
    assert stream.stats(quality=True).quality is None
    feed(stream, keys("plain", 300), layers=(0,))
    assert quality(stream).worst_layer == 0
    feed(stream, keys("wide", 300), layers=(3,))
    assert not quality(stream).worrying
    feed(stream, keys("wide", 300), layers=(2,))
    with pytest.warns(QualityWarning, match="layer 2"):
        assert quality(stream).worst_layer == 2


def test_there_is_nothing_to_tell_before_a_page_is_full_nor_of_one_that_is_never_centred() -> None:
    plain, centred = session(), session(centring=True)
    for length, told in (
        (127, (False, False)),
        (128, (True, False)),
        (255, (True, False)),
        (256, (True, True)),
    ):
        for stream, wanted in zip((plain, centred), told, strict=True):
            feed(stream, keys("plain", length - stream.length))
            assert (stream.stats(quality=True).quality is not None) == wanted
    assert plain.stats().quality is None  # not asked for


def test_a_page_that_undone_tokens_have_begun_anew_does_not_count() -> None:
    stream = feed(session(window=1, reserve=127), keys("plain", 427))
    assert stream.stats(quality=True).quality is not None
    stream.truncate(300)
    assert stream.stats(quality=True).quality is None


def test_keys_without_spread() -> None:
    zero = np.zeros((300, HKV, DIM), np.float32)
    assert quality(feed(session(), zero)) == Quality(0.0, 0, 1.0, 0)
    same = np.broadcast_to(keys("plain", 1), (300, HKV, DIM)).copy()
    assert quality(feed(session(), same)).score_error == 0.0
    # One channel is all that the codes have: of the others nothing is left.
    lost = keys("plain", 300) * np.float32(1e-6)
    lost[..., 7] = np.linspace(1, 2, 300, dtype=np.float32)[:, None]
    with pytest.warns(QualityWarning):
        found = quality(feed(session(), lost))
    assert (found.score_error, found.outlier_ratio) == (1.0, math.inf)


def test_channels_at_the_cap_are_counted() -> None:
    """A page learns from the one before it, whose codes show factors of some hundred: it takes four steps."""
    k = keys("plain", 5 * 128)
    for page, exponent in enumerate((6, 12, 18, 22, 22)):
        k[128 * page : 128 * page + 128, 1, 3] *= 2.0**exponent
    stream = feed(session(centring=True), k[:512])
    assert quality(stream).capped_channels == 0
    feed(stream, k[512:])
    with pytest.warns(QualityWarning, match="1 capped channels"):
        found = quality(stream)
    assert found.capped_channels == 1
    assert found.worrying
    assert 3.0 < found.outlier_ratio < 5.0


def test_a_closed_stream_has_no_quality() -> None:
    stream = feed(session(), keys("plain", 200))
    stream.close()
    assert stream.stats().quality is None
    with pytest.raises(StreamClosed):
        stream.stats(quality=True)
