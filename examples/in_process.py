"""Attention in this process: one stream, a token at a time, memory bounded by window and sinks.

python examples/in_process.py
"""

import numpy as np

from rondel import Arena, DecoderSession, StreamSpec

spec = StreamSpec.uniform(layers=2, query_heads=8, kv_heads=2, head_dim=64, window=256, sinks=4, reserve=64)
rng = np.random.default_rng(0)

with DecoderSession(spec, Arena(budget=64 << 20)) as session:
    for _ in range(1000):
        for layer in range(spec.layers):
            q = rng.standard_normal((1, 8, 64), np.float32)
            k, v = rng.standard_normal((2, 1, 2, 64), np.float32)
            out = session.step(layer, q, k, v)  # [1, 8, 64]
    stats = session.stats()

print(f"{stats.length} tokens in {stats.bytes_resident} bytes, {stats.bits_per_value:.2f} bits per value")
