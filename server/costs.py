"""How long operations take: a running model, corrected by what they took.

The time of an operation is taken to be m·u, where u is what its load would take on a machine of round numbers
(so much per call, item, byte and product) and m how much slower this one is at each. m is fitted per kind of
work by least squares of the relative errors, with weights that halve every few dozen observations, and never
below zero. One sweep of coordinate descent per observation stands in for solving: what is observed again and
again is learned, what never varies stays where it was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from rondel.server.operation import Load

_ROUND: Final = (1e-4, 1e-5, 2e-10, 2e-11)
"""Seconds per call, item, byte and product to begin with."""
_KEPT: Final = 0.97
"""What an observation still weighs when the next one comes."""
_STEADY: Final = 0.01
"""How much is left as it is, where observations say little about it."""
_MOST: Final = 8.0
_CREDIBLE: Final = 3
"""What took more than so many times what was expected is not believed, until it has happened so often on end:
a machine that stood still for a while is not a slow one."""
_LEAST_SECONDS: Final = 1e-3
_MANY: Final = 16
"""So much is gathered before it counts as an observation: for short work the model must cost little."""

_AXES: Final = range(len(_ROUND))
Vector = list[float]


class CostModel:
    """Seconds for a load. Used under the scheduler's lock."""

    def __init__(self) -> None:
        self._kinds: defaultdict[str, _Kind] = defaultdict(_Kind)

    def estimate(self, load: Load) -> float:
        """Seconds that an operation will take."""
        m = self._kinds[load.kind].factors
        return (
            m[0] * _ROUND[0]
            + m[1] * _ROUND[1] * load.items
            + m[2] * _ROUND[2] * load.bytes
            + m[3] * _ROUND[3] * load.products
        )

    def observe(self, loads: Iterable[Load], seconds: float) -> None:
        """Operations of one kind have taken so long together."""
        name, calls, items, size, products = "", 0, 0, 0, 0
        for load in loads:
            name = load.kind
            calls += 1
            items += load.items
            size += load.bytes
            products += load.products
        self._kinds[name].gather((calls, items, size, products), seconds)


class _Kind:
    """The fit for one kind of work."""

    def __init__(self) -> None:
        self.factors: Vector = [1.0] * len(_ROUND)
        self._squares = [[0.0] * len(_ROUND) for _ in _AXES]
        self._targets: Vector = [0.0] * len(_ROUND)
        self._gathered: Vector = [0.0] * len(_ROUND)
        self._seconds = 0.0
        self._count = 0
        self._surprises: Vector = []

    def gather(self, amounts: tuple[int, ...], seconds: float) -> None:
        gathered = self._gathered = [
            sum_ + amount * each for sum_, amount, each in zip(self._gathered, amounts, _ROUND, strict=True)
        ]
        self._seconds += seconds
        self._count += 1
        if self._seconds >= _LEAST_SECONDS or self._count >= _MANY:
            self._fit(gathered, self._seconds)
            self._gathered, self._seconds, self._count = [0.0] * len(_ROUND), 0.0, 0

    def _fit(self, u: Vector, seconds: float) -> None:
        m, squares, targets = self.factors, self._squares, self._targets
        expected = max(1e-7, sum(m[axis] * u[axis] for axis in _AXES))
        ratio = seconds / expected
        if ratio > _MOST:
            self._be_surprised(ratio)
            return
        self._surprises.clear()
        u = [part / expected for part in u]
        for i in _AXES:
            row = squares[i]
            for j in _AXES:
                row[j] = _KEPT * row[j] + u[i] * u[j]
            targets[i] = _KEPT * targets[i] + u[i] * ratio
        for i in _AXES:
            row = squares[i]
            inertia = _STEADY * row[i] + 1e-12
            others = sum(row[j] * m[j] for j in _AXES if j != i)
            m[i] = max(0.0, (targets[i] + inertia * m[i] - others) / (row[i] + inertia))

    def _be_surprised(self, ratio: float) -> None:
        self._surprises.append(ratio)
        if len(self._surprises) == _CREDIBLE:
            slower = min(self._surprises)
            self._surprises.clear()
            # What was learned on a machine so much faster would outweigh all that comes.
            self.factors = [max(factor, 1e-3) * slower for factor in self.factors]
            self._squares = [[0.0] * len(_ROUND) for _ in _AXES]
            self._targets = [0.0] * len(_ROUND)
