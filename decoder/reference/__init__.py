"""What Rondel computes, written to be read: attention and int8 storage in float64 NumPy.

This is the specification. The kernels are tested against it and never the other way round; nothing here is
fast and nothing on the hot path imports it. ``docs/attention.md`` walks through it.

Letters: N query rows, M keys, Hq query heads, Hkv kv heads, G = Hq / Hkv, Dk and Dv the dims of keys and
values, W window, S sinks. Arrays are [tokens, heads, dim].
"""

from __future__ import annotations

from rondel.decoder.reference.arrays import Array
from rondel.decoder.reference.comparisons import additive_scores, hard_lookup, project
from rondel.decoder.reference.forward import Stages, attend, explain, scores, softmax, weighted_sum, weights
from rondel.decoder.reference.gradients import Gradients, backward, softmax_jacobian
from rondel.decoder.reference.options import Options
from rondel.decoder.reference.partials import merge_partials
from rondel.decoder.reference.rotary import rotate
from rondel.decoder.reference.storage import SMALLEST_SCALE, dequantise, quantise_rows, store_centred
from rondel.decoder.reference.summaries import entropy, top_k
from rondel.decoder.reference.visibility import distances, sink_position, visible

__all__ = [
    "SMALLEST_SCALE",
    "Array",
    "Gradients",
    "Options",
    "Stages",
    "additive_scores",
    "attend",
    "backward",
    "dequantise",
    "distances",
    "entropy",
    "explain",
    "hard_lookup",
    "merge_partials",
    "project",
    "quantise_rows",
    "rotate",
    "scores",
    "sink_position",
    "softmax",
    "softmax_jacobian",
    "store_centred",
    "top_k",
    "visible",
    "weighted_sum",
    "weights",
]
