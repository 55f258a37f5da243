"""Writes GGUF files of a llama-family model of a few kilobytes, whole or broken in a chosen way.

For the tests of every room: ``pythonpath`` in pyproject.toml puts this folder on the path.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

LAYERS, D_MODEL, HEADS, KV_HEADS, HEAD_DIM, VALUE_DIM, FFN, CONTEXT = 2, 64, 4, 2, 16, 16, 96, 300
NORMAL, CONTROL, USER = 1, 3, 4

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_alphabet() -> list[str]:
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


TOKENS = [*byte_alphabet(), "th", "the", "Ġthe", "<|im_start|>", "<|im_end|>", "<think>"]
TYPES = [NORMAL] * 259 + [CONTROL, CONTROL, USER]
START, END, THINK = 259, 260, 261


def metadata() -> dict[str, object]:
    return {
        "general.name": "tiny",
        "llama.context_length": CONTEXT,
        "llama.embedding_length": D_MODEL,
        "llama.block_count": LAYERS,
        "llama.feed_forward_length": FFN,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": TYPES,
        "tokenizer.ggml.merges": ["t h", "th e", "Ġ the"],
        "tokenizer.ggml.bos_token_id": START,
        "tokenizer.ggml.eos_token_id": END,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }


def tensors(
    *, seed: int = 1, key_dim: int = HEAD_DIM, value_dim: int = VALUE_DIM, tied: bool = False
) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    shapes = {"token_embd.weight": (len(TOKENS), D_MODEL), "output_norm.weight": (D_MODEL,)}
    if not tied:
        shapes["output.weight"] = (len(TOKENS), D_MODEL)
    for n in range(LAYERS):
        shapes |= {
            f"blk.{n}.attn_norm.weight": (D_MODEL,),
            f"blk.{n}.attn_q.weight": (HEADS * key_dim, D_MODEL),
            f"blk.{n}.attn_k.weight": (KV_HEADS * key_dim, D_MODEL),
            f"blk.{n}.attn_v.weight": (KV_HEADS * value_dim, D_MODEL),
            f"blk.{n}.attn_output.weight": (D_MODEL, HEADS * value_dim),
            f"blk.{n}.ffn_norm.weight": (D_MODEL,),
            f"blk.{n}.ffn_gate.weight": (FFN, D_MODEL),
            f"blk.{n}.ffn_up.weight": (FFN, D_MODEL),
            f"blk.{n}.ffn_down.weight": (D_MODEL, FFN),
        }
    return {name: rng.normal(0.0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}


def write(
    path: Path,
    *,
    architecture: str = "llama",
    context: int = CONTEXT,
    changes: Mapping[str, object] | None = None,
    weights: Mapping[str, NDArray[np.float32]] | None = None,
    stored: str = "F32",
) -> Path:
    """Write a file. A change to None leaves that metadata key out. ``stored`` is the type of matrices."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (metadata() | {"llama.context_length": context} | dict(changes or {})).items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
    for name, weight in (tensors() if weights is None else weights).items():
        kind = gguf.GGMLQuantizationType[stored if weight.ndim == 2 else "F32"]
        writer.add_tensor(name, gguf.quantize(weight, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
