"""One stream of the load, and what was made of it: a fork, a snapshot."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from contextlib import suppress

from rondel.client.aio_stream import AsyncStream
from rondel.client.load.check import Life
from rondel.client.load.connection import Connection
from rondel.client.load.workload import Act, Move
from rondel.client.values import Array
from rondel.decoder.errors import RondelError, ServerInternal
from rondel.decoder.spec import StreamSpec


class Voice:
    """A stream that is opened again and again. Used by one task; every call may be made again."""

    def __init__(
        self, index: int, spec: StreamSpec, connection: Connection, opened: Callable[[str], None]
    ) -> None:
        self.index = index
        """Its number among all streams of the load."""
        self.life = Life("", False)
        self._spec = spec
        self._connection = connection
        self._opened = opened
        self._stream: AsyncStream | None = None
        self._fork: AsyncStream | None = None
        self._snapshot = io.BytesIO()
        self._moved: AsyncStream | None = None

    async def send(self, move: Move) -> Array | None:
        """One call; its answer, where it has one."""
        connection, q, k, v = self._connection, move.q, move.k, move.v
        if move.act is Act.OPEN:
            self._stream = await connection.open(self._spec)
            self._opened(self._stream.handle)
            return None
        stream, fork, moved = self._current(), self._fork, self._moved
        match move.act:
            case Act.STEP if q is not None and k is not None and v is not None:
                return await stream.step(move.layer, q, k, v)
            case Act.ATTEND if q is not None:
                return await stream.attend(move.layer, q)
            case Act.APPEND if k is not None and v is not None:
                await stream.append_all(k, v)
            case Act.TRUNCATE:
                await stream.truncate(move.length)
            case Act.FORK:
                self._fork = await stream.fork(max_new_tokens=0)
                self._opened(self._fork.handle)
            case Act.ATTEND_FORK if fork is not None and q is not None:
                return await fork.attend(move.layer, q)
            case Act.CLOSE_FORK if fork is not None:
                await fork.close()
                self._fork = None
            case Act.EXPORT:
                self._snapshot = io.BytesIO()
                await stream.export(self._snapshot)
            case Act.IMPORT:
                self._snapshot.seek(0)
                self._moved, self._stream = stream, await connection.import_stream(self._snapshot)
                self._opened(self._stream.handle)
                self._snapshot = io.BytesIO()
            case Act.CLOSE_MOVED if moved is not None:
                await moved.close()
                self._moved = None
            case Act.CLOSE:
                await stream.close()
                self._stream = None
        return None

    @staticmethod
    async def step_batch(connection: Connection, moves: Sequence[tuple[Voice, Move]]) -> list[Array | None]:
        """A step of one layer of many streams in one call. Raises the first error of one of them."""
        layer, streams = moves[0][1].layer, [voice._current() for voice, _ in moves]
        arrays = [[getattr(move, name) for _, move in moves] for name in ("q", "k", "v")]
        answers: list[Array | None] = []
        for outcome in await connection.step_batch(layer, streams, *arrays):
            if outcome.error is not None:
                raise outcome.error
            answers.append(outcome.out)
        return answers

    async def leave(self) -> None:
        """Close what is open."""
        for stream in self._open():
            with suppress(RondelError):  # an unreachable server frees it when its lease ends
                await stream.close()
        self._fork = self._moved = self._stream = None

    def abandon(self) -> None:
        """Leave what is open to its lease on the server."""
        for stream in self._open():
            stream.leave_open()
        self._fork = self._moved = self._stream = None

    def _current(self) -> AsyncStream:
        if self._stream is None:
            raise ServerInternal(f"stream {self.index} of the load is used before it was opened")
        return self._stream

    def _open(self) -> list[AsyncStream]:
        return [stream for stream in (self._fork, self._moved, self._stream) if stream is not None]
