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
def read(
    words: NDArray[np.int64],
    base: int,
    table: NDArray[np.int64],
    first: int,
    k: NDArray[np.float32],
    v: NDArray[np.float32],
) -> None: ...
def attend(
    words: NDArray[np.int64],
    base: int,
    table: NDArray[np.int64],
    first: int,
    scale: float,
    q: NDArray[np.float32],
    out: NDArray[np.float32],
    lse: NDArray[np.float32],
) -> None: ...
def in_range(x: NDArray[np.float32], limit: float) -> bool: ...
