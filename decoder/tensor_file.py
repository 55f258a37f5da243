"""Tensors of a safetensors file as float32 arrays, every fault a ModelError that names the file.

The format (github.com/huggingface/safetensors): the length of a header, uint64; the header, a JSON object
from name to dtype, shape and the tensor's bytes, counted from the header's end; the bytes. All is
little-endian and in C order. Read here rather than by the safetensors package, which gives NumPy no
bfloat16 and, to have the bytes of one tensor, wants those of all.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rondel.decoder.errors import CorruptModel, ModelNotFound, UnsupportedModel

Floats = NDArray[np.float32]

_LARGEST_HEADER: Final = 100_000_000
"""Bytes; the format's own bound."""

_ENCODINGS: Final[dict[str, np.dtype[Any]]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}


class _Place(NamedTuple):
    """Where a tensor lies in the file, and as what."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    size: int


def read_tensors(path: str | os.PathLike[str], wanted: Callable[[str], bool]) -> dict[str, Floats]:
    """The tensors whose names are ``wanted``, by name; float16 and bfloat16 are widened, exactly.

    Only their bytes are read. Numbers are not looked at: they may be NaN.

    Raises:
        ModelNotFound: no such file, or it cannot be read.
        CorruptModel: it is truncated, or no safetensors file.
        UnsupportedModel: a wanted tensor is neither float32, float16 nor bfloat16.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            places = _places(path, file)
            return {name: _tensor(path, file, name, places[name]) for name in filter(wanted, places)}
    except OSError as error:
        raise ModelNotFound(f"{path}: expected a safetensors file, got: {error.strerror}") from error


def _places(path: Path, file: BinaryIO) -> dict[str, _Place]:
    length = int.from_bytes(start := file.read(8), "little")
    size = os.fstat(file.fileno()).st_size
    if len(start) < 8 or length > min(size - 8, _LARGEST_HEADER):
        raise CorruptModel(
            f"{path}: expected a safetensors header within the file, got {length} bytes of header in {size}"
        )
    try:
        header = json.loads(file.read(length).decode())
    except (ValueError, RecursionError) as error:
        raise CorruptModel(f"{path}: the safetensors header is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise CorruptModel(f"{path}: expected a JSON object as header, got {type(header).__name__}")
    header.pop("__metadata__", None)
    return {name: _place(path, name, entry, 8 + length, size) for name, entry in header.items()}


def _place(path: Path, name: str, entry: object, base: int, size: int) -> _Place:
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [start, stop]} if (
            all(type(axis) is int and axis >= 0 for axis in shape)
            and type(start) is type(stop) is int
            and 0 <= start <= stop <= size - base
        ):
            return _Place(dtype, tuple(shape), base + start, stop - start)
    raise CorruptModel(
        f"{path}: tensor {name!r} needs a dtype, a shape and offsets within {size - base} bytes, "
        f"got {str(entry)[:200]}"
    )


def _tensor(path: Path, file: BinaryIO, name: str, place: _Place) -> Floats:
    encoding = _ENCODINGS.get(place.dtype)
    if encoding is None:
        raise UnsupportedModel(
            f"{path}: tensor {name!r} must be one of {', '.join(_ENCODINGS)}, got {place.dtype}"
        )
    if math.prod(place.shape) * encoding.itemsize != place.size:
        raise CorruptModel(
            f"{path}: tensor {name!r} is {place.dtype} {list(place.shape)}, got {place.size} bytes of it"
        )
    file.seek(place.start)
    data = file.read(place.size)
    if len(data) != place.size:
        raise CorruptModel(f"{path}: expected {place.size} bytes of tensor {name!r}, got {len(data)}")
    raw = np.frombuffer(data, encoding)
    if place.dtype == "BF16":
        raw = (raw.astype(np.uint32) << 16).view(np.float32)
    return raw.astype(np.float32, copy=False).reshape(place.shape)
