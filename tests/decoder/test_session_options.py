"""Every option, alone and together, against the float64 reference on what the session stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from asked import Asked
from oracle import ENGINES, GAUSSIAN, Case, Stream

HEADS = ((4, 4), (6, 2), (4, 1))  # MHA, GQA, MQA
PLACES: Mapping[str, Mapping[str, Any]] = {
    "unwrapped": {"window": 128, "sinks": 3},
    "wrapped": {"window": 150, "sinks": 5, "reserve": 40},
    "unbounded": {"window": None, "max_length": 200},
    "two-sided": {"window": 40, "causal": False, "window_right": 25, "reserve": 40},
    "everything": {"window": None, "causal": False, "max_length": 200},
}
LENGTHS = {"unwrapped": 70, "wrapped": 700, "unbounded": 180, "two-sided": 500, "everything": 180}
KINDS = (
    *("nothing", "scale", "temperature", "softcap", "alibi", "bias", "bias of all", "bias of heads"),
    *("bias that hides", "mask", "mask of all", "ranges", "null_logit", "together"),
)


def drawn(name: str, heads: int, rows: int, low: int, high: int, seed: int = 11) -> dict[str, Any]:
    """Options of one kind, for rows that see positions in [low, high)."""
    rng, width = np.random.default_rng(seed), high - low
    per_head = rng.standard_normal(heads).astype(np.float32)
    wide = rng.standard_normal((heads, rows, width)).astype(np.float32)
    hidden = np.where(rng.random(wide.shape) < 0.4, np.float32(-np.inf), wide)
    runs = ((low, low + 2), (low + width // 3, low + width // 2), (max(low + 30, high - 20), high - 1))
    kinds: dict[str, dict[str, Any]] = {
        "nothing": {},
        "scale": {"scale": 0.2},
        "temperature": {"temperature": 2.5},
        "softcap": {"softcap": 1.5},
        "alibi": {"alibi": np.abs(per_head) * 0.1},
        "bias": {"bias": wide, "bias_first": low},
        "bias of all": {"bias": wide[:1, :1], "bias_first": low},
        "bias of heads": {"bias": wide[:, :1], "bias_first": low},
        "bias that hides": {"bias": hidden[:1], "bias_first": low},
        "mask": {"mask": np.isfinite(hidden), "bias_first": low},
        "mask of all": {"mask": np.isfinite(hidden[:1, :1]), "bias_first": low},
        "ranges": {"ranges": runs},
        "null_logit": {"null_logit": per_head * 3},
    }
    together: dict[str, Any] = {key: value for kind in kinds.values() for key, value in kind.items()}
    return {**kinds, "together": together}[name]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("tier", "storage"), ENGINES)
def test_options_mean_what_the_reference_says(place: str, tier: str, storage: str) -> None:
    for heads in HEADS:
        case = Case(tier=tier, storage=storage, heads=heads, **PLACES[place])
        stream = Stream(case).grow(LENGTHS[place])
        for rows in (1, 9):
            asked = Asked(stream, rows)
            for kind in KINDS:
                if place == "everything" and kind in ("alibi", "together"):
                    continue  # rows without a position
                asked.check(GAUSSIAN, **drawn(kind, heads[0], rows, *asked.reach))
