"""Projections: what makes a token's q, k and v of its embedding, by layer, from arrays or from a file.

q = x·W_Q + b_Q, k = x·W_K + b_K, v = x·W_V + b_V in float32 (arXiv 1706.03762, section 3.2.2), before any
rotation. Shapes: x [n, d_model], W_Q [d_model, Hq·Dk], W_K [d_model, Hkv·Dk], W_V [d_model, Hkv·Dv], biases
as wide; heads lie one after the other.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Self

import numpy as np

from rondel.decoder.arrays import Floats, check_array
from rondel.decoder.errors import (
    CorruptModel,
    InvalidShape,
    InvalidSpec,
    ProjectionNotFound,
    UnsupportedModel,
    ValueRange,
)
from rondel.decoder.kernels import KERNELS
from rondel.decoder.spec import LayerGroup, StreamSpec
from rondel.decoder.tensor_file import read_tensors

_BLOCK: Final = 16
"""Rows of a product. Fewer make a long call slower, more a single row."""

HUGGING_FACE: Final = "model.layers.{layer}.self_attn.{part}_proj.{kind}"
"""How Hugging Face's Llama, Mistral, Qwen2 and their like name these tensors."""

_FIELDS: Final = {
    "{layer}": "(?P<layer>0|[1-9][0-9]{0,8})",
    "{part}": "(?P<part>[qkv])",
    "{kind}": "(?P<kind>weight|bias)",
}


@dataclass(frozen=True, slots=True, eq=False)
class Projection:
    """One layer's weights [d_model, heads·dim] and biases [heads·dim], float32; copied, and then read-only.

    A row's result has the same bits whatever other rows are in the call: products are made of 16 rows each,
    the last filled up with zeros, so that BLAS has no other shape to choose another way for. Where BLAS
    rounds the places of those rows differently (seen at construction), they are multiplied one by one.

    Raises:
        InvalidShape: an array is no float32 array, empty, or does not agree with the others in d_model.
        ValueRange: an array holds NaN, an infinity or a magnitude above 1e15.
    """

    w_q: Floats
    w_k: Floats
    w_v: Floats
    b_q: Floats | None = None
    b_k: Floats | None = None
    b_v: Floats | None = None
    _weights: Floats = field(init=False, repr=False)  # all three beside each other: one product
    _bias: Floats | None = field(init=False, repr=False)
    _rows: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        weights: list[Floats] = []
        for part in "qkv":
            shape = (len(weights[0]) if weights else None, None)
            weights.append(check_array(f"w_{part}", getattr(self, f"w_{part}"), shape, KERNELS))
            if not weights[-1].size:
                got = str(list(weights[-1].shape))
                raise InvalidShape(
                    f"w_{part} must have no empty axis, got {got}",
                    field=f"w_{part}",
                    got=got,
                    expected="[d_model, heads·dim]",
                )
        biases = [self._checked_bias(part, w.shape[1]) for part, w in zip("qkv", weights, strict=True)]
        some = any(getattr(self, f"b_{part}") is not None for part in "qkv")
        joined, bias = np.concatenate(weights, axis=1), np.concatenate(biases) if some else None
        joined.setflags(write=False)
        start = 0
        for part, array in zip("qkv", weights, strict=True):
            stop = start + array.shape[1]
            object.__setattr__(self, f"w_{part}", joined[:, start:stop])
            if bias is not None and getattr(self, f"b_{part}") is not None:
                bias.setflags(write=False)
                object.__setattr__(self, f"b_{part}", bias[start:stop])
            start = stop
        object.__setattr__(self, "_weights", joined)
        object.__setattr__(self, "_bias", bias)
        object.__setattr__(self, "_rows", _BLOCK if _places_alike(joined) else 1)

    @property
    def d_model(self) -> int:
        """Numbers of an embedding."""
        return len(self._weights)

    @property
    def widths(self) -> tuple[int, int, int]:
        """Numbers of a row's q, k and v, all heads together."""
        return self.w_q.shape[1], self.w_k.shape[1], self.w_v.shape[1]

    def rows(self, x: Floats, *, name: str = "x") -> list[Floats]:
        """q, k and v of x [n, d_model], each [n, width]. Not looked at: they may be too large to be stored.
        ``name`` is what errors call x.

        Raises:
            InvalidShape, ValueRange: x is not what a session takes.
        """
        x = check_array(name, x, (None, self.d_model), KERNELS)
        blocks = -(-len(x) // self._rows)
        if len(x) != blocks * self._rows:
            x, given = np.zeros((blocks * self._rows, self.d_model), np.float32), x
            x[: len(given)] = given
            return [part[: len(given)] for part in self._products(x)]
        return self._products(x)

    def _products(self, x: Floats) -> list[Floats]:
        products = x.reshape(-1, self._rows, self.d_model) @ self._weights
        joined = products.reshape(len(x), sum(self.widths))
        if self._bias is not None:
            joined += self._bias
        return np.split(joined, np.cumsum(self.widths[:2]), axis=1)

    def _checked_bias(self, part: str, width: int) -> Floats:
        bias: Floats | None = getattr(self, f"b_{part}")
        return (
            np.zeros(width, np.float32) if bias is None else check_array(f"b_{part}", bias, (width,), KERNELS)
        )


class Projections:
    """A model's projections by layer. Nothing of it changes, so sessions and threads may share it.

    Raises:
        InvalidSpec: ``layers`` has something else than a Projection in it.
    """

    def __init__(self, layers: Mapping[int, Projection]) -> None:
        for layer, projection in layers.items():
            if not isinstance(projection, Projection):
                raise InvalidSpec(
                    f"layer {layer} must have a Projection, got {type(projection).__name__}", field="layers"
                )
        self.layers: Final[Mapping[int, Projection]] = MappingProxyType(dict(layers))

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, names: str = HUGGING_FACE, transposed: bool = False
    ) -> Self:
        """The projections in a safetensors file (float32, float16 or bfloat16), as float32.

        ``names``: how tensors are named, with ``{layer}`` (a number), ``{part}`` (q, k, v) and ``{kind}``
        (weight, bias) in it once each; tensors with other names are not read. Weights are taken as
        [heads·dim, d_model], Hugging Face's and PyTorch's layout of a linear layer; with ``transposed`` as
        [d_model, heads·dim]. Whatever else a model does to q, k and v (norms of them, say) is the caller's.

        Raises:
            ModelNotFound: no such file, or it cannot be read.
            CorruptModel: it is no safetensors file, a layer lacks a weight, shapes disagree, or a number is
                not finite or above 1e15.
            UnsupportedModel: no tensor is named so, or one is of another type.
            InvalidSpec: ``names`` cannot be meant.
        """
        pattern = _pattern(names)
        parts: defaultdict[int, dict[str, Floats]] = defaultdict(dict)
        for name, tensor in read_tensors(path, lambda name: pattern.fullmatch(name) is not None).items():
            found = pattern.fullmatch(name)
            if found is not None:
                weight = found["kind"] == "weight"
                array = tensor.T if weight and not transposed else tensor
                parts[int(found["layer"])][f"{'w' if weight else 'b'}_{found['part']}"] = array
        if not parts:
            raise UnsupportedModel(f"{path}: expected tensors named like {names!r}, got none")
        return cls({layer: _projection(path, layer, parts[layer]) for layer in sorted(parts)})

    def project(
        self, spec: StreamSpec, layer: int, x: Floats, *, name: str = "x"
    ) -> tuple[Floats, Floats, Floats]:
        """q [n, Hq, Dk], k [n, Hkv, Dk] and v [n, Hkv, Dv] of x [n, d_model]; projections fit ``spec``.
        ``name`` is what errors call x.

        Raises:
            InvalidLayer: the stream has no such layer.
            ProjectionNotFound: the layer has no projection.
            InvalidShape, ValueRange: x is wrong.
        """
        group = spec.group(layer)
        if layer not in self.layers:
            raise ProjectionNotFound(
                f"layer {layer} has no projection, expected one of {len(self.layers)} layers that have",
                layer=layer,
            )
        rows = self.layers[layer].rows(x, name=name)
        shapes = _head_shapes(group)
        q, k, v = (part.reshape(len(x), *shape) for part, shape in zip(rows, shapes, strict=True))
        return q, k, v


