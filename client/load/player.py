"""Plays the lives of one stream, one operation at a time."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from rondel.client.aio_stream import AsyncStream
from rondel.client.load.arrays import Numbers
from rondel.client.load.check import Checker, Life
from rondel.client.load.connection import Connection
from rondel.client.load.faults import Cancels
from rondel.client.load.recorder import OK
from rondel.client.load.workload import Act, Kind, Move, Operation, Workload
from rondel.client.values import Array
from rondel.decoder.errors import (
    BudgetExceeded,
    DeadlineExpired,
    Draining,
    Overloaded,
    QuotaExceeded,
    RondelError,
    ServerUnavailable,
)

_AGAIN: Final = (ServerUnavailable, DeadlineExpired, Overloaded, Draining, QuotaExceeded, BudgetExceeded)
"""After these the stream is as it was, or has taken the call: making it again is right in either case. After
any other it is given up."""

_REPEATABLE: Final = (Act.STEP, Act.ATTEND, Act.TRUNCATE, Act.FORK, Act.ATTEND_FORK)
"""Calls that may be cancelled: made again they are known as the same. A cancelled open may leave a stream
behind that nobody has the handle of."""


@dataclass(frozen=True, slots=True)
class Company:
    """What the players of a worker have in common."""

    connection: Connection
    workload: Workload
    numbers: Numbers
    checker: Checker
    checked: Callable[[int, int], bool]
    """Whether the answers to a stream's life are to be compared."""
    cancels: Cancels
    opened: Callable[[str], None]
    """Told the handle of every stream that is opened."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an operation ended."""

    kind: Kind
    tokens: int
    disturbed: bool
    """Whether a fault of ours has hit it, or an earlier try of it failed."""
    error: RondelError | None = None

    @property
    def status(self) -> str:
        """``OK``, or the reason of the error."""
        return OK if self.error is None else self.error.reason


class Player:
    """One stream, opened again when its life is over. Used by one task."""

    def __init__(self, index: int, company: Company) -> None:
        self._index = index
        self._with = company
        self._lives = 0
        self._life = Life("", False)
        self._script: Iterator[Operation] = iter(())
        self._operation = Operation(Kind.OPEN)
        self._moves: deque[Move] = deque()
        self._disturbed = False
        self._stream: AsyncStream | None = None
        self._fork: AsyncStream | None = None

    @property
    def kind(self) -> Kind:
        """Of the operation that is under way, or was the last."""
        return self._operation.kind

    async def prepare(self) -> None:
        """Open the stream and store its first tokens, before the load. Raises what that raises."""
        for _ in range(1 + bool(self._with.workload.prompt)):
            if (error := (await self.play()).error) is not None:
                raise error

    async def play(self) -> Outcome:
        """The next operation, or what is left of one that failed and can be gone on with."""
        if not self._moves:
            self._begin_operation()
        operation = self._operation
        try:
            while self._moves:
                answer = await self._make(self._moves[0])
                self._with.checker.follow(self._life, self._moves.popleft(), answer)
        except RondelError as error:
            disturbed, self._disturbed = self._disturbed, True
            if not isinstance(error, _AGAIN):
                await self.leave()
            return Outcome(operation.kind, 0, disturbed, error)
        if operation.kind is Kind.CLOSE:
            self._with.checker.end(self._life)
        return Outcome(operation.kind, operation.tokens, self._disturbed)

    async def leave(self) -> None:
        """Close what is open; the next operation opens a stream."""
        for stream in (self._fork, self._stream):
            if stream is not None:
                with suppress(RondelError):  # an unreachable server frees it when its lease ends
                    await self._close(stream)
        self._fork = self._stream = None
        self._moves.clear()
        self._script = iter(())
        self._with.checker.end(self._life)

    def abandon(self) -> None:
        """Leave what is open to its lease on the server."""
        for stream in (self._fork, self._stream):
            if stream is not None:
                stream.leave_open()
        self._fork = self._stream = None

    def _begin_operation(self) -> None:
        operation = next(self._script, None)
        if operation is None:
            number, self._lives = self._lives, self._lives + 1
            checked = self._with.checked(self._index, number)
            self._life = self._with.checker.begin(f"{self._index}/{number}", checked)
            self._script = self._with.workload.life(self._index, number)
            operation = next(self._script)
        self._operation = operation
        self._moves.extend(self._with.workload.moves(operation, self._with.numbers))
        self._disturbed = False

    async def _make(self, move: Move) -> Array | None:
        """A call, and the same again when a fault of ours has ended it."""
        cancels, connection = self._with.cancels, self._with.connection
        after = cancels.after() if move.act in _REPEATABLE else None
        while True:
            breaks, began = connection.breaks, time.perf_counter()
            try:
                answer = await _cut_short(self._send(move), after)
            except ServerUnavailable:
                if connection.breaks == breaks:
                    raise
            except _WasCancelled:
                cancels.made += 1
                after = None
            else:
                cancels.took(time.perf_counter() - began)
                return answer
            self._disturbed = True

    async def _send(self, move: Move) -> Array | None:
        connection = self._with.connection
        if move.act is Act.OPEN:
            async with connection.unbroken():
                self._stream = await connection.open(self._with.workload.spec())
            self._with.opened(self._stream.handle)
            return None
        stream, fork, q, k, v = self._stream, self._fork, move.q, move.k, move.v
        if stream is None:
            raise RuntimeError(f"{move.act} before the stream was opened")
        match move.act:
            case Act.STEP if q is not None and k is not None and v is not None:
                return await stream.step(move.layer, q, k, v)
            case Act.ATTEND if q is not None:
                return await stream.attend(move.layer, q)
            case Act.APPEND if k is not None and v is not None:
                # Only ever the first tokens of a stream: made again, it goes on behind what has got there.
                await stream.append_all(k[:, stream.length :], v[:, stream.length :])
            case Act.TRUNCATE:
                await stream.truncate(move.length)
            case Act.FORK:
                self._fork = await stream.fork(max_new_tokens=0)
            case Act.ATTEND_FORK if fork is not None and q is not None:
                return await fork.attend(move.layer, q)
            case Act.CLOSE_FORK if fork is not None:
                await self._close(fork)
                self._fork = None
            case Act.CLOSE:
                await self._close(stream)
                self._stream = None
        return None

    async def _close(self, stream: AsyncStream) -> None:
        connection = self._with.connection
        async with connection.unbroken():
            if (
                stream.closed
            ):  # it says so as soon as it was asked to; whether the server has heard it is another matter
                await connection.close_handle(stream.handle)
            else:
                await stream.close()


class _WasCancelled(Exception):
    """A call was cancelled on purpose before it was answered."""


async def _cut_short(call: Coroutine[Any, Any, Array | None], after: float | None) -> Array | None:
    """The answer to a call that is cancelled ``after`` so many seconds. Raises _WasCancelled if it was."""
    if after is None:
        return await call
    task = asyncio.ensure_future(call)
    try:
        await asyncio.wait([task], timeout=after)
    finally:
        task.cancel()
    await asyncio.wait([task])
    if task.cancelled():
        raise _WasCancelled
    return task.result()
