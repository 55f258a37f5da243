"""Arrays to messages and back."""

import numpy as np
import pytest
from numpy.typing import NDArray

from rondel.decoder.errors import InvalidRequest, InvalidShape
from rondel.v1 import tensor_pb2
from rondel.v1.wire import from_tensor, to_tensor

SHAPES = [(), (0,), (1,), (7,), (2, 3), (2, 0, 4), (3, 2, 5, 4), (1,) * 8]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_arrays_come_back_exactly(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: type[np.floating]
) -> None:
    array = np.asarray(rng.standard_normal(shape), dtype)
    back = from_tensor(to_tensor(array), name="q")
    assert back.dtype == np.float32
    assert back.shape == shape
    assert back.flags.c_contiguous
    np.testing.assert_array_equal(back, array.astype(np.float32))


def test_float32_is_a_view(rng: np.random.Generator) -> None:
    tensor = to_tensor(rng.standard_normal((4, 3, 8)).astype(np.float32))
    array = from_tensor(tensor, name="q")
    assert not array.flags.writeable
    assert not array.flags.owndata


def test_strides_do_not_matter(rng: np.random.Generator) -> None:
    array = rng.standard_normal((6, 4, 8)).astype(np.float32).transpose(2, 0, 1)[::2]
    np.testing.assert_array_equal(from_tensor(to_tensor(array), name="q"), array)


def test_the_bytes_are_little_endian_in_c_order() -> None:
    tensor = to_tensor(np.array([[1.0, 2.0], [-1.0, 0.0]], np.float32))
    assert tensor.data.hex() == "0000803f00000040000080bf00000000"
    assert list(tensor.shape) == [2, 2]
    big = np.array([[1.0, 2.0], [-1.0, 0.0]], ">f4")
    assert to_tensor(big).data == tensor.data


def reference_bfloat16(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """The nearer of the two neighbours, the one with the even last bit when both are as near."""
    low = (x.view(np.uint32) & 0xFFFF0000).view(np.float32)
    high = ((x.view(np.uint32) & 0xFFFF0000) + 0x10000).view(np.float32)
    exact = x.astype(np.float64)
    below, above = np.abs(exact - low), np.abs(high.astype(np.float64) - exact)
    even = ((low.view(np.uint32) >> 16) & 1) == 0
    return np.where((below < above) | ((below == above) & even), low, high).astype(np.float32)


def test_bfloat16_rounds_to_nearest_even(rng: np.random.Generator) -> None:
    x = np.concatenate(
        [
            rng.standard_normal(5000).astype(np.float32),
            np.array([0.0, -0.0, 1e-40, 1.0 + 2**-8, 1.0 + 3 * 2**-8, -1.0 - 2**-8], np.float32),
        ]
    )
    back = from_tensor(to_tensor(x, dtype=tensor_pb2.DTYPE_BFLOAT16), name="q")
    np.testing.assert_array_equal(back, reference_bfloat16(x))
    again = from_tensor(to_tensor(back, dtype=tensor_pb2.DTYPE_BFLOAT16), name="q")
    np.testing.assert_array_equal(again, back)


def test_what_is_not_finite_stays_so() -> None:
    bits = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0x7F800000, 0xFF800000], np.uint32)
    x = bits.view(np.float32)
    back = from_tensor(to_tensor(x, dtype=tensor_pb2.DTYPE_BFLOAT16), name="q")
    assert np.isnan(back[:3]).all()
    np.testing.assert_array_equal(back[3:], [np.inf, -np.inf])


@pytest.mark.parametrize("dtype", [np.float64, np.int8, np.complex64, np.int32])
def test_other_arrays_are_refused(dtype: type[np.generic]) -> None:
    with pytest.raises(InvalidShape, match="float32 or float16"):
        to_tensor(np.zeros(3, dtype))  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [tensor_pb2.DTYPE_INT8, tensor_pb2.DTYPE_UNSPECIFIED, 77])
def test_other_encodings_are_refused(dtype: tensor_pb2.Dtype) -> None:
    with pytest.raises(InvalidRequest, match="float32, float16 or bfloat16"):
        from_tensor(tensor_pb2.Tensor(dtype=dtype, shape=[4], data=b"1234"), name="k")
    with pytest.raises(InvalidRequest, match="float32, float16 or bfloat16"):
        to_tensor(np.zeros(4, np.float32), dtype=dtype)


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ([-1], 4),
        ([-1, -1], 4),
        ([2, 3], 20),
        ([2, 3], 28),
        ([1], 0),
        ([], 0),
        ([], 8),
        ([0], 4),
        ([2**31], 0),
        ([2**63 - 1], 4),
        ([-(2**63)], 4),
        ([2**62, 4], 0),  # the product is 0 in 64 bits
        ([2**31 - 1, 2**31 - 1, 2**31 - 1], 4),
        ([0, 2**31 - 1, 2**31 - 1, 2**31 - 1], 0),
        ([1] * 9, 4),
        ([1] * 100_000, 4),
    ],
)
def test_hostile_shapes_are_refused(shape: list[int], size: int) -> None:
    tensor = tensor_pb2.Tensor(dtype=tensor_pb2.DTYPE_FLOAT32, shape=shape, data=bytes(size))
    with pytest.raises(InvalidShape, match=r"^k: ") as caught:
        from_tensor(tensor, name="k")
    assert len(caught.value.message) < 400