NO_PROJECTIONS: Final = Projections({})
"""What a stream of queries, keys and values has."""


def fitted(projections: Projections | None, spec: StreamSpec) -> Projections:
    """The projections of a stream, if they fit it; it may have layers without one. None is none.

    Raises:
        InvalidSpec: these are no projections.
        InvalidLayer: the stream has no such layer.
        InvalidShape: a projection's heads are not those of the layer.
    """
    if projections is None:
        return NO_PROJECTIONS
    if not isinstance(projections, Projections):
        raise InvalidSpec(
            f"projections must be Projections or None, got {type(projections).__name__}", field="projections"
        )
    for layer, projection in projections.layers.items():
        widths = [heads * dim for heads, dim in _head_shapes(spec.group(layer))]
        for part, width, want in zip("qkv", projection.widths, widths, strict=True):
            if width != want:
                got, expected = f"[{projection.d_model}, {width}]", f"[d_model, {want}]"
                raise InvalidShape(
                    f"w_{part} of layer {layer} must be {expected}, got {got}",
                    field=f"w_{part}",
                    got=got,
                    expected=expected,
                )
    return projections


def _head_shapes(group: LayerGroup) -> list[tuple[int, int]]:
    return [
        (group.query_heads, group.key_dim),
        (group.kv_heads, group.key_dim),
        (group.kv_heads, group.value_dim),
    ]


def _places_alike(weights: Floats) -> bool:
    """Whether a row's product has the same bits in each place of a block."""
    row = np.random.default_rng(0).standard_normal(len(weights), np.float32)
    bits = (np.tile(row, (1, _BLOCK, 1)) @ weights)[0].view(np.uint32)
    return bool((bits == bits[0]).all())


def _pattern(names: str) -> re.Pattern[str]:
    if not isinstance(names, str) or any(names.count(name) != 1 for name in _FIELDS):
        raise InvalidSpec(f"names must have {', '.join(_FIELDS)} once each, got {names!r}", field="names")
    pattern = re.escape(names)
    for name, expression in _FIELDS.items():
        pattern = pattern.replace(re.escape(name), expression)
    return re.compile(pattern)


def _projection(path: str | os.PathLike[str], layer: int, arrays: Mapping[str, Floats]) -> Projection:
    if not {"w_q", "w_k", "w_v"} <= arrays.keys():
        raise CorruptModel(f"{path}: layer {layer} needs w_q, w_k and w_v, got {', '.join(sorted(arrays))}")
    try:
        return Projection(**arrays)
    except (InvalidShape, ValueRange) as error:
        raise CorruptModel(f"{path}: layer {layer}: {error.message}") from error
