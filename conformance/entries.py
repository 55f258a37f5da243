"""One call of the operator as streams: an entry of its batch is one stream, in Rondel's shapes and words.

ONNX operators, Attention-23, -24 and -25. The order of its steps (scale, softcap, mask and bias, softmax) is
Rondel's too; sqrt(scale) on both factors is scale on the product, up to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cases import Array, Case
from rondel.decoder.spec import MAX_MAGNITUDE, MAX_SCALE
from sight import Sight, sight

Floats = NDArray[np.float32]


class Inexpressible(Exception):
    """What the case asks for has no words in Rondel's interface; the text says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What one stream stores, and what is asked of it."""

    q: Floats  # [N, Hq, Dk]
    chunks: tuple[tuple[Floats, Floats], ...]  # k [n, Hkv, Dk] and v [n, Hkv, Dv], in the order of storing
    sight: Sight
    bias: Floats | None = None  # [Hq or 1, N or 1, T]
    mask: NDArray[np.bool_] | None = None  # [Hq or 1, N or 1, T]
    ranges: tuple[tuple[int, int], ...] | None = None

    @property
    def total(self) -> int:
        """T, how many keys the stream holds."""
        return sum(len(k) for k, _ in self.chunks)


def entries(case: Case) -> list[Entry]:
    """The streams of a case, one per entry of the batch. Raises Inexpressible."""
    _check(case)
    return [_entry(case, index) for index in range(len(case.inputs["Q"]))]


def heads_last(x: Array) -> Array:
    """[heads, tokens, dim], the operator's order, to [tokens, heads, dim], ours; and back."""
    return x.swapaxes(0, 1)


def _entry(case: Case, index: int) -> Entry:
    given, attributes = case.inputs, case.attributes
    q = _tokens(given["Q"][index], attributes.q_num_heads)
    new = tuple(_tokens(given[name][index], attributes.kv_num_heads) for name in ("K", "V"))
    chunks = [(new[0], new[1])]
    offset = 0
    ranges: tuple[tuple[int, int], ...] | None = None
    if "past_key" in given:
        k, v = (_tokens(given[name][index]) for name in ("past_key", "past_value"))
        chunks.insert(0, (k, v))
        offset = len(k)
    elif "nonpad_kv_seqlen" in given:
        filled = int(given["nonpad_kv_seqlen"][index])
        ranges, offset = ((0, filled),) if filled else (), filled - len(q)
    total = sum(len(k) for k, _ in chunks)
    seen = sight(attributes, offset, len(q), total, hidden_scores=_shows_hidden_scores(case))
    bias, mask = _edits(given.get("attn_mask"), index, total)
    if seen.mask is not None:
        mask = seen.mask if mask is None else mask & seen.mask
    return Entry(q=q, chunks=tuple(chunks), sight=seen, bias=bias, mask=mask, ranges=ranges)


def _tokens(x: Array, heads: int = 0) -> Floats:
    """An entry [heads, n, dim] or, of a 3-D input, [n, heads·dim] as float32 [n, heads, dim]."""
    tokens = heads_last(x) if x.ndim == 3 else x.reshape(len(x), heads, -1)
    return np.ascontiguousarray(tokens, dtype=np.float32)


def _edits(given: Array | None, index: int, total: int) -> tuple[Floats | None, NDArray[np.bool_] | None]:
    """The entry's part of attn_mask as (bias, mask), its last axis filled up with hidden keys if short."""
    if given is None:
        return None, None
    short = [(0, 0)] * (given.ndim - 1) + [(0, total - given.shape[-1])]
    if given.dtype == np.bool_:
        return None, _part(np.pad(given, short, constant_values=False), index)
    return _part(np.pad(given.astype(np.float32), short, constant_values=-np.inf), index), None


def _part(x: Array, index: int) -> Array:
    """[Hq or 1, N or 1, T] of an array that broadcasts to [batch, Hq, N, T]."""
    full = x.reshape((1,) * (4 - x.ndim) + x.shape)
    part: Array = full[index if len(full) > 1 else 0]
    return part


def _shows_hidden_scores(case: Case) -> bool:
    """Whether the product's output is of a stage before the mask, where hidden keys still have scores."""
    return "qk_matmul_output" in case.outputs and case.attributes.qk_matmul_output_mode in (0, 1)


def _check(case: Case) -> None:
    """Raises Inexpressible for what a session refuses by its contract; any other refusal is a failure."""
    for name in ("Q", "K", "V", "past_key", "past_value"):
        largest = np.abs(case.inputs.get(name, np.zeros(1)).astype(np.float64)).max(initial=0)
        if not largest <= MAX_MAGNITUDE:
            raise Inexpressible(f"{name} holds {largest:g}; sessions take values up to {MAX_MAGNITUDE:g}")
    scale = case.attributes.scale
    if scale is not None and not 0 < scale <= MAX_SCALE:
        raise Inexpressible(f"scale is {scale:g}; a session's is above 0 and at most {MAX_SCALE:g}")
