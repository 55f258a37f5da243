"""Centred keys: stored relative to the page before, decided by stored bytes alone, and worth their bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from comparators import assert_near, assert_same_bits
from oracle import GAUSSIAN, LSE, TIERS

from rondel.decoder import reference
from rondel.decoder.batch import Step, StepResult, run_steps
from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import InvalidSpec
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import LayerGroup, StreamSpec

HQ, HKV = 4, 2
KINDS = ("plain", "mean", "offset", "wide", "constant", "zero", "huge", "tiny")


def keys_of(kind: str, tokens: int, dim: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    rng = np.random.default_rng(seed)
    k = rng.standard_normal((tokens, HKV, dim), np.float32)
    if kind == "mean":
        k += 3 * rng.standard_normal((1, HKV, dim), np.float32)
    elif kind == "offset":
        k[..., : min(4, dim)] += 50
    elif kind == "wide":
        k[..., : min(4, dim)] *= 50
    elif kind == "constant":
        k[:] = k[:1]
    elif kind == "zero":
        k[:] = 0
    elif kind == "huge":
        k *= 1e14
    elif kind == "tiny":
        k *= 1e-30
    return k


def session(tier: str | None, dim: int, **options: Any) -> DecoderSession:
    if "window" not in options:
        options["max_length"] = 1000
    spec = StreamSpec.uniform(
        layers=1, query_heads=HQ, kv_heads=HKV, head_dim=dim, value_dim=8, centring=True, **options
    )
    return DecoderSession(spec, Arena(budget=64 << 20), tier=tier)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dim", [1, 16, 40])
def test_stored_keys_are_those_of_the_reference(tier: str, kind: str, dim: int) -> None:
    k = keys_of(kind, 450, dim)
    v = np.zeros((450, HKV, 8), np.float32)
    for sinks in (0, 5):
        options: dict[str, Any] = {"window": 600, "sinks": sinks} if sinks else {}
        stream = session(tier, dim, **options)
        for start in range(0, 450, 37):
            stream.append(0, k[start : start + 37], v[start : start + 37])
        want = reference.store_centred(k, sinks)
        assert_same_bits(stream.read(0, 0, 450)[0], want.astype(np.float32), f"{tier} {kind} sinks {sinks}")


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("kind", ["plain", "mean", "offset", "wide", "constant", "zero"])
@pytest.mark.parametrize("rows", [1, 19])
def test_attention_over_them(tier: str, kind: str, rows: int) -> None:
    rng = np.random.default_rng(1)
    k, v = keys_of(kind, 700, 40), rng.standard_normal((700, HKV, 8), np.float32)
    q = rng.standard_normal((rows, HQ, 40), np.float32)
    if kind in ("offset", "wide"):
        q[..., :4] /= 50
    stream = session(tier, 40, window=300, sinks=4, reserve=40)
    for start in range(0, 700, 41):
        stream.append(0, k[start : start + 41], v[start : start + 41])
    out, lse = stream.attend(0, q, return_lse=True)
    stored_v = reference.dequantise(*reference.quantise_rows(v))
    want, want_lse = reference.attend(q, reference.store_centred(k, 4), stored_v, window=300, sinks=4)
    assert_near(out, want, 2 * GAUSSIAN["int8"] * float(np.abs(v).max()), f"{tier} {kind}")
    assert_near(lse, want_lse, 4 * LSE["int8"] * np.maximum(1.0, np.abs(want_lse)), "lse")


def test_only_stored_bytes_decide() -> None:
    rng = np.random.default_rng(2)
    k, v = keys_of("mean", 900, 24), rng.standard_normal((900, HKV, 8), np.float32)
    q = rng.standard_normal((900, HQ, 24), np.float32)
    whole, single, undone, batched = (session(None, 24, window=200, sinks=3, reserve=70) for _ in range(4))
    whole_out = []
    for start in range(0, 900, 64):
        part = slice(start, start + 64)
        whole_out.append(whole.step(0, q[part], k[part], v[part]))
    for p in range(900):
        at = slice(p, p + 1)
        out = single.step(0, q[at], k[at], v[at])
        assert_same_bits(out, whole_out[p // 64][p % 64 : p % 64 + 1], f"token {p}")
        (result,) = run_steps([Step(batched, 0, q[at], k[at], v[at])])
        assert isinstance(result, StepResult)
        assert_same_bits(result.out, out, f"batched token {p}")
    for start in range(0, 900, 60):  # every piece a second time, after other tokens were there
        undone.append(0, -k[start : start + 60], v[start : start + 60])
        undone.truncate(start)
        undone.append(0, k[start : start + 60], v[start : start + 60])
    assert_same_bits(undone.read(0, 720, 900)[0], whole.read(0, 720, 900)[0], "keys")
    assert_same_bits(undone.attend(0, q[-5:]), whole.attend(0, q[-5:]), "answers")
    assert whole.matches(0, 850, k[850:], v[850:])
    assert not whole.matches(0, 850, -k[850:], v[850:])


@pytest.mark.parametrize("kind", ["offset", "wide"])
@pytest.mark.parametrize("channels", [1, 2, 4])
@pytest.mark.parametrize("dim", [64, 128])
def test_outlying_channels_take_nothing_from_the_others(kind: str, channels: int, dim: int) -> None:
    def divergence(outliers: bool) -> float:
        total = 0.0
        for seed in range(4):
            rng = np.random.default_rng(seed)
            k = rng.standard_normal((1024 + 128, HKV, dim), np.float32)
            q = rng.standard_normal((8, HQ, dim), np.float32)
            if outliers:
                some = k[..., :channels]
                some[:] = some + 50 if kind == "offset" else some * 50
                q[..., :channels] /= 50
            # The first page knows no mean yet: there outliers do cost what they cost any int8 cache.
            true = reference.weights(q, k[128:])
            kept = reference.weights(q, reference.store_centred(k)[128:])
            ratio = np.log(np.maximum(true, 1e-300) / np.maximum(kept, 1e-300))
            total += float((true * ratio).sum(-1).mean())
        return total

    assert divergence(True) < 2 * divergence(False)


def test_bits_per_value() -> None:
    for dim, most in ((64, 8.5), (128, 8.3)):
        spec = StreamSpec.uniform(
            layers=1, query_heads=8, kv_heads=8, head_dim=dim, centring=True, max_length=128
        )
        with DecoderSession(spec, Arena(budget=64 << 20)) as stream:
            assert stream.stats().bits_per_value <= most


def test_flag_is_a_flag() -> None:
    with pytest.raises(InvalidSpec, match="centring must be True or False, got 1"):
        LayerGroup(layers=(0,), query_heads=1, kv_heads=1, key_dim=4, value_dim=4, centring=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("tier", TIERS)
def test_powers_leave_the_query_its_other_channels(tier: str) -> None:
    """One key's channel 1e30 times the others, in a page that has left the window: powers are bounded."""
    rng = np.random.default_rng(5)
    k = rng.standard_normal((256, HKV, 24), np.float32)
    k[:128] *= 1e-15
    k[:128, :, 0] = 0
    k[7, :, 0] = 1e15
    k[128:, :, 0] = 0
    v = rng.standard_normal((256, HKV, 8), np.float32)
    q = rng.standard_normal((1, HQ, 24), np.float32)
    stream = session(tier, 24, window=128)
    for start in range(0, 256, 128):
        stream.append(0, k[start : start + 128], v[start : start + 128])
    stored_v = reference.dequantise(*reference.quantise_rows(v))
    for most in (1.0, 1e4, 1e15):
        asked = q.copy()
        asked[..., 0] = most
        out, lse = stream.attend(0, asked, return_lse=True)
        assert np.isfinite(out).all(), most
        assert np.isfinite(lse).all(), most
        if most == 1.0:
            want, _ = reference.attend(asked, reference.store_centred(k), stored_v, window=128)
            assert_near(out, want, 2.0**-9 * float(np.abs(v).max()), f"{tier} {most}")
