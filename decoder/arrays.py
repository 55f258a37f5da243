"""The checks of arrays that enter a session: dtype, shape, finite values. They copy only if they must."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from rondel.decoder.errors import InvalidShape, ValueRange
from rondel.decoder.kernels import Kernels
from rondel.decoder.spec import MAX_MAGNITUDE, LayerGroup, StreamSpec

Floats = NDArray[np.float32]
_FLOAT32: Final = np.dtype(np.float32)


def _describe(shape: tuple[int | None, ...]) -> str:
    return "float32 [" + ", ".join("n" if size is None else str(size) for size in shape) + "]"


def _describe_got(x: object) -> str:
    return f"{x.dtype} {list(x.shape)}" if isinstance(x, np.ndarray) else type(x).__name__


def _fits(got: tuple[int, ...], shape: tuple[int | None, ...]) -> bool:
    # Mostly it is the number of tokens that may be any.
    if got == shape or (shape[0] is None and got[1:] == shape[1:]):
        return len(got) == len(shape)
    return len(got) == len(shape) and all(
        want is None or want == size for want, size in zip(shape, got, strict=True)
    )


def check_array(name: str, x: Floats, shape: tuple[int | None, ...], kernels: Kernels) -> Floats:
    """``x`` as a C-ordered float32 array of ``shape`` (None = any size).

    Raises:
        InvalidShape: not a float32 array, or of another shape.
        ValueRange: it holds NaN, an infinity or a magnitude above MAX_MAGNITUDE.
    """
    if not (isinstance(x, np.ndarray) and x.dtype == _FLOAT32 and _fits(x.shape, shape)):
        got = _describe_got(x)
        raise InvalidShape(
            f"{name} must be {_describe(shape)}, got {got}", field=name, got=got, expected=_describe(shape)
        )
    flags = x.flags
    if not (flags.c_contiguous and flags.aligned):
        x = np.require(x, requirements=["C", "A"])
    if not kernels.in_range(x.reshape(-1), MAX_MAGNITUDE):
        raise ValueRange(
            f"{name} must hold finite numbers of magnitude at most {MAX_MAGNITUDE:g}", array=name
        )
    return x


def check_queries(group: LayerGroup, q: Floats, rows: int | None, kernels: Kernels) -> Floats:
    """q as [rows, Hq, Dk]; raises what :func:`check_array` raises."""
    return check_array("q", q, (rows, group.query_heads, group.key_dim), kernels)


def empty_results(group: LayerGroup, rows: int, *layers: int) -> tuple[Floats, Floats]:
    """Arrays for a kernel to fill: out [*layers, rows, Hq, Dv] and lse [*layers, rows, Hq]."""
    shape = (*layers, rows, group.query_heads)
    return np.empty((*shape, group.value_dim), np.float32), np.empty(shape, np.float32)


def stacked_layers(spec: StreamSpec, first_layer: int, k: Floats) -> list[int]:
    """The layers that a stack k [layers, n, Hkv, Dk] is for, from ``first_layer`` on.

    Raises:
        InvalidLayer: there is no such first layer.
        InvalidShape: k has no such form, more layers than there are, or the layers differ in shape.
    """
    spec.group_index(first_layer)
    most = spec.layers - first_layer
    count = k.shape[0] if isinstance(k, np.ndarray) and k.ndim == 4 else 0
    if not 1 <= count <= most:
        got, expected = _describe_got(k), f"[layers, tokens, heads, dim] of 1 to {most} layers"
        raise InvalidShape(f"k must be {expected}, got {got}", field="k", got=got, expected=expected)
    layers = list(range(first_layer, first_layer + count))
    if not spec.same_shape(layers):
        raise InvalidShape(
            f"layers {first_layer} to {layers[-1]} differ in shape and cannot be stacked",
            field="k",
            got="layers of different shapes",
            expected="layers of one shape",
        )
    return layers
