"""The shape of a llama-family model, read from the file's metadata.

A key that changes the arithmetic and is not understood here refuses the file: a model run with half
of its settings answers, and answers wrongly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from rondel.decoder.errors import CorruptModel, InvalidSpec, UnsupportedModel
from rondel.decoder.lm.gguf_file import GgufFile
from rondel.decoder.rope import Rope
from rondel.decoder.rope_scaling import DivisorScaling, LinearScaling, Scaling, YarnScaling
from rondel.decoder.spec import MAX_DIM, MAX_HEADS, MAX_LAYERS

ARCHITECTURE: Final = "llama"
ROPE_FACTORS: Final = "rope_freqs.weight"
"""A tensor [rope dim / 2] of divisors of the frequencies (Llama 3); most files have none."""

_READ: Final = frozenset(
    {
        "block_count",
        "embedding_length",
        "feed_forward_length",
        "context_length",
        "vocab_size",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.layer_norm_rms_epsilon",
        "rope.dimension_count",
        "rope.freq_base",
        "rope.scaling.type",
        "rope.scaling.factor",
        "rope.scaling.original_context_length",
    }
)
_HARMLESS: Final = frozenset({"tensor_data_layout", "rope.scaling.finetuned"})
_ONLY: Final[dict[str, bool | int | float]] = {
    "attention.causal": True,
    "attention.sliding_window": 0,
    "attention.max_alibi_bias": 0.0,
    "attention.clamp_kqv": 0.0,
    "expert_count": 0,
    "expert_used_count": 0,
    "rope.scaling.attn_factor": 1.0,
    "use_parallel_residual": False,
}
"""Keys that may be there as long as they change nothing, with the value that changes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes and constants of one model. Letters as everywhere: Hq, Hkv, Dk, Dv."""

    name: str
    layers: int
    d_model: int
    query_heads: int
    kv_heads: int
    head_dim: int
    """Dk."""
    value_dim: int
    """Dv."""
    ffn_dim: int
    vocab: int
    context_length: int
    """Positions that the model was trained for; no prompt goes beyond."""
    norm_eps: float
    rope: Rope
    """Interleaved, whatever the form of the model's first implementation: the converter to GGUF permutes the
    rows of q and k."""
    tied_output: bool
    """Whether the token embedding is the output matrix as well."""

    @classmethod
    def read(cls, file: GgufFile) -> ModelConfig:
        """The configuration of a file.

        Raises:
            CorruptModel: a needed key is missing or impossible.
            UnsupportedModel: another architecture, or a setting that is not implemented.
        """
        architecture = file.value("general.architecture", str)
        if architecture != ARCHITECTURE:
            raise UnsupportedModel(
                f"{file.path}: got architecture {architecture!r}, expected {ARCHITECTURE!r}"
            )
        _refuse_unknown(file)
        whole = _Whole(file)
        d_model = whole("embedding_length", high=1 << 20)
        query_heads = whole("attention.head_count", high=MAX_HEADS)
        head_dim = whole("attention.key_length", default=d_model // query_heads, high=MAX_DIM)
        config = cls(
            name=file.value("general.name", str, file.path.stem),
            layers=whole("block_count", high=MAX_LAYERS),
            d_model=d_model,
            query_heads=query_heads,
            kv_heads=whole("attention.head_count_kv", default=query_heads, high=query_heads),
            head_dim=head_dim,
            value_dim=whole("attention.value_length", default=head_dim, high=MAX_DIM),
            ffn_dim=whole("feed_forward_length", high=1 << 22),
            vocab=len(file.values("tokenizer.ggml.tokens", str)),
            context_length=whole("context_length", high=1 << 31),
            norm_eps=_positive(file, "attention.layer_norm_rms_epsilon"),
            rope=_rope(file, whole, head_dim),
            tied_output="output.weight" not in file.tensor_names,
        )
        if query_heads % config.kv_heads:
            raise CorruptModel(
                f"{file.path}: head_count must be a multiple of head_count_kv, "
                f"got {query_heads} and {config.kv_heads}"
            )
        vocab = whole("vocab_size", default=config.vocab, high=1 << 31)
        if vocab != config.vocab:
            raise CorruptModel(f"{file.path}: vocab_size is {vocab}, but there are {config.vocab} tokens")
        return config


class _Whole:
    """Reads whole numbers of the architecture, in bounds."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file

    def __call__(self, key: str, *, high: int, default: int | None = None) -> int:
        got = self._file.value(f"{ARCHITECTURE}.{key}", int, default)
        if got < 1:
            raise CorruptModel(f"{self._file.path}: {ARCHITECTURE}.{key} must be at least 1, got {got}")
        if got > high:
            raise UnsupportedModel(f"{self._file.path}: {ARCHITECTURE}.{key} is at most {high}, got {got}")
        return got


def _positive(file: GgufFile, key: str, default: float | None = None) -> float:
    got = file.value(f"{ARCHITECTURE}.{key}", float, default)
    if not (math.isfinite(got) and got > 0.0):
        raise CorruptModel(f"{file.path}: {ARCHITECTURE}.{key} must be positive, got {got}")
    return got


def _rope(file: GgufFile, whole: _Whole, head_dim: int) -> Rope:
    dim = whole("rope.dimension_count", default=head_dim, high=head_dim)
    if dim % 2:
        raise CorruptModel(f"{file.path}: rope.dimension_count must be even, got {dim}")
    theta = _positive(file, "rope.freq_base", 10_000.0)
    try:
        return Rope(theta=theta, dim=dim, interleaved=True, scaling=_rope_scaling(file, whole, dim))
    except InvalidSpec as error:
        raise UnsupportedModel(f"{file.path}: rotary embedding: {error.message}") from error


def _rope_scaling(file: GgufFile, whole: _Whole, dim: int) -> Scaling | None:
    kind = file.value(f"{ARCHITECTURE}.rope.scaling.type", str, "none")
    if kind not in ("none", "linear", "yarn"):
        raise UnsupportedModel(f"{file.path}: got rope scaling {kind!r}, expected none, linear or yarn")
    factor = 1.0 if kind == "none" else _positive(file, "rope.scaling.factor")
    divided = ROPE_FACTORS in file.tensor_names
    if kind == "yarn":
        if divided:
            raise UnsupportedModel(f"{file.path}: tensor {ROPE_FACTORS!r} and yarn do not go together")
        return YarnScaling(factor, whole("rope.scaling.original_context_length", high=1 << 31))
    if not divided:
        return None if kind == "none" else LinearScaling(factor)
    file.check(ROPE_FACTORS, (dim // 2,))
    divisors = file.tensor(ROPE_FACTORS, (dim // 2,)).astype(np.float64) * factor
    return DivisorScaling(tuple(divisors.tolist()))


def _refuse_unknown(file: GgufFile) -> None:
    prefix = f"{ARCHITECTURE}."
    for key in sorted(file.keys):
        if not key.startswith(prefix):
            continue
        name = key.removeprefix(prefix)
        if name in _ONLY:
            only = _ONLY[name]
            got = file.value(key, type(only))
            if got != only:
                raise UnsupportedModel(f"{file.path}: {key} is {got}, expected {only}")
        elif name not in _READ and name not in _HARMLESS:
            raise UnsupportedModel(f"{file.path}: metadata key {key!r} is not understood")
