"""Arrays to Tensor messages and back: the one place that knows byte order. Client and server share it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rondel.decoder.errors import InvalidRequest, InvalidShape, ValueRange
from rondel.v1 import tensor_pb2

MAX_AXES: Final = 8
MAX_AXIS: Final = (1 << 31) - 1
_MAX_ELEMENTS: Final = 1 << 40

_FLOAT32: Final = np.dtype("<f4")
_FLOAT16: Final = np.dtype("<f2")
_BITS16: Final = np.dtype("<u2")

_ENCODINGS: Final[Mapping[int, np.dtype[Any]]] = {
    tensor_pb2.DTYPE_FLOAT32: _FLOAT32,
    tensor_pb2.DTYPE_FLOAT16: _FLOAT16,
    tensor_pb2.DTYPE_BFLOAT16: _BITS16,
}


def to_tensor(array: NDArray[np.floating], *, dtype: tensor_pb2.Dtype | None = None) -> tensor_pb2.Tensor:
    """The message for a float32 or float16 array of any shape and strides (copied to C order if need be).

    ``dtype`` chooses the encoding, rounding to nearest even where it is narrower; the array's own by default.

    Raises:
        InvalidShape: the array is neither float32 nor float16.
        InvalidRequest: the encoding is not one of float32, float16, bfloat16.
    """
    if array.dtype == _FLOAT32 and dtype is None:
        return tensor_pb2.Tensor(dtype=tensor_pb2.DTYPE_FLOAT32, shape=array.shape, data=array.tobytes())
    if array.dtype.newbyteorder("=") not in (np.float32, np.float16):
        raise InvalidShape(
            f"a tensor is made of a float32 or float16 array, got {array.dtype}",
            field="array",
            got=str(array.dtype),
            expected="float32 or float16",
        )
    if dtype is None:
        dtype = tensor_pb2.DTYPE_FLOAT32 if array.dtype.itemsize == 4 else tensor_pb2.DTYPE_FLOAT16
    if dtype not in _ENCODINGS:
        raise InvalidRequest(
            f"tensors are sent as float32, float16 or bfloat16, got {_name(dtype)}", field="dtype"
        )
    if dtype == tensor_pb2.DTYPE_BFLOAT16:
        data = _to_bfloat16(array).tobytes()
    else:
        data = array.astype(_ENCODINGS[dtype], order="C", copy=False).tobytes()
    return tensor_pb2.Tensor(dtype=dtype, shape=array.shape, data=data)


def fill_tensor(tensor: tensor_pb2.Tensor, array: NDArray[np.float32]) -> None:
    """Makes an empty message that of a float32 array: what ``CopyFrom(to_tensor(array))`` does, with a copy
    less."""
    tensor.dtype = tensor_pb2.DTYPE_FLOAT32
    tensor.shape.extend(array.shape)
    tensor.data = array.astype(_FLOAT32, copy=False).tobytes()


def from_tensor(tensor: tensor_pb2.Tensor, *, name: str) -> NDArray[np.float32]:
    """The float32 C-order array of a message; ``name`` is what errors call it.

    A float32 tensor is not converted: the array is a read-only view of the bytes that protobuf hands out.
    float16 and bfloat16 are widened, exactly. Values are not looked at.

    Raises:
        InvalidRequest: the encoding is missing, unknown, int8 or bool.
        InvalidShape: an axis is negative or too large, or shape and size do not agree.
    """
    if tensor.dtype == tensor_pb2.DTYPE_FLOAT32:
        return _elements(tensor, _FLOAT32, name)
    encoding = _ENCODINGS.get(tensor.dtype)
    if encoding is None:
        raise InvalidRequest(
            f"{name}: dtype must be float32, float16 or bfloat16, got {_name(tensor.dtype)}", field=name
        )
    raw = _elements(tensor, encoding, name)
    if encoding is _BITS16:
        raw = (raw.astype(np.uint32) << 16).view(np.float32)
    return raw.astype(np.float32, copy=False)


def to_mask(mask: NDArray[np.bool_]) -> tensor_pb2.Tensor:
    """The message for an array of bools, of any shape and strides."""
    return tensor_pb2.Tensor(dtype=tensor_pb2.DTYPE_BOOL, shape=mask.shape, data=mask.tobytes())


def from_mask(tensor: tensor_pb2.Tensor, *, name: str) -> NDArray[np.bool_]:
    """The array of bools of a message: a read-only view; ``name`` is what errors call it.

    Raises:
        InvalidRequest: the encoding is another one.
        InvalidShape: as :func:`from_tensor`.
        ValueRange: a byte is neither 0 nor 1.
    """
    if tensor.dtype != tensor_pb2.DTYPE_BOOL:
        raise InvalidRequest(f"{name}: dtype must be bool, got {_name(tensor.dtype)}", field=name)
    raw = _elements(tensor, np.dtype(np.uint8), name)
    largest = int(raw.max(initial=0))
    if largest > 1:
        raise ValueRange(f"{name} must be made of bytes 0 and 1, got {largest}", array=name)
    return raw.view(np.bool_)


def _elements(tensor: tensor_pb2.Tensor, encoding: np.dtype[Any], name: str) -> NDArray[Any]:
    """The array as it was sent. Raises InvalidShape."""
    shape = tuple(tensor.shape)
    data = tensor.data  # each access makes a new bytes object
    size = len(data)
    # Nearly always all is well, and then the number of bytes bounds each axis.
    if 0 < len(shape) <= MAX_AXES and min(shape) > 0 and math.prod(shape) * encoding.itemsize == size:
        return np.frombuffer(data, encoding).reshape(shape)
    # The bound counts empty axes as one: NumPy refuses such shapes even when the array holds nothing.
    if (
        len(shape) > MAX_AXES
        or any(not 0 <= axis <= MAX_AXIS for axis in shape)
        or math.prod(max(axis, 1) for axis in shape) > _MAX_ELEMENTS
    ):
        raise InvalidShape(
            f"{name}: a shape has at most {MAX_AXES} axes of 0 to {MAX_AXIS}, and at most {_MAX_ELEMENTS} "
            f"elements, got {_clip(shape)}",
            field=name,
            got=_clip(shape),
            expected=f"{MAX_AXES} axes of 0 to {MAX_AXIS}",
        )
    elements = math.prod(shape)
    if elements * encoding.itemsize != size:
        raise InvalidShape(
            f"{name}: shape {shape} of {_name(tensor.dtype)} takes {elements * encoding.itemsize} bytes, "
            f"got {size}",
            field=name,
            got=f"{size} bytes",
            expected=f"{elements * encoding.itemsize} bytes",
        )
    return np.frombuffer(data, encoding).reshape(shape) if elements else np.empty(shape, encoding)


def _to_bfloat16(array: NDArray[np.floating]) -> NDArray[np.uint16]:
    bits = array.astype(np.float32, order="C").view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    # Rounding could carry a NaN's payload over into the sign; keep its upper half and make it quiet.
    halves = np.where(np.isnan(array), (bits >> 16) | 0x40, rounded)
    return halves.astype(_BITS16)


def _name(dtype: int) -> str:
    try:
        return tensor_pb2.Dtype.Name(dtype).removeprefix("DTYPE_").lower()
    except ValueError:
        return f"number {dtype}"


def _clip(shape: tuple[int, ...]) -> str:
    return str(shape) if len(shape) <= MAX_AXES else f"{len(shape)} axes"
