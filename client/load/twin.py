"""A stream of ours beside the server's, told the same: what the server should have answered."""

from __future__ import annotations

from typing import Final

import numpy as np

from rondel.client.load.workload import Act, Move
from rondel.client.values import Array
from rondel.decoder import kernels
from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import RondelError
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec

TOLERANCE: Final = 0.02
"""How far answers of two tiers may be apart where values are around 1: their products round differently."""

ARENA_BYTES: Final = 8 << 30
"""Most memory for the twins of a process; what finds no room there is not checked."""


class Twins:
    """Makes twins of a server's streams; of the same tier where this processor has it."""

    def __init__(self, spec: StreamSpec, tier: str, budget: int) -> None:
        self._spec = spec
        self._arena = Arena(budget=min(budget, ARENA_BYTES))  # what the server has room for has room here
        self.exact = tier in kernels.available()
        """Whether this processor has the server's tier."""
        self._tier = tier if self.exact else None

    def twin(self) -> Twin:
        """The twin of a stream that was just opened. Raises BudgetExceeded."""
        return Twin(DecoderSession(self._spec, self._arena, tier=self._tier), self.exact)


class Twin:
    """One stream's twin. Used by one thread."""

    def __init__(self, session: DecoderSession, exact: bool) -> None:
        self._session = session
        self._exact = exact

    def follow(self, move: Move, answer: Array | None) -> str | None:
        """Do what the stream did; what is wrong with its answer, or None."""
        try:
            expected = self._made(move)
        except RondelError as error:
            return f"{move.act} was carried out, but should have been refused: {error}"
        if expected is None:
            return None
        return self._difference(move, expected, answer)

    def close(self) -> None:
        """Give the memory back. Closing again does nothing."""
        self._session.close()

    def _made(self, move: Move) -> Array | None:
        q, k, v = move.q, move.k, move.v
        match move.act:
            case Act.STEP if q is not None and k is not None and v is not None:
                return self._session.step(move.layer, q, k, v)
            case Act.APPEND if k is not None and v is not None:
                self._session.append_all(k, v)
            case Act.ATTEND | Act.ATTEND_FORK if q is not None:  # a fork has what its origin has
                return self._session.attend(move.layer, q)
            case Act.TRUNCATE:
                self._session.truncate(move.length)
        return None

    def _difference(self, move: Move, expected: Array, answer: Array | None) -> str | None:
        where = f"{move.act} of layer {move.layer} at length {self._session.length}"
        if answer is None or answer.shape != expected.shape:
            got = None if answer is None else list(answer.shape)
            return f"{where}: expected {list(expected.shape)} numbers, got {got}"
        # As bytes: -0 is not 0, and NaN is never right, not even twice.
        if self._exact:
            wrong = answer.view(np.uint32) != expected.view(np.uint32)
        else:
            wrong = ~(np.abs(answer - expected) <= TOLERANCE)
        if not wrong.any():
            return None
        place = tuple(int(index) for index in np.argwhere(wrong)[0])
        return (
            f"{where}: {int(wrong.sum())} of {wrong.size} numbers differ, the first at {list(place)}: "
            f"expected {float(expected[place])!r}, got {float(answer[place])!r}"
        )
