import numpy as np
from numpy.typing import NDArray

def place(
    words: NDArray[np.int64],
    base: int,
    table: NDArray[np.int64],
    first: int,
    k: NDArray[np.float32],
    v: NDArray[np.float32],
) -> None: ...
def same(
    words: NDArray[np.int64],
    base: int,
    table: NDArray[np.int64],
    first: int,
    k: NDArray[np.float32],
    v: NDArray[np.float32],
) -> bool: ...
def damaged(words: NDArray[np.int64], base: int, table: NDArray[np.int64], first: int, count: int) -> int: ...
def read(
    words: NDArray[np.int64],
    base: int,
    table: NDArray[np.int64],
    first: int,
    k: NDArray[np.float32],
    v: NDArray[np.float32],
) -> None: ...
def attend(
    queries: list[
        tuple[
            NDArray[np.int64],
            int,
            NDArray[np.int64],
            int,
            float,
            NDArray[np.float32],
            NDArray[np.float32] | None,
            NDArray[np.float32] | None,
            NDArray[np.float32] | None,
            tuple[int, int, int] | None,
            tuple[float, NDArray[np.float32] | None, NDArray[np.float32] | None, int] | None,
        ]
    ],
) -> None: ...
def scores(
    query: tuple[
        NDArray[np.int64],
        int,
        NDArray[np.int64],
        int,
        float,
        NDArray[np.float32],
        NDArray[np.float32] | None,
        NDArray[np.float32] | None,
        NDArray[np.float32] | None,
        tuple[int, int, int] | None,
        tuple[float, NDArray[np.float32] | None, NDArray[np.float32] | None, int] | None,
    ],
    into: NDArray[np.float32],
    column_first: int,
) -> None: ...
def read_pages(
    words: NDArray[np.int64],
    base: int,
    table: NDArray[np.int64],
    start: int,
    stop: int,
    variant: int,
) -> int: ...
def in_range(x: NDArray[np.float32], limit: float) -> bool: ...
