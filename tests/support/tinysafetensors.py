"""Writes safetensors files, and the projections of small made-up models into them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rondel.decoder.projection import Projection, Projections
from rondel.decoder.spec import StreamSpec
from rondel.v1 import tensor_pb2
from rondel.v1.wire import to_tensor

_DTYPES = {
    "F32": tensor_pb2.DTYPE_FLOAT32,
    "F16": tensor_pb2.DTYPE_FLOAT16,
    "BF16": tensor_pb2.DTYPE_BFLOAT16,
}


def write(path: Path, arrays: Mapping[str, NDArray[np.float32]], dtype: str = "F32") -> Path:
    """The arrays in a file, all as one of F32, F16, BF16."""
    header, data = {}, b""
    for name, array in arrays.items():
        raw = to_tensor(array, dtype=_DTYPES[dtype]).data
        header[name] = {
            "dtype": dtype,
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def draw(spec: StreamSpec, d_model: int, *, biases: bool = False, seed: int = 0) -> Projections:
    """Random projections for all layers; what they make of Gaussian embeddings is Gaussian."""
    rng = np.random.default_rng(seed)
    layers = {}
    for layer in range(spec.layers):
        group = spec.group(layer)
        widths = (
            group.query_heads * group.key_dim,
            group.kv_heads * group.key_dim,
            group.kv_heads * group.value_dim,
        )
        weights = [rng.standard_normal((d_model, n), np.float32) / np.float32(d_model**0.5) for n in widths]
        some = [rng.standard_normal(n, np.float32) for n in widths] if biases else []
        layers[layer] = Projection(*weights, *some)
    return Projections(layers)


def save(path: Path, projections: Projections, dtype: str = "F32", *, transposed: bool = False) -> Path:
    """Projections as Hugging Face names them and, unless ``transposed``, lays them out."""
    arrays = {"model.embed_tokens.weight": np.zeros((3, 2), np.float32)}
    for layer, projection in projections.layers.items():
        for part in "qkv":
            name = f"model.layers.{layer}.self_attn.{part}_proj"
            weight = getattr(projection, f"w_{part}")
            arrays[f"{name}.weight"] = weight if transposed else np.ascontiguousarray(weight.T)
            bias = getattr(projection, f"b_{part}")
            if bias is not None:
                arrays[f"{name}.bias"] = bias
    return write(path, arrays, dtype)
