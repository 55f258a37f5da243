"""Specifications, tokens and snapshots for tests that move streams over the wire."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from rondel.decoder.cache.arena import Arena
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec

SPEC = StreamSpec.uniform(layers=2, query_heads=4, kv_heads=2, head_dim=32, window=100, sinks=4, reserve=8)
LARGE = StreamSpec.uniform(
    layers=2, query_heads=2, kv_heads=2, head_dim=256, storage="float32", max_length=3000
)
"""24 MiB when full: more than a connection takes before anything is read."""


def tokens(spec: StreamSpec, count: int, seed: int = 0) -> tuple[Any, Any, Any]:
    group, rng = spec.groups[0], np.random.default_rng(seed)
    return tuple(
        rng.standard_normal((spec.layers, count, heads, group.key_dim), np.float32)
        for heads in (group.query_heads, group.kv_heads, group.kv_heads)
    )


def snapshot(spec: StreamSpec = SPEC, count: int = 500) -> bytes:
    file = io.BytesIO()
    with DecoderSession(spec, Arena(budget=256 << 20)) as session:
        _, k, v = tokens(spec, count)
        session.append_all(k, v)
        session.snapshot(file)
    return file.getvalue()


RAW = snapshot()


def exported(stream: Any) -> bytes:
    file = io.BytesIO()
    assert stream.export(file) == len(file.getvalue())
    return file.getvalue()
