"""Random calls of the operator, as cases: what the suite has, and combinations that it has not."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from cases import OUTPUTS, Attributes, Case


@st.composite
def calls(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """(inputs, attributes): shapes, layouts, caches, masks, windows, softcap and stages of the product."""
    batch, kv_heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    rows, keys, past = draw(st.integers(1, 5)), draw(st.integers(1, 6)), draw(st.sampled_from([0, 0, 3]))
    dim, value_dim = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))

    def tensor(*shape: int) -> Any:
        return rng.normal(size=shape).astype(np.float32)

    inputs = {
        "Q": tensor(batch, kv_heads * group, rows, dim),
        "K": tensor(batch, kv_heads, keys, dim),
        "V": tensor(batch, kv_heads, keys, value_dim),
    }
    attributes: dict[str, Any] = {
        "is_causal": draw(st.integers(0, 1)),
        "left_window_size": draw(st.sampled_from([-1, 0, 2])),
        "right_window_size": draw(st.sampled_from([-1, 0, 1])),
        "softcap": draw(st.sampled_from([0.0, 0.7])),
        "scale": draw(st.sampled_from([None, 0.3])),
        "qk_matmul_output_mode": draw(st.integers(0, 3)),
    }
    if draw(st.booleans()):
        for name in "QKV":
            inputs[name] = inputs[name].swapaxes(1, 2).reshape(batch, -1, inputs[name][0, :, 0].size)
        attributes |= {"q_num_heads": kv_heads * group, "kv_num_heads": kv_heads}
    if past:
        inputs["past_key"] = tensor(batch, kv_heads, past, dim)
        inputs["past_value"] = tensor(batch, kv_heads, past, value_dim)
    elif draw(st.booleans()):
        inputs["nonpad_kv_seqlen"] = rng.integers(0, keys + 1, batch)
    if draw(st.booleans()):
        inputs["attn_mask"] = _mask(draw, rng, (batch, kv_heads * group, rows), past + keys)
    return inputs, attributes


def _mask(draw: st.DrawFn, rng: np.random.Generator, axes: tuple[int, ...], columns: int) -> Any:
    """A mask of any rank, each axis there or to be broadcast, its last axis perhaps too short."""
    leading = tuple(size if draw(st.booleans()) else 1 for size in axes)[draw(st.integers(0, 3)) :]
    shape = (*leading, draw(st.integers(1, columns)))
    if draw(st.booleans()):
        return rng.random(shape) < 0.7
    return np.where(rng.random(shape) < 0.2, -np.inf, rng.normal(size=shape)).astype(np.float32)


def case_of(inputs: dict[str, Any], attributes: dict[str, Any], wanted: dict[str, Any], **rest: Any) -> Case:
    """A case with every output, in the dtype of Q."""
    outputs = {name: wanted[name].astype(inputs["Q"].dtype) for name in OUTPUTS}
    return Case(
        name="drawn", opset=25, attributes=Attributes(**attributes), inputs=inputs, outputs=outputs, **rest
    )
