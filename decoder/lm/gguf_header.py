"""The header of a GGUF file: metadata and where the tensors lie.

Read here rather than with ``gguf.GGUFReader``, which trusts its input (past the end of a truncated file
it reads empty arrays and goes on counting) and takes seconds for a vocabulary. Layout:
magic, version, tensor count, metadata count, metadata, tensor infos, padding, tensor data.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from mmap import mmap
from typing import Final

from gguf import GGML_QUANT_SIZES, GGUF_DEFAULT_ALIGNMENT, GGMLQuantizationType

from rondel.decoder.errors import CorruptModel, UnsupportedModel

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
MAX_ITEMS: Final = 4_000_000
"""Most metadata values and tensors, those inside arrays counted: far above any real vocabulary."""
MAX_DIMENSIONS: Final = 4

Scalar = bool | int | float | str
Value = Scalar | list[Scalar]

_SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""GGUF's value types to those of ``struct``."""
_STRING: Final = 8
_ARRAY: Final = 9


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies and how it is stored."""

    shape: tuple[int, ...]
    """C order: the last is the innermost."""
    kind: GGMLQuantizationType
    offset: int
    """From the beginning of the file."""
    row_bytes: int
    """Stored bytes of one innermost row."""

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape as an array of bytes."""
        return (*self.shape[:-1], self.row_bytes)


@dataclass(frozen=True, slots=True)
class Header:
    """Everything before the tensor data."""

    metadata: dict[str, Value]
    tensors: dict[str, TensorInfo]

    @classmethod
    def read(cls, data: mmap | bytes) -> Header:
        """Parse the file.

        Raises:
            CorruptModel: not a GGUF file, truncated, or senseless.
            UnsupportedModel: a version, byte order, value or tensor type that is not supported.
        """
        if data[:4] != MAGIC:
            raise CorruptModel(f"not a GGUF file: it begins with {bytes(data[:4])!r}, expected {MAGIC!r}")
        cursor = _Cursor(data, len(MAGIC))
        version = cursor.number("I")
        if version not in VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
            got = "the other byte order" if swapped else f"version {version}"
            raise UnsupportedModel(f"got a GGUF file of {got}, expected little-endian, version 2 or 3")
        tensor_count, value_count = cursor.number("Q"), cursor.number("Q")
        metadata: dict[str, Value] = {}
        for _ in cursor.counted(value_count):
            key = cursor.string()
            if key in metadata:
                raise CorruptModel(f"metadata key {key!r} is there twice")
            metadata[key] = cursor.value()
        infos = [cursor.tensor() for _ in cursor.counted(tensor_count)]
        alignment = metadata.get("general.alignment", GGUF_DEFAULT_ALIGNMENT)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise CorruptModel(f"general.alignment must be a power of two, got {alignment!r}")
        start = -(-cursor.at // alignment) * alignment
        return cls(metadata, _placed(infos, start, len(data)))


def _placed(infos: list[tuple[str, TensorInfo]], start: int, size: int) -> dict[str, TensorInfo]:
    """The tensors with offsets from the beginning of the file, all of them inside it."""
    tensors: dict[str, TensorInfo] = {}
    for name, info in infos:
        end = start + info.offset + math.prod(info.stored_shape)
        if end > size:
            raise CorruptModel(
                f"the file is truncated: got {size} bytes, expected at least {end} (tensor {name!r})"
            )
        if name in tensors:
            raise CorruptModel(f"tensor {name!r} is there twice")
        tensors[name] = TensorInfo(info.shape, info.kind, start + info.offset, info.row_bytes)
    return tensors


class _Cursor:
    """Reads forward, never past the end."""

    def __init__(self, data: mmap | bytes, at: int) -> None:
        self._data = data
        self._items = 0
        self.at = at

    def _skip(self, count: int) -> int:
        """Move over ``count`` bytes; where they begin."""
        begin, self.at = self.at, self.at + count
        if self.at > len(self._data):
            raise CorruptModel(
                f"the file is truncated: got {len(self._data)} bytes, expected at least {self.at}"
            )
        return begin

    def counted(self, count: int) -> Iterator[None]:
        """``count`` rounds, if the file may have that many items."""
        self._items += count
        if self._items > MAX_ITEMS:
            raise CorruptModel(f"the header speaks of {self._items} items, expected at most {MAX_ITEMS}")
        return iter([None] * count)

    def number(self, code: str) -> int:
        return int(self._scalar(code))

    def _scalar(self, code: str) -> bool | int | float:
        (value,) = struct.unpack_from(f"<{code}", self._data, self._skip(struct.calcsize(f"<{code}")))
        return value  # type: ignore[no-any-return]  # struct is untyped; the code says bool, int or float

    def string(self) -> str:
        size = self.number("Q")
        begin = self._skip(size)
        try:
            return self._data[begin : self.at].decode()
        except UnicodeDecodeError as error:
            raise CorruptModel(f"the text at byte {begin} is not UTF-8 ({error.reason})") from None

    def value(self) -> Value:
        kind = self.number("I")
        if kind != _ARRAY:
            return self._one(kind)
        kind, count = self.number("I"), self.number("Q")
        if kind in _SCALARS:
            self.counted(count)
            code = f"<{count}{_SCALARS[kind]}"
            return list(struct.unpack_from(code, self._data, self._skip(struct.calcsize(code))))
        return [self._one(kind) for _ in self.counted(count)]

    def _one(self, kind: int) -> Scalar:
        if kind == _STRING:
            return self.string()
        if kind not in _SCALARS:
            raise UnsupportedModel(f"got metadata value type {kind}, expected a scalar, text or flat array")
        return self._scalar(_SCALARS[kind])

    def tensor(self) -> tuple[str, TensorInfo]:
        name, dimensions = self.string(), self.number("I")
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise CorruptModel(f"tensor {name!r} has {dimensions} dimensions, expected 1 to {MAX_DIMENSIONS}")
        shape = tuple(self.number("Q") for _ in range(dimensions))[::-1]
        number, offset = self.number("I"), self.number("Q")
        try:
            kind = GGMLQuantizationType(number)
        except ValueError:
            raise UnsupportedModel(f"tensor {name!r} is stored as unknown type {number}") from None
        block, size = GGML_QUANT_SIZES[kind]
        if 0 in shape or shape[-1] % block:
            raise CorruptModel(f"tensor {name!r}: shape {shape} does not go into blocks of {block}")
        return name, TensorInfo(shape, kind, offset, shape[-1] // block * size)
