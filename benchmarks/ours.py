"""Rondel's side: a problem stored in a session, attended through the public call and through each tier."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from checking import SAME, SIXTEEN
from rondel.decoder import kernels, pool
from rondel.decoder.cache.arena import Arena
from rondel.decoder.machine import cores
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec
from shapes import Floats, Problem, Shape

INT8: Final = "rondel int8"
"""The row that all ratios are about: int8 storage, through DecoderSession.attend."""
FLOAT32: Final = "rondel float32"
CHUNK: Final = 1024


def all_threads() -> int:
    """Processors that this process may use."""
    return cores().in_force


def spec_of(
    shape: Shape, storage: str, *, layers: int = 1, room: int = 0, window: int | None = None, rows: int = 1
) -> StreamSpec:
    """A stream of this shape with room for more tokens; a window is whole for so many rows."""
    return StreamSpec.uniform(
        layers=layers,
        query_heads=shape.query_heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.dim,
        window=window,
        reserve=rows if window else 0,
        max_length=shape.keys + room,
        storage=storage,
    )


def arena_for(spec: StreamSpec, streams: int = 1) -> Arena:
    """An arena with room for so many streams of this spec."""
    group = spec.groups[0]
    token = group.kv_heads * (group.key_dim + group.value_dim + 8)
    token *= 4 if group.storage == "float32" else 1
    # A page just above half a slab takes the whole slab: twice the bytes of the tokens are always enough.
    return Arena(budget=2 * streams * spec.layers * (spec.length_limit + 256) * token + (64 << 20))


class Stored:
    """A problem in a session: the memory that every row of ours and every read loop of one storage shares."""

    def __init__(self, problem: Problem, storage: str) -> None:
        self.problem, self.storage = problem, storage
        spec = spec_of(problem.shape, storage)
        self._arena = arena_for(spec)
        self.session = DecoderSession(spec, self._arena)
        for start in range(0, problem.shape.keys, CHUNK):
            part = slice(start, start + CHUNK)
            self.session.append(0, problem.k[part], problem.v[part])
        self._rounded = Problem(problem.shape, problem.q, *self.session.read(0, 0, problem.shape.keys))
        self.tolerance = SAME if storage == "float32" else SIXTEEN
        self._rings = self.session._rings[0]
        self._table = self._rings.table(0)
        self._pages = len(self._table) - 1

    @property
    def computed_from(self) -> Problem:
        """The problem as the session holds it."""
        return self._rounded

    @property
    def pages(self) -> int:
        """Ring pages."""
        return self._pages

    @property
    def bytes_read(self) -> int:
        """Bytes that attention over all keys reads: codes and scales of whole pages."""
        page = self._rings.layout.page
        token = page.key_pad + page.value_pad
        token = 4 * token if self.storage == "float32" else token + 4
        return self._pages * page.slots * page.kv_heads * token

    def attend(self, tier: str) -> tuple[Callable[[], object], Floats]:
        """The kernel of one tier on the stored bytes, with nothing around it, and where its answer goes."""
        loaded, q = kernels.load(tier), self.problem.q
        out, lse = np.empty_like(q), np.empty(q.shape[:2], np.float32)
        first, scale = self.problem.shape.keys - len(q), self._rings.group.score_scale
        query: kernels.Query = (
            self._rings.words,
            self._arena.base,
            self._table,
            first,
            scale,
            q,
            out,
            lse,
            None,
            None,
            None,
        )
        return partial(loaded.attend, [query]), out

    def reader(self, variant: int, start: int, stop: int) -> Callable[[], int]:
        """A read loop of the tier in force over ring pages ``start`` to ``stop`` - 1."""
        words, table, base = self._rings.words, self._table, self._arena.base
        return partial(kernels.KERNELS.read_pages, words, base, table, start, stop, variant)

    def close(self) -> None:
        """Give the memory back."""
        self.session.close()


class SessionRow:
    """The public call; ``threads`` stands in the name when it is not what all others have."""

    def __init__(self, stored: Stored, *, threads: int | None = None) -> None:
        self.name = f"rondel {stored.storage}" + (f", {threads} threads" if threads else "")
        self.threads = threads
        self.tolerance, self.storage = stored.tolerance, stored.storage
        self._stored = stored

    def prepare(self, problem: Problem, threads: int) -> None:
        pool.set_threads(self.threads or threads)

    def run(self) -> object:
        self._out = self._stored.session.attend(0, self._stored.problem.q)
        return self._out

    def answer(self) -> Floats:
        return self._out

    def computed_from(self) -> Problem:
        return self._stored.computed_from

    def close(self) -> None:
        del self._out


class KernelRow:
    """One tier's kernel, called with pointers."""

    threads: int | None = None

    def __init__(self, stored: Stored, tier: str) -> None:
        self.name = f"rondel {stored.storage}, kernel {tier}"
        self.tolerance, self.storage = stored.tolerance, stored.storage
        self._stored = stored
        self._call, self._out = stored.attend(tier)

    def prepare(self, problem: Problem, threads: int) -> None:
        pool.set_threads(threads)

    def run(self) -> object:
        return self._call()

    def answer(self) -> Floats:
        return self._out

    def computed_from(self) -> Problem:
        return self._stored.computed_from

    def close(self) -> None:
        del self._call
