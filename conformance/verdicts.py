"""What came of a case: the suite's own comparison, and how much of its tolerance was used."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attention import attention
from cases import Array, Case
from entries import Inexpressible
from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import RondelError


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One output against the answer expected of it."""

    output: str
    error: float
    """Largest |got - wanted|, 0 between equal infinities; inf = NaN, or another shape or dtype."""
    share: float
    """Largest |got - wanted| / (atol + rtol·|wanted|): the case agrees up to 1."""
    rtol: float
    atol: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A case, and its differences, or why there are none."""

    name: str
    opset: int
    sight: str = ""
    differences: tuple[Difference, ...] = ()
    explained: str | None = None
    """Why the case cannot be put to a session."""
    failed: str | None = None
    """What a session refused that it should have answered."""

    @property
    def passed(self) -> bool:
        """Whether every output agrees."""
        return bool(self.differences) and all(difference.share <= 1 for difference in self.differences)

    @property
    def worst(self) -> Difference | None:
        """The output that used most of its tolerance."""
        return max(self.differences, key=lambda difference: difference.share, default=None)


def verdict(case: Case, arena: Arena) -> Verdict:
    """Compute a case and compare every output that it names."""
    try:
        answer = attention(case, arena)
    except Inexpressible as reason:
        return Verdict(name=case.name, opset=case.opset, explained=str(reason))
    except RondelError as error:
        return Verdict(name=case.name, opset=case.opset, failed=f"{type(error).__name__}: {error.message}")
    differences = tuple(difference(case, name, answer.outputs[name]) for name in case.outputs)
    return Verdict(name=case.name, opset=case.opset, sight=answer.sight, differences=differences)


def difference(case: Case, output: str, got: Array) -> Difference:
    """How far an output is from the one expected, by ``numpy.testing.assert_allclose``'s rule."""
    wanted, rtol = case.outputs[output], case.relative_tolerance(output)
    error = share = np.inf
    if got.shape == wanted.shape and got.dtype == wanted.dtype:
        ours, theirs = got.astype(np.float64), wanted.astype(np.float64)
        with np.errstate(invalid="ignore"):  # inf - inf; NaN is counted below
            errors = np.where(ours == theirs, 0.0, np.abs(ours - theirs))
            shares = np.where(errors == 0.0, 0.0, errors / (case.atol + rtol * np.abs(theirs)))
        error, share = (float(np.where(np.isnan(x), np.inf, x).max(initial=0.0)) for x in (errors, shares))
    return Difference(output=output, error=error, share=share, rtol=rtol, atol=case.atol)
