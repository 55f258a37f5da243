"""The ONNX operator Attention in float64 loops over rows and keys, by the text of its specification.

One call per (batch entry, query head, row); nothing in common with decoder/reference or the tool.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def operator(inputs: Mapping[str, Any], **attributes: Any) -> dict[str, Any]:
    """All four outputs, float64. Inputs under the operator's names; 4-D or 3-D Q, K, V."""
    q, k, v = (_split(inputs[x], attributes.get(f"{x_heads}_num_heads")) for x, x_heads in _HEADS)
    past = inputs["past_key"].shape[2] if "past_key" in inputs else 0
    if past:
        k = np.concatenate([inputs["past_key"], k], axis=2)
        v = np.concatenate([inputs["past_value"], v], axis=2)
    batch, heads, rows, dim = q.shape
    scale = attributes.get("scale") or 1 / math.sqrt(dim)
    y = np.zeros((batch, heads, rows, v.shape[3]))
    product = np.zeros((batch, heads, rows, k.shape[2]))
    for b, h, n in np.ndindex(batch, heads, rows):
        valid = int(inputs["nonpad_kv_seqlen"][b]) if "nonpad_kv_seqlen" in inputs else k.shape[2]
        at = n + (valid - rows if "nonpad_kv_seqlen" in inputs else past)
        shared = h // (heads // k.shape[1])
        raw = [float(q[b, h, n] @ key) * scale for key in k[b, shared]]
        cap = attributes.get("softcap", 0.0)
        capped = [cap * math.tanh(s / cap) if cap else s for s in raw]
        bias = [_bias(inputs.get("attn_mask"), b, h, n, j, at, valid, attributes) for j in range(len(raw))]
        masked = [s + extra for s, extra in zip(capped, bias, strict=True)]
        top = max(masked)
        weights = [0.0 if top == -math.inf else math.exp(s - top) for s in masked]
        total = sum(weights) or 1.0  # a row that sees nothing has zeros
        weights = [w / total for w in weights]
        y[b, h, n] = sum(w * value for w, value in zip(weights, v[b, shared], strict=True))
        product[b, h, n] = (raw, capped, masked, weights)[attributes.get("qk_matmul_output_mode", 0)]
    if inputs["Q"].ndim == 3:
        y = y.swapaxes(1, 2).reshape(batch, rows, -1)
    return {"Y": y, "present_key": k, "present_value": v, "qk_matmul_output": product}


_HEADS = (("Q", "q"), ("K", "kv"), ("V", "kv"))


def _split(x: Any, heads: int | None) -> Any:
    x = x.astype(np.float64)
    return x if x.ndim == 4 else x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def _bias(
    mask: Any, b: int, h: int, n: int, j: int, at: int, valid: int, attributes: Mapping[str, Any]
) -> float:
    """What is added to the score of key j for the row n, which stands at ``at``."""
    left, right = attributes.get("left_window_size", -1), attributes.get("right_window_size", -1)
    hidden = j >= valid or (attributes.get("is_causal", 0) and j > at)
    hidden = hidden or (left >= 0 and j < at - left) or (right >= 0 and j > at + right)
    if hidden or (mask is not None and j >= mask.shape[-1]):
        return -math.inf
    if mask is None:
        return 0.0
    full = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    cell = full[tuple(i if size > 1 else 0 for i, size in zip((b, h, n), full.shape[:3], strict=True))][j]
    if mask.dtype == np.bool_:
        return 0.0 if cell else -math.inf
    return float(cell)
