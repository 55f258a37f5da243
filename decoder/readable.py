"""What a stream holds, read back: tokens as they are stored, and whether given ones are."""

from __future__ import annotations

import numpy as np

from rondel.decoder.arrays import Floats
from rondel.decoder.cache.arena import Arena
from rondel.decoder.cache.ring import GroupRings
from rondel.decoder.call import LayerCall
from rondel.decoder.kernels import Kernels
from rondel.decoder.view import StreamView


class ReadableStream(StreamView):
    """A stream in an arena, and the kernels for it. What is here changes nothing."""

    _arena: Arena
    _kernels: Kernels

    def matches(self, layer: int, position: int, k: Floats, v: Floats) -> bool:
        """Whether the tokens stored from ``position`` on are, to the byte, what k and v are stored as.

        Raises what :meth:`read` raises, and InvalidShape, ValueRange.
        """
        with self._turn:
            call = LayerCall.of_tokens(layer, self._ring(layer), k, v, self._kernels)
            self._extent.check_stored(layer, position, len(call.k))
            call.rotate(position)
            words, table = call.rings.words, call.rings.table(layer)
            return self._kernels.same(words, self._arena.base, table, position, call.k, call.v)

    def read(self, layer: int, start: int, stop: int) -> tuple[Floats, Floats]:
        """Stored tokens start to stop - 1 as float32, dequantised: k [n, Hkv, Dk] (turned), v [n, Hkv, Dv].

        Raises:
            SequenceGap: the layer does not hold all these positions.
            DuplicateTooOld: the ring has passed them.
        """
        with self._turn:
            rings = self._ring(layer)
            self._extent.check_stored(layer, start, stop - start)
            k = np.empty((stop - start, rings.group.kv_heads, rings.group.key_dim), np.float32)
            v = np.empty((stop - start, rings.group.kv_heads, rings.group.value_dim), np.float32)
            self._kernels.read(rings.words, self._arena.base, rings.table(layer), start, k, v)
            return k, v

    def _ring(self, layer: int) -> GroupRings:
        return self._rings[self.spec.group_index(layer)]
