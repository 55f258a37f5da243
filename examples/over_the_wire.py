"""The same over the network: start a server with `rondel serve`, then

python examples/over_the_wire.py [host:port]
"""

import sys

import numpy as np

from rondel import AttentionClient, StreamSpec

target = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7411"
spec = StreamSpec.uniform(layers=2, query_heads=8, kv_heads=2, head_dim=64, window=256, sinks=4)
rng = np.random.default_rng(0)

with AttentionClient(target) as client, client.open(spec) as stream:
    for _ in range(100):
        for layer in range(spec.layers):
            q = rng.standard_normal((1, 8, 64), np.float32)
            k, v = rng.standard_normal((2, 1, 2, 64), np.float32)
            out = stream.step(layer, q, k, v)  # [1, 8, 64]
    print(f"{stream.length} tokens in {stream.stats().bytes_resident} bytes on {client.info().tier} kernels")
