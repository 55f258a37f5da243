"""A GGUF file: typed metadata and dequantised tensors, every fault a ModelError that names the file."""

from __future__ import annotations

import math
from mmap import ACCESS_READ, mmap
from os import PathLike
from pathlib import Path
from typing import TypeVar

import gguf
import numpy as np
from numpy.typing import NDArray

from rondel.decoder.errors import CorruptModel, ModelError, ModelNotFound, UnsupportedModel
from rondel.decoder.lm.gguf_header import Header, Value

_Value = TypeVar("_Value", bool, int, float, str)


class GgufFile:
    """A GGUF file, open for reading. Tensors stay on disk until :meth:`tensor` asks for them.

    Raises:
        ModelNotFound: no such file, or it cannot be read.
        CorruptModel: not a GGUF file, truncated, or its header is senseless.
        UnsupportedModel: a version, byte order or tensor type that is not supported.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        try:
            with self.path.open("rb") as file:
                # An empty file cannot be mapped.
                empty = not file.read(1)
                self._data: mmap | bytes = b"" if empty else mmap(file.fileno(), 0, access=ACCESS_READ)
        except OSError as error:
            raise ModelNotFound(f"{self.path}: expected a GGUF file, got: {error.strerror}") from error
        try:
            self._header = Header.read(self._data)
        except ModelError as error:
            raise type(error)(f"{self.path}: {error.message}", **error.facts) from error

    # ---- metadata ----

    @property
    def keys(self) -> frozenset[str]:
        """The metadata keys."""
        return frozenset(self._header.metadata)

    def value(self, key: str, kind: type[_Value], default: _Value | None = None) -> _Value:
        """The scalar of a key; the default where the file has none.

        Raises:
            CorruptModel: missing without a default, or not of that kind.
        """
        got = self.optional(key, kind)
        if got is not None:
            return got
        if default is None:
            raise CorruptModel(f"{self.path}: metadata key {key!r} is missing")
        return default

    def optional(self, key: str, kind: type[_Value]) -> _Value | None:
        """The scalar of a key, or None where the file has none. Raises CorruptModel for another kind."""
        got = self._header.metadata.get(key)
        if got is None:
            return None
        # Not isinstance: to Python a bool is an int, to the file it is another type.
        if type(got) is not kind:
            raise self._wrong(key, got, kind.__name__)
        return got

    def values(self, key: str, kind: type[_Value]) -> list[_Value]:
        """The array of a key. Raises CorruptModel when it is missing or of another kind."""
        got = self._header.metadata.get(key)
        if got is None:
            raise CorruptModel(f"{self.path}: metadata key {key!r} is missing")
        if not isinstance(got, list):
            raise self._wrong(key, got, f"an array of {kind.__name__}")
        items = [item for item in got if type(item) is kind]
        if len(items) != len(got):
            raise self._wrong(key, got, f"an array of {kind.__name__}")
        return items

    def _wrong(self, key: str, got: Value, expected: str) -> CorruptModel:
        shown = f"an array of {len(got)}" if isinstance(got, list) else f"{got!r:.80}"
        return CorruptModel(f"{self.path}: metadata key {key!r}: got {shown}, expected {expected}")

    # ---- tensors ----

    @property
    def tensor_names(self) -> frozenset[str]:
        """The names of all tensors in the file."""
        return frozenset(self._header.tensors)

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Whether a tensor is there with that C-order shape. Raises CorruptModel."""
        tensor = self._header.tensors.get(name)
        if tensor is None:
            raise CorruptModel(f"{self.path}: tensor {name!r} is missing, expected with shape {shape}")
        if tensor.shape != shape:
            raise CorruptModel(f"{self.path}: tensor {name!r}: got shape {tensor.shape}, expected {shape}")

    def tensor(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """A tensor as a fresh C-order float32 array of that shape.

        Raises:
            CorruptModel: missing, of another shape, or holding values that are not finite.
            UnsupportedModel: its storage type cannot be dequantised.
        """
        self.check(name, shape)
        info = self._header.tensors[name]
        count = math.prod(info.stored_shape)
        stored = np.frombuffer(self._data, np.uint8, count, info.offset).reshape(info.stored_shape)
        # A damaged block scale overflows here; the finite check below is what reports it.
        with np.errstate(all="ignore"):
            try:
                values = gguf.dequantize(stored, info.kind)
            except NotImplementedError:
                raise UnsupportedModel(
                    f"{self.path}: tensor {name!r} is stored as {info.kind.name}, which cannot be dequantised"
                ) from None
        result = np.array(values, dtype=np.float32, order="C").reshape(shape)
        # A NaN anywhere makes both extremes NaN.
        if not (math.isfinite(result.min()) and math.isfinite(result.max())):
            raise CorruptModel(f"{self.path}: tensor {name!r} holds values that are not finite")
        return result
