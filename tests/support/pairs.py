"""Remote streams beside sessions that never stop."""

from __future__ import annotations

from typing import Any

import numpy as np
from restarts import Token

from rondel.decoder.cache.arena import Arena
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec

SPEC = StreamSpec.uniform(layers=3, query_heads=4, kv_heads=2, head_dim=16, window=40, sinks=4, reserve=8)


class Pair:
    """A remote stream and a session that never stops, told the same."""

    def __init__(self, opener: Any, seed: int) -> None:
        self.stream = opener.open(SPEC)
        self._session = DecoderSession(SPEC, Arena(budget=16 << 20))
        self._token = Token(SPEC, seed)

    def begin(self, tokens: int) -> None:
        self._drawn = self._token.draw(tokens)

    def layer(self, layer: int) -> None:
        """The next layer's part of the tokens that were begun."""
        q, k, v = (array[layer] for array in self._drawn)
        out = self.stream.step(layer, q, k, v)
        assert np.array_equal(out, self._session.step(layer, q, k, v))

    def tokens(self, count: int, tokens: int = 1) -> None:
        for _ in range(count):
            self.begin(tokens)
            for layer in range(SPEC.layers):
                self.layer(layer)
        assert self.stream.length == self._session.length
