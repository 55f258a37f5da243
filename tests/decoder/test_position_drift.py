"""However far along a stream is, the same words in its window give the same answer.

Nobody appends a thousand million tokens in a test, so a session is told that it has: after its sinks its
lengths are set and its rings filled with pages, as if everything up to there had come and gone. What the
window then holds comes by the public calls, and it holds nothing else. At 1,000 tokens a session that was fed
them all has the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import turning
from comparators import TINY, assert_near, assert_same_bits
from oracle import ENGINES, GAUSSIAN, LSE, TIERS, Floats, gaussian

from rondel.decoder import reference
from rondel.decoder.cache.arena import Arena
from rondel.decoder.options import AttendOptions
from rondel.decoder.rope import Rope
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec

S, W, RING = 4, 60, 256
FAR = [10**3, 10**5, 10**7, 10**9]
TOKENS, ROWS = 150, 8
ROPE = Rope(dim=16)
DRIFT = {"int8": 0.005, "float32": 1e-6}
"""How far an answer may lie from that of exact keys at exact distances, as a fraction of the largest |v|.

int8: what the codes of keys and values take, at any position. float32: as near as to the stored keys,
although the fastest pair's angle is 1e-7 off at 1e9.
"""
SLOPES = np.array([0.5, 0.25, 0.03, 0.001], np.float32)


@dataclass
class Content:
    """Sinks, and what the window and some more hold: k [n, 2, 16], v [n, 2, 24], q [ROWS, 4, 16]."""

    k_sinks: Floats
    v_sinks: Floats
    k: Floats
    v: Floats
    q: Floats

    @classmethod
    def drawn(cls, seed: int) -> Content:
        rng = np.random.default_rng(seed)
        return cls(
            gaussian(rng, S, 2, 16),
            gaussian(rng, S, 2, 24),
            gaussian(rng, TOKENS, 2, 16),
            gaussian(rng, TOKENS, 2, 24),
            gaussian(rng, ROWS, 4, 16),
        )


def opened(tier: str, storage: str, rope: Rope | None) -> DecoderSession:
    spec = StreamSpec.uniform(
        layers=1, query_heads=4, kv_heads=2, head_dim=16, value_dim=24, window=W, sinks=S, reserve=ROWS,
        storage=storage, rope=rope,
    )  # fmt: skip
    return DecoderSession(spec, Arena(budget=8 << 20), tier=tier)


def skip_to(session: DecoderSession, position: int) -> None:
    """Have the session believe that all tokens below ``position`` have come."""
    extent = session._extent
    assert extent.length <= position
    for rings in session._rings:
        rings.grow(position, session._pages)
    for layer in range(session.spec.layers):
        extent.claim(layer, position)
        extent.advance(layer, position)
    assert session.length == session.layer_length(0) == session.high_water == position


def filled(session: DecoderSession, content: Content, end: int) -> DecoderSession:
    """The content, its last token at ``end`` - 1."""
    session.append(0, content.k_sinks, content.v_sinks)
    skip_to(session, end - TOKENS)
    for part in session.chunks(TOKENS):
        session.append(0, content.k[part], content.v[part])
    assert session.length == end
    return session


def turned(x: Floats, positions: list[int]) -> Any:
    return turning.turn(x, positions, ROPE.frequencies())


def answer(content: Content, at: list[int], storage: str | None, rope: bool) -> tuple[Any, Any, float]:
    """out, lse and the largest |v| in float64, with the content's last tokens at positions ``at``.

    With a storage type its keys and values are what that keeps; None = they are exact.
    """
    here, rows, sinks = at[-TOKENS:], at[-ROWS:], list(range(S))
    k_near, k_far = (turned(content.k, here), turned(content.k_sinks, sinks)) if rope else (
        content.k.astype(np.float64), content.k_sinks.astype(np.float64))  # fmt: skip
    keys, values = np.concatenate([k_far, k_near]), np.concatenate([content.v_sinks, content.v])
    if storage == "int8":
        keys, values = (
            reference.dequantise(*reference.quantise_rows(x.astype(np.float32))) for x in (keys, values)
        )
    if rope:
        near = reference.scores(turned(content.q, rows), keys)
        far = reference.scores(turned(content.q, [min(p, S + W - 1) for p in rows]), keys)
    else:
        near = far = reference.scores(content.q, keys)
    scores = np.where(np.arange(len(keys)) < S, far, near)
    seen = reference.visible(rows, [*sinks, *here], W, S)
    weights, lse = reference.softmax(np.where(seen[None], scores, -np.inf))
    out = np.einsum("hnm,mhd->nhd", weights, np.repeat(values, 2, axis=1))
    return out, lse.T, float(np.abs(content.v).max())


def check(session: DecoderSession, content: Content, storage: str, rope: bool, name: str) -> Floats:
    """Attend with the last rows; compare with what the stored bytes say here and exact keys at the start."""
    out, lse = session.attend(0, content.q, return_lse=True)
    end = session.length
    want, want_lse, largest = answer(content, list(range(end - TOKENS, end)), storage, rope)
    assert_near(out, want, GAUSSIAN[storage] * largest + TINY, f"{name}: out")
    assert_near(lse, want_lse, LSE[storage] * np.maximum(1.0, np.abs(want_lse)), f"{name}: lse")
    # As if the stream had only these tokens, right behind sinks that their windows have left.
    exact, _, _ = answer(content, list(range(S + W, S + W + TOKENS)), None, rope)
    assert_near(out, exact, DRIFT[storage] * largest, f"{name}: beside the same words at the start")
    return np.asarray(out)


@pytest.mark.parametrize("rope", [None, ROPE], ids=["without rope", "rope"])
@pytest.mark.parametrize(("tier", "storage"), ENGINES)
def test_the_same_words_give_the_same_answer_however_far(tier: str, storage: str, rope: Rope | None) -> None:
    content = Content.drawn(21)
    first: Floats | None = None
    for far in FAR:
        session = filled(opened(tier, storage, rope), content, far + 1)
        out = check(session, content, storage, rope is not None, f"{tier} {storage} at {far}")
        first = out if first is None else first
        # Codes of turned keys are others at every position; float32 has none.
        largest = float(np.abs(content.v).max())
        assert_near(out, first.astype(np.float64), DRIFT[storage] * largest, f"{far} beside {FAR[0]}")


@pytest.mark.parametrize(("tier", "storage"), ENGINES)
def test_without_a_rope_it_is_the_same_to_the_bit_in_the_same_slots(tier: str, storage: str) -> None:
    content = Content.drawn(22)
    ends = [S + (far - S) // RING * RING + 77 for far in FAR]
    outs = [filled(opened(tier, storage, None), content, end).attend(0, content.q) for end in ends]
    for far, out in zip(FAR, outs, strict=True):
        assert_same_bits(out, outs[0], f"{tier} {storage} about {far}")


@pytest.mark.parametrize("rope", [None, ROPE], ids=["without rope", "rope"])
@pytest.mark.parametrize("storage", ["int8", "float32"])
def test_a_stream_that_was_fed_everything_has_the_same_bits(storage: str, rope: Rope | None) -> None:
    content, rng = Content.drawn(23), np.random.default_rng(24)
    jumped = filled(opened(TIERS[-1], storage, rope), content, FAR[0] + 1)
    fed = opened(TIERS[-1], storage, rope)
    fed.append(0, content.k_sinks, content.v_sinks)
    between = FAR[0] + 1 - TOKENS - S
    fed.append(0, gaussian(rng, between, 2, 16), gaussian(rng, between, 2, 24))
    fed.append(0, content.k, content.v)
    for ours, theirs in zip(
        fed.attend(0, content.q, return_lse=True), jumped.attend(0, content.q, return_lse=True), strict=True
    ):
        assert_same_bits(ours, theirs, "fed and jumped")


@pytest.mark.parametrize(("tier", "storage"), ENGINES)
def test_distances_of_alibi_do_not_lose_digits(tier: str, storage: str) -> None:
    """j - p is taken before it becomes a float: at 1e9 float32 positions are 64 apart."""
    content, options = Content.drawn(25), AttendOptions(alibi=SLOPES)
    for far in FAR:
        end = far + 1
        session = filled(opened(tier, storage, None), content, end)
        at = np.concatenate([np.arange(S), np.arange(end - TOKENS, end)])
        keys, values = (
            np.concatenate(both) for both in ((content.k_sinks, content.k), (content.v_sinks, content.v))
        )
        if storage == "int8":
            keys, values = (
                reference.dequantise(*reference.quantise_rows(x)).astype(np.float32) for x in (keys, values)
            )
        want, _ = reference.attend(
            content.q, keys, values, position=end - ROWS, key_positions=at, window=W, sinks=S, alibi=SLOPES
        )
        out = session.attend(0, content.q, options=options)
        assert_near(out, want, GAUSSIAN[storage] * float(np.abs(values).max()), f"{tier} {storage} at {far}")
