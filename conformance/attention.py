"""The ONNX operator Attention, computed by decoder sessions: float32 storage, one session per batch entry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from cases import Array, Case
from entries import Entry, Floats, entries, heads_last
from rondel.decoder.cache.arena import Arena
from rondel.decoder.options import AttendOptions
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import LayerGroup, StreamSpec

STAGES: Final = ("raw", "capped", "masked", "weights")
"""What ``qk_matmul_output_mode`` 0 to 3 shows, as explain calls it."""
UNSEEN: Final = (0.0, 0.0, -np.inf, 0.0)
"""What that stage holds for a key beyond every row's sight, where explain has no column."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The outputs that a case asks for, in its shapes and dtype, and how its rows' sight was said."""

    outputs: dict[str, Array]
    sight: str


def attention(case: Case, arena: Arena) -> Answer:
    """Compute a case. Raises Inexpressible, and what sessions raise."""
    streams = entries(case)
    answers = [_answer(case, entry, arena) for entry in streams]
    outputs = {
        name: np.stack([answer[name] for answer in answers]).astype(case.inputs["Q"].dtype)
        for name in case.outputs
    }
    if case.inputs["Q"].ndim == 4:
        outputs["Y"] = outputs["Y"].swapaxes(1, 2)
    else:
        outputs["Y"] = outputs["Y"].reshape(*outputs["Y"].shape[:2], -1)
    return Answer(outputs, "/".join(dict.fromkeys(entry.sight.name for entry in streams)))


def _answer(case: Case, entry: Entry, arena: Arena) -> dict[str, Array]:
    """Everything that one stream can answer of what the case wants."""
    attributes, seen = case.attributes, entry.sight
    options = AttendOptions(
        scale=attributes.scale,
        softcap=attributes.softcap if attributes.softcap > 0 else None,
        bias=entry.bias,
        mask=entry.mask,
        ranges=entry.ranges,
    )
    with DecoderSession(_spec(entry), arena) as session:
        for k, v in entry.chunks:
            session.append(0, k, v)
        answer: dict[str, Array] = {
            "Y": session.attend(0, entry.q, position=seen.position, options=options),
        }
        k, v = session.read(0, 0, entry.total)
        answer |= {"present_key": heads_last(k), "present_value": heads_last(v)}
        if "qk_matmul_output" in case.outputs:
            explained = session.explain(0, entry.q, position=seen.position, options=options)
            mode = attributes.qk_matmul_output_mode
            shown: Floats = getattr(explained, STAGES[mode])
            product = np.full((*shown.shape[:2], entry.total), UNSEEN[mode], np.float32)
            product[:, :, explained.key_positions] = shown
            answer["qk_matmul_output"] = product
    return answer


def _spec(entry: Entry) -> StreamSpec:
    k, v = entry.chunks[0]
    seen, total = entry.sight, entry.total
    group = LayerGroup(
        layers=(0,),
        query_heads=entry.q.shape[1],
        kv_heads=k.shape[1],
        key_dim=k.shape[2],
        value_dim=v.shape[2],
        window=seen.window,
        # The first row's window must still be whole when all keys are stored.
        reserve=0 if seen.window is None else total,
        storage="float32",
        causal=seen.causal,
        window_right=seen.window_right,
    )
    return StreamSpec(groups=(group,), max_length=total)
