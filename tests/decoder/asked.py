"""Query rows with options against the float64 reference, on what the session says it stores."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from comparators import TINY, assert_near
from numpy.typing import NDArray
from oracle import ALWAYS, GAUSSIAN, LSE, Floats, Stream

from rondel import AttendOptions
from rondel.decoder import reference

Positions = NDArray[np.int64]


@dataclass
class Asked:
    """Rows of one stream, at ``first`` and on (None: the last ones)."""

    stream: Stream
    rows: int
    first: int | None = None
    q: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.q = self.stream.queries(self.rows)

    @property
    def held(self) -> int:
        return len(self.stream.k)

    @property
    def at(self) -> int:
        return self.held - self.rows if self.first is None else self.first

    @property
    def reach(self) -> tuple[int, int]:
        """[low, high): what a bias must cover."""
        case = self.stream.case
        if not case.causal and case.window is None:
            return 0, self.held
        low = 0 if case.window is None or case.sinks else max(0, self.at - case.window + 1)
        return low, min(self.held, self.at + self.rows + case.window_right)

    @property
    def keys(self) -> Positions:
        """Positions that any row sees by its place."""
        case, (low, high) = self.stream.case, self.reach
        start = low if case.window is None else max(low, self.at - case.window + 1)
        return np.concatenate([np.arange(min(case.sinks, start)), np.arange(start, high)]).astype(np.int64)

    def sight(self) -> dict[str, Any]:
        """The reference's words for what the case's rows see. It has no two sides with ``causal=False``: there
        that means everything."""
        case = self.stream.case
        if not case.causal and case.window is None:
            return {"causal": False}
        return {
            "window": case.window,
            "window_right": case.window_right,
            "sinks": case.sinks,
            "position": self.at,
        }

    def explained(self, **options: Any) -> reference.Stages:
        keys, low = self.keys, options.pop("bias_first", 0)
        k, _ = self.stream.held(keys)
        for name in ("bias", "mask"):
            if options.get(name) is not None:
                options[name] = options[name][..., keys - low]
        options = {"scale": self.stream.case.score_scale, **options}
        return reference.explain(self.q, k, key_positions=keys, **self.sight(), **options)

    def check(self, bound: dict[str, float] | None = None, **options: Any) -> tuple[Floats, Floats]:
        """The session's answer, after it was found to be the reference's."""
        storage, keys = self.stream.case.storage, self.keys
        asked = AttendOptions(**options)
        out, lse = self.stream.session.attend(0, self.q, position=self.first, options=asked, return_lse=True)
        stages = self.explained(**options)
        v = self.stream.held(keys)[1]
        group = self.stream.case.heads[0] // self.stream.case.heads[1]
        largest = np.repeat(np.abs(v).max(axis=(0, 2), initial=0.0).astype(np.float64), group)
        limit = (bound or GAUSSIAN)[storage] * largest[None, :, None] + TINY
        name = f"{self.stream.case} rows {self.rows} at {self.first} {sorted(options)}"
        want = reference.weighted_sum(stages.weights, v) if keys.size else np.zeros(out.shape)
        assert_near(out, want, limit, f"{name}: out")
        size = np.maximum(1.0, np.abs(np.nan_to_num(stages.lse, neginf=0.0)))
        assert_near(lse, stages.lse, LSE[storage] * size, f"{name}: lse")
        return out, lse


__all__ = ["ALWAYS", "Asked"]
