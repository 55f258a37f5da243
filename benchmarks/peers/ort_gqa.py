"""ONNX Runtime's GroupQueryAttention: float32 cache, and int8 with one scale per tensor.

The node appends the step's own key and value to the cache and attends; the cache is bound as input and
output, so it is updated in place.
"""

from __future__ import annotations

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper

from checking import SAME
from peers import Contestant
from shapes import Floats, Problem, Shape


def _model(shape: Shape, *, int8: bool) -> bytes:
    heads, cache = shape.query_heads * shape.dim, [1, shape.kv_heads, shape.keys, shape.dim]
    new, stored = [1, 1, shape.kv_heads * shape.dim], TensorProto.INT8 if int8 else TensorProto.FLOAT
    value = helper.make_tensor_value_info
    inputs = [
        value("q", TensorProto.FLOAT, [1, 1, heads]),
        value("k", TensorProto.FLOAT, new),
        value("v", TensorProto.FLOAT, new),
        value("past_k", stored, cache),
        value("past_v", stored, cache),
        value("past_length", TensorProto.INT32, [1]),
        value("total_length", TensorProto.INT32, [1]),
    ]
    outputs = [value("out", TensorProto.FLOAT, [1, 1, heads])]
    outputs += [value("new_k", stored, cache), value("new_v", stored, cache)]
    names = [item.name for item in inputs]
    attributes: dict[str, object] = {"num_heads": shape.query_heads, "kv_num_heads": shape.kv_heads}
    if int8:
        inputs += [value("scale_k", TensorProto.FLOAT, [1]), value("scale_v", TensorProto.FLOAT, [1])]
        names += [""] * 5 + ["scale_k", "scale_v"]  # the optional inputs between: rotary caches, positions …
        attributes |= {"k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR", "kv_cache_bit_width": 8}
    node = helper.make_node(
        "GroupQueryAttention", names, ["out", "new_k", "new_v"], domain="com.microsoft", **attributes
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "g", inputs, outputs), opset_imports=opsets)
    model.ir_version = 8
    data: bytes = model.SerializeToString()
    return data


class Gqa:
    """One cache type."""

    def __init__(self, *, int8: bool) -> None:
        self.name = "onnxruntime int8" if int8 else "onnxruntime float32"
        self.tolerance = SAME
        self._int8 = int8

    def prepare(self, problem: Problem, threads: int) -> None:
        shape, self._problem = problem.shape, problem
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        self._session = onnxruntime.InferenceSession(
            _model(shape, int8=self._int8), options, providers=["CPUExecutionProvider"]
        )
        self._binding = binding = self._session.io_binding()
        for name, x in (("q", problem.q), ("k", problem.k[-1:]), ("v", problem.v[-1:])):
            binding.bind_cpu_input(name, np.ascontiguousarray(x.reshape(1, 1, -1)))
        binding.bind_cpu_input("past_length", np.array([shape.keys - 1], np.int32))
        binding.bind_cpu_input("total_length", np.array([shape.keys], np.int32))
        binding.bind_output("out")
        self._scales: dict[str, float] = {}
        self._caches = {"k": self._cache("k", problem.k), "v": self._cache("v", problem.v)}
        for name, cache in self._caches.items():
            binding.bind_ortvalue_input(f"past_{name}", cache)
            binding.bind_ortvalue_output(f"new_{name}", cache)

    def _cache(self, name: str, x: Floats) -> onnxruntime.OrtValue:
        stored: NDArray[np.generic] = x.transpose(1, 0, 2)[None]
        if self._int8:
            self._scales[name] = scale = float(np.abs(x).max()) / 127
            self._binding.bind_cpu_input(f"scale_{name}", np.array([scale], np.float32))
            stored = np.rint(x.transpose(1, 0, 2)[None] / scale).astype(np.int8)
        return onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(stored))

    def run(self) -> object:
        self._session.run_with_iobinding(self._binding)
        return None

    def answer(self) -> Floats:
        out: Floats = self._binding.get_outputs()[0].numpy().reshape(self._problem.q.shape)
        return out

    def computed_from(self) -> Problem:
        if not self._int8:
            return self._problem
        if not hasattr(self, "_rounded"):
            k, v = (
                np.ascontiguousarray(self._caches[name].numpy()[0].transpose(1, 0, 2) * np.float32(scale))
                for name, scale in self._scales.items()
            )
            self._rounded = Problem(self._problem.shape, self._problem.q, k, v)
        return self._rounded

    def close(self) -> None:
        del self._problem, self._session, self._binding, self._caches


def contestants() -> list[Contestant]:
    """Fresh contestants."""
    return [Gqa(int8=False), Gqa(int8=True)]
