"""A model's weights: every tensor checked against the metadata, dequantised once, laid out for products.

Matrices are [out, in], so that a row of activations times the transpose reads each row in order.
Matrices that multiply the same input lie under each other and are one product.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rondel.decoder.errors import BudgetExceeded, UnsupportedModel
from rondel.decoder.lm.config import ROPE_FACTORS, ModelConfig
from rondel.decoder.lm.gguf_file import GgufFile

Array = NDArray[np.float32]
Progress = Callable[[int, int], None]
"""Called as ``progress(done, total)`` with the numbers of layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One transformer block, float32."""

    attention_norm: Array  # [d_model]
    qkv: Array  # [Hq*Dk + Hkv*Dk + Hkv*Dv, d_model]
    attention_output: Array  # [d_model, Hq*Dv]
    ffn_norm: Array  # [d_model]
    gate_up: Array  # [2*ffn_dim, d_model]
    down: Array  # [d_model, ffn_dim]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A whole model, float32."""

    embedding: Array  # [vocab, d_model]
    layers: tuple[LayerWeights, ...]
    output_norm: Array  # [d_model]
    output: Array  # [vocab, d_model]; the same array as embedding when the two are tied

    @classmethod
    def read(cls, file: GgufFile, config: ModelConfig, *, progress: Progress | None = None) -> Weights:
        """Dequantise all tensors of a file.

        Raises:
            CorruptModel: a tensor is missing, has another shape, or is not finite.
            UnsupportedModel: a tensor has no place in this architecture, or a type that is not implemented.
            BudgetExceeded: the weights are larger than this machine's memory.
        """
        shapes = dict(_shapes(config))
        for name, shape in shapes.items():
            file.check(name, shape)
        strange = sorted(file.tensor_names - {*shapes, ROPE_FACTORS})
        if strange:
            # A bias or an expert that is left out gives fluent nonsense.
            raise UnsupportedModel(f"{file.path}: tensor {strange[0]!r} is not part of a plain llama model")
        _check_memory(shapes)

        def get(name: str) -> Array:
            return file.tensor(name, shapes[name])

        layers = []
        for number in range(config.layers):
            if progress is not None:
                progress(number, config.layers)
            layers.append(_layer(get, f"blk.{number}"))
        embedding = get("token_embd.weight")
        weights = cls(
            embedding=embedding,
            layers=tuple(layers),
            output_norm=get("output_norm.weight"),
            output=embedding if config.tied_output else get("output.weight"),
        )
        if progress is not None:
            progress(config.layers, config.layers)
        return weights


def _shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The name and C-order shape of every tensor that such a model has."""
    d, f = config.d_model, config.ffn_dim
    yield "token_embd.weight", (config.vocab, d)
    yield "output_norm.weight", (d,)
    if not config.tied_output:
        yield "output.weight", (config.vocab, d)
    for number in range(config.layers):
        block = f"blk.{number}"
        yield f"{block}.attn_norm.weight", (d,)
        yield f"{block}.attn_q.weight", (config.query_heads * config.head_dim, d)
        yield f"{block}.attn_k.weight", (config.kv_heads * config.head_dim, d)
        yield f"{block}.attn_v.weight", (config.kv_heads * config.value_dim, d)
        yield f"{block}.attn_output.weight", (d, config.query_heads * config.value_dim)
        yield f"{block}.ffn_norm.weight", (d,)
        yield f"{block}.ffn_gate.weight", (f, d)
        yield f"{block}.ffn_up.weight", (f, d)
        yield f"{block}.ffn_down.weight", (d, f)


def _layer(get: Callable[[str], Array], block: str) -> LayerWeights:
    return LayerWeights(
        attention_norm=get(f"{block}.attn_norm.weight"),
        qkv=np.concatenate([get(f"{block}.attn_{which}.weight") for which in "qkv"]),
        attention_output=get(f"{block}.attn_output.weight"),
        ffn_norm=get(f"{block}.ffn_norm.weight"),
        gate_up=np.concatenate([get(f"{block}.ffn_{which}.weight") for which in ("gate", "up")]),
        down=get(f"{block}.ffn_down.weight"),
    )


def _check_memory(shapes: dict[str, tuple[int, ...]]) -> None:
    requested = sum(int(np.prod(shape)) for shape in shapes.values()) * np.dtype(np.float32).itemsize
    available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if requested > available:
        raise BudgetExceeded(
            f"the weights take {requested} bytes as float32, this machine has {available}",
            requested=requested,
            available=available,
        )
