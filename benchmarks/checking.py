"""Every answer against the float64 oracle, computed from what the contestant really had as input."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from rondel.decoder import reference
from shapes import Floats, Problem

SAME: Final = 1e-4
"""Largest relative error when the arithmetic is float32 or better, whatever the storage is."""
SIXTEEN: Final = 1e-3
"""The same where queries and weights are rounded to 16 bits, as ours are over an int8 cache."""
HALF: Final = 2e-2
"""The same where queries or weights are rounded to 8 to 11 bits."""
HALF_SUMS: Final = 1e-1
"""The same where the weighted sum itself is kept in float16: it grows with the number of keys."""


class WrongAnswer(Exception):
    """A contestant computed something else: timing it would mean nothing."""


def oracle(problem: Problem) -> NDArray[np.float64]:
    """[N, Hq, D]: causal, the rows are the last N positions. One kv head at a time, to bound the memory."""
    group = problem.shape.group
    return np.concatenate(
        [
            reference.attend(
                problem.q[:, head * group : (head + 1) * group],
                problem.k[:, head : head + 1],
                problem.v[:, head : head + 1],
            )[0]
            for head in range(problem.shape.kv_heads)
        ],
        axis=1,
    )


def relative_error(got: Floats, want: NDArray[np.float64]) -> float:
    """‖got − want‖ / ‖want‖ of the worst head. Raises WrongAnswer for a wrong shape."""
    if got.shape != want.shape:
        raise WrongAnswer(f"shape {got.shape}, expected {want.shape}")
    error = np.linalg.norm(got.astype(np.float64) - want, axis=(0, 2))
    return float((error / np.linalg.norm(want, axis=(0, 2))).max())


class Oracle:
    """The right answers to a problem and its roundings, each computed once."""

    def __init__(self) -> None:
        self._answers: list[tuple[Problem, NDArray[np.float64]]] = []

    def check(self, name: str, got: Floats, computed_from: Problem, tolerance: float) -> float:
        """The relative error. Raises WrongAnswer beyond ``tolerance``, NaN included."""
        error = relative_error(got, self._answer(computed_from))
        if not error <= tolerance:
            raise WrongAnswer(f"{name}: relative error {error:.2g}, at most {tolerance:.2g} is allowed")
        return error

    def _answer(self, problem: Problem) -> NDArray[np.float64]:
        for known, answer in self._answers:
            if known is problem:
                return answer
        answer = oracle(problem)
        self._answers.append((problem, answer))
        return answer
