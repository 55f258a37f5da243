"""What can be said of a row's weights in a few numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rondel.decoder.errors import InvalidRequest
from rondel.decoder.reference.arrays import Array
from rondel.decoder.reference.forward import Stages


def entropy(stages: Stages) -> Array:
    """-Σ α log α of every row and head, [N, Hq], in nats: 0 = one key has it all, log M = all alike.

    α are the weights renormalised over the visible keys: the null logit's share is left out, so it does not
    change the entropy. A weight of 0 adds nothing; a row that sees nothing has entropy 0.
    """
    lse = np.where(np.isneginf(stages.lse), 0.0, stages.lse).T[..., None]
    log_alpha = stages.masked - lse
    gain = np.exp(log_alpha) * np.where(np.isneginf(log_alpha), 0.0, log_alpha)
    total: Array = np.maximum(-gain.sum(axis=-1).T, 0.0)  # rounding may fall below 0, and -0.0 looks wrong
    return total


def top_k(stages: Stages, count: int) -> tuple[NDArray[np.int64], Array]:
    """The keys with the largest weights: (positions int64 [N, Hq, count], weights [N, Hq, count]).

    Largest first; of equal weights the smaller position first. Only visible keys count, also those whose
    weight underflowed to 0; where there are fewer than ``count``, position -1 and weight 0 fill up.

    Raises:
        InvalidRequest: ``count`` is below 1.
    """
    if count < 1:
        raise InvalidRequest(f"count must be at least 1, got {count}", field="count")
    ranked = np.where(np.isneginf(stages.masked), -1.0, stages.weights)
    ranked = np.pad(ranked, [(0, 0), (0, 0), (0, count)], constant_values=-1.0)
    positions = np.pad(stages.key_positions, (0, count), constant_values=-1)
    # Positions ascend, so a stable sort leaves equal weights in the right order.
    order = np.argsort(-ranked, axis=-1, kind="stable")[..., :count]
    best = np.take_along_axis(ranked, order, axis=-1)
    return (
        np.where(best < 0, -1, positions[order]).transpose(1, 0, 2),
        np.maximum(best, 0.0).transpose(1, 0, 2),
    )
