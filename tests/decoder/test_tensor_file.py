"""Reading safetensors files: a file of the safetensors package itself, and every kind of bad file."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinysafetensors

from rondel.decoder.errors import CorruptModel, ModelNotFound, UnsupportedModel
from rondel.decoder.tensor_file import read_tensors

# What safetensors 0.8.0 makes of a float32, a float16 and a bfloat16 array.
WRITTEN = (
    b'\xd0\x00\x00\x00\x00\x00\x00\x00{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[1,3],'
    b'"data_offsets":[0,12]},"c":{"dtype":"BF16","shape":[2,1],"data_offsets":[12,16]},"b":{"dtype":"F16",'
    b'"shape":[2],"data_offsets":[16,20]}}       \x00\x00\xc0?\x00\x00\x00\xc0\x00\x00P@\x80?I\xc0\x008f\xae'
)
ENTRY: dict[str, Any] = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def everything(name: str) -> bool:
    return True


def written(path: Path, header: object, data: bytes = bytes(8)) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def test_a_file_of_the_package_is_read_and_widened(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(WRITTEN)
    tensors = read_tensors(path, everything)
    assert {name: array.dtype for name, array in tensors.items()} == dict.fromkeys("abc", np.float32)
    assert tensors["a"].tolist() == [[1.5, -2.0, 3.25]]
    assert tensors["b"].tolist() == [0.5, float(np.float16(-0.1))]
    assert tensors["c"].tolist() == [[1.0], [-3.140625]]


def test_only_what_is_wanted_has_to_be_of_a_known_type(tmp_path: Path) -> None:
    entries = {"a": ENTRY, "b": {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}}
    path = written(tmp_path / "x", entries)
    assert list(read_tensors(path, lambda name: name == "a")) == ["a"]
    with pytest.raises(UnsupportedModel, match="'b' must be one of F32, F16, BF16, got I64"):
        read_tensors(path, everything)


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_arrays_come_back_as_they_were_rounded(tmp_path: Path, rng: np.random.Generator, dtype: str) -> None:
    arrays = {"one": rng.standard_normal((3, 5), np.float32), "none": np.zeros((0, 4), np.float32)}
    path = tinysafetensors.write(tmp_path / "x", arrays, dtype)
    got = read_tensors(path, everything)
    step = {"F32": 0.0, "F16": 2.0**-11, "BF16": 2.0**-8}[dtype]
    assert got["none"].shape == (0, 4)
    assert (np.abs(got["one"] - arrays["one"]) <= step * np.abs(arrays["one"])).all()


@pytest.mark.parametrize(
    ("header", "data"),
    [
        (b"", b""),
        (b"{", b""),
        (b"\xff\xfe", b""),
        (b"[" * 100_000, b""),
        ([], b""),
        ({"a": 1}, b""),
        ({"a": {"dtype": "F32", "shape": [2]}}, bytes(8)),
        ({"a": ENTRY}, bytes(7)),
        ({"a": {**ENTRY, "shape": [3]}}, bytes(8)),
        ({"a": {**ENTRY, "shape": [-2]}}, bytes(8)),
        ({"a": {**ENTRY, "shape": [True, 2]}}, bytes(8)),
        ({"a": {**ENTRY, "shape": [10**30]}}, bytes(8)),
        ({"a": {**ENTRY, "dtype": 3}}, bytes(8)),
        ({"a": {**ENTRY, "data_offsets": [-8, 0]}}, bytes(8)),
        ({"a": {**ENTRY, "data_offsets": [8, 0]}}, bytes(8)),
        ({"a": {**ENTRY, "data_offsets": [0, 8, 16]}}, bytes(16)),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_senseless_header_is_refused(tmp_path: Path, header: object, data: bytes) -> None:
    path = written(tmp_path / "bad", header, data)
    with pytest.raises(CorruptModel, match="bad: "):
        read_tensors(path, everything)


@pytest.mark.parametrize("size", [0, 7, 8, 20, 215, 216, 235])
def test_a_truncated_file_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "short"
    path.write_bytes(WRITTEN[:size])
    with pytest.raises(CorruptModel, match="short: "):
        read_tensors(path, everything)


def test_a_file_must_be_there(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(ModelNotFound, match="expected a safetensors file"):
            read_tensors(path, everything)
