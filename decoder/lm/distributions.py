"""Next-token distributions side by side: rows of logits [rows, vocab] in, numbers per row out, in float64."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rondel.decoder.errors import ValueRange

Wide = NDArray[np.float64]


class Rows(NamedTuple):
    """What two distributions say of each predicted token; every array is [rows]."""

    kl: Wide
    """KL(p ‖ q), nats."""
    same_top: NDArray[np.bool_]
    """Whether both hold the same token for the likeliest."""
    surprise_p: Wide
    """−log p of the token that did come, nats; the exponential of its mean is the perplexity."""
    surprise_q: Wide
    """−log q of the same."""


def compare(p: Wide, q: Wide, tokens: NDArray[np.int64]) -> Rows:
    """Compare rows of log-probabilities [rows, vocab], of which ``tokens`` [rows] came true."""
    return Rows(kl_divergence(p, q), same_top(p, q), surprise(p, tokens), surprise(q, tokens))


def log_softmax(logits: NDArray[np.float32]) -> Wide:
    """Natural logs of the probabilities, [rows, vocab].

    Raises:
        ValueRange: a logit is not finite.
    """
    wide = logits.astype(np.float64)
    top = wide.max(axis=-1, keepdims=True)
    # A NaN anywhere makes both extremes NaN.
    if not (np.isfinite(top).all() and np.isfinite(wide.min())):
        raise ValueRange("the model's logits are not finite")
    wide -= top
    wide -= np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    return wide


def kl_divergence(p: Wide, q: Wide) -> Wide:
    """KL(p ‖ q) = Σ p (log p − log q) of each row, nats; p and q are log-probabilities.

    Kullback and Leibler, "On information and sufficiency", 1951. Never below 0 but for rounding (about
    1e-15), and 0 where the two rows are the same numbers.
    """
    each: Wide = (np.exp(p) * (p - q)).sum(axis=-1)
    return each


def same_top(p: Wide, q: Wide) -> NDArray[np.bool_]:
    """Whether the likeliest token is the same. Ties go to the lower id, as in greedy choice."""
    each: NDArray[np.bool_] = p.argmax(axis=-1) == q.argmax(axis=-1)
    return each


def surprise(p: Wide, tokens: NDArray[np.int64]) -> Wide:
    """−log p of each row's token, nats."""
    each: Wide = -np.take_along_axis(p, tokens[:, None], axis=-1)[:, 0]
    return each
