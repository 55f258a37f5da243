"""OpenVINO's PagedAttention: u8 cache (keys per channel of a block, values per token) and float32.

The node appends the step's own key and value to the cache and attends. The cache is filled block by block,
each as a sequence of its own: the stored bytes are the same and nothing quadratic is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import openvino
from numpy.typing import NDArray
from openvino import PartialShape, Type, op, opset13

from checking import SAME
from peers import Contestant
from shapes import Floats, Problem, Shape

BLOCK: Final = 32
"""Tokens in a block of the CPU plug-in."""

Ints = NDArray[np.int32]


def _model(shape: Shape) -> openvino.Model:
    def parameter(name: str, kind: Type, *dims: int) -> openvino.Node:
        node = opset13.parameter(PartialShape(list(dims)), kind)
        node.set_friendly_name(name)
        return node

    def constant(value: object, kind: type) -> openvino.Node:
        return opset13.constant(np.array(value, kind))

    d, i32, f32 = shape.dim, np.int32, np.float32
    inputs = [
        parameter("q", Type.f32, -1, shape.query_heads * d),
        parameter("k", Type.f32, -1, shape.kv_heads * d),
        parameter("v", Type.f32, -1, shape.kv_heads * d),
        parameter("key_cache", Type.dynamic, -1, shape.kv_heads, -1, -1),
        parameter("value_cache", Type.dynamic, -1, shape.kv_heads, -1, -1),
        *(
            parameter(name, Type.i32, -1)
            for name in ("past_lens", "subsequence_begins", "block_indices", "block_indices_begins")
        ),
        parameter("max_context_len", Type.i32),
    ]
    scale_window_slopes = [constant(d**-0.5, f32), constant(0, i32), constant([], f32)]
    # What the node also takes and this use leaves empty: score aggregation, rotation of evicted blocks,
    # block-sparse prefill, sinks, adaptive rotation and token types.
    unused = [
        constant(0, i32), constant([], i32), constant([], i32), constant([], f32), constant([], f32),
        constant(64, i32), constant(8, i32), constant([], f32), constant(0, i32), constant([], i32),
        constant([], i32), constant([], i32), constant([], i32), constant([], np.uint8), constant([], i32),
    ]  # fmt: skip
    nodes = [*inputs[:-1], *scale_window_slopes, inputs[-1], *unused]
    paged = op._PagedAttentionExtension([node.output(0) for node in nodes])
    info = paged.get_rt_info()
    info["k_head_size"] = info["v_head_size"] = d
    info["num_k_heads"] = info["num_v_heads"] = shape.kv_heads
    return openvino.Model([paged.output(0)], inputs, "paged_attention")


class Paged:
    """One cache precision."""

    tolerance = SAME

    def __init__(self, precision: str) -> None:
        self.name = f"openvino {'float32' if precision == 'f32' else precision}"
        self._precision = precision

    def prepare(self, problem: Problem, threads: int) -> None:
        shape, self._problem = problem.shape, problem
        options = {
            "INFERENCE_NUM_THREADS": threads,
            "KV_CACHE_PRECISION": self._precision,
            "INFERENCE_PRECISION_HINT": "f32",
        }
        compiled = openvino.Core().compile_model(_model(shape), "CPU", options)
        self._request = compiled.create_infer_request()
        self._blocks = -(-shape.keys // BLOCK)
        self._caches = []
        for index in (3, 4):
            dims = [size.get_length() for size in list(compiled.inputs[index].partial_shape)[1:]]
            cache = openvino.Tensor(
                compiled.inputs[index].element_type, openvino.Shape([self._blocks, *dims])
            )
            self._caches.append(cache)
            self._request.set_tensor(compiled.inputs[index], cache)
        self._inputs = compiled.inputs
        last = shape.keys - 1
        for start in range(0, last, BLOCK):
            tokens = slice(start, min(last, start + BLOCK))
            self._feed(tokens, np.repeat(problem.q, tokens.stop - start, axis=0), 0, [start // BLOCK])
            self._request.infer()
        self._feed(slice(last, shape.keys), problem.q, last, range(self._blocks))

    def _feed(self, tokens: slice, q: Floats, past: int, blocks: Sequence[int]) -> None:
        """Set every input but the caches: ``tokens`` that follow ``past`` others, in these blocks."""
        for index, x in enumerate((q, self._problem.k[tokens], self._problem.v[tokens])):
            self._set(index, x.reshape(len(x), -1))
        numbers = ([past], [0, len(q)], list(blocks), [0, len(blocks)], past + len(q))
        for index, value in enumerate(numbers, start=5):
            self._set(index, np.array(value, np.int32))

    def _set(self, index: int, x: Floats | Ints) -> None:
        self._request.set_tensor(self._inputs[index], openvino.Tensor(x.copy(order="C")))

    def run(self) -> object:
        self._request.infer()
        return None

    def answer(self) -> Floats:
        out: Floats = np.array(self._request.get_output_tensor(0).data).reshape(self._problem.q.shape)
        return out

    def computed_from(self) -> Problem:
        if self._precision == "f32":
            return self._problem
        shape = self._problem.shape
        keys, values = (np.array(cache.data) for cache in self._caches)
        # Keys: one scale and zero point per channel and block, in rows before the codes (u8 [32, D]).
        head = np.ascontiguousarray(keys[:, :, :-BLOCK]).view(np.float32)
        scale, zero = np.split(head.reshape(*keys.shape[:2], 2, shape.dim), 2, axis=2)
        k = (keys[:, :, -BLOCK:] - zero) * scale
        # Values: one scale and zero point per token, before its codes.
        head = np.ascontiguousarray(values[..., : -shape.dim]).view(np.float32)
        v = (values[..., -shape.dim :] - head[..., 1:]) * head[..., :1]
        flat = (x.transpose(0, 2, 1, 3).reshape(-1, shape.kv_heads, shape.dim)[: shape.keys] for x in (k, v))
        return Problem(shape, self._problem.q, *flat)

    def close(self) -> None:
        del self._problem, self._request, self._caches, self._inputs


def contestants() -> list[Contestant]:
    """Fresh contestants."""
    return [Paged("u8"), Paged("f32")]
