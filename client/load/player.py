"""Plays the lives of a batch of streams, one operation at a time."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rondel.client.load.arrays import Numbers
from rondel.client.load.check import Checker
from rondel.client.load.connection import Connection
from rondel.client.load.faults import Cancels
from rondel.client.load.recorder import OK
from rondel.client.load.voice import Voice
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

_PAUSE: Final = 0.05
"""Seconds before a call that may be made again is, while nothing is measured."""

Part = tuple[Voice, Move]
Call = Sequence[Part]
"""What is sent at once: one stream's part, or a step's of all."""
Answers = list[Array | None]
"""One for each part."""


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
    """Streams that are opened again when their life is over. Used by one task."""

    def __init__(self, indices: Sequence[int], company: Company) -> None:
        self._with = company
        spec = company.workload.spec()
        self._voices = [Voice(index, spec, company.connection, company.opened) for index in indices]
        self._lives = 0
        self._script: Iterator[Operation] = iter(())
        self._operation = Operation(Kind.OPEN)
        self._calls: deque[Call] = deque()
        self._disturbed = False

    @property
    def kind(self) -> Kind:
        """Of the operation that is under way, or was the last."""
        return self._operation.kind

    async def prepare(self, patience: float = 0.0) -> None:
        """Open the streams and store their first tokens, before the load. Raises what that raises; what may
        pass, only when it has not passed after ``patience`` seconds."""
        end = time.perf_counter() + patience
        for _ in range(1 + bool(self._with.workload.prompt)):
            while (error := (await self.play()).error) is not None:
                if not isinstance(error, _AGAIN) or time.perf_counter() >= end:
                    raise error
                await asyncio.sleep(_PAUSE)

    async def play(self) -> Outcome:
        """The next operation, or what is left of one that failed and can be gone on with."""
        if not self._calls:
            self._begin_operation()
        operation, checker = self._operation, self._with.checker
        try:
            while self._calls:
                answers = await self._make(self._calls[0])
                for (voice, move), answer in zip(self._calls.popleft(), answers, strict=True):
                    checker.follow(voice.life, move, answer)
        except RondelError as error:
            disturbed, self._disturbed = self._disturbed, True
            if not isinstance(error, _AGAIN):
                await self.leave()
            return Outcome(operation.kind, 0, disturbed, error)
        if operation.kind is Kind.CLOSE:
            self._end_lives()
        return Outcome(operation.kind, operation.tokens * len(self._voices), self._disturbed)

    async def leave(self) -> None:
        """Close what is open; the next operation opens streams."""
        for voice in self._voices:
            await voice.leave()
        self._calls.clear()
        self._script = iter(())
        self._end_lives()

    def abandon(self) -> None:
        """Leave what is open to its lease on the server."""
        for voice in self._voices:
            voice.abandon()

    def _begin_operation(self) -> None:
        company = self._with
        operation = next(self._script, None)
        if operation is None:
            number, self._lives = self._lives, self._lives + 1
            for voice in self._voices:
                checked = company.checked(voice.index, number)
                voice.life = company.checker.begin(f"{voice.index}/{number}", checked)
            self._script = company.workload.life(self._voices[0].index, number)
            operation = next(self._script)
        self._operation = operation
        parts = [
            [(voice, move) for move in company.workload.calls(operation, company.numbers, member)]
            for member, voice in enumerate(self._voices)
        ]
        if operation.kind is Kind.STEP:
            self._calls.extend(zip(*parts, strict=True))  # layer by layer, all streams at once
        else:
            self._calls.extend([part] for of_voice in parts for part in of_voice)
        self._disturbed = False

    def _end_lives(self) -> None:
        for voice in self._voices:
            self._with.checker.end(voice.life)

    async def _make(self, call: Call) -> Answers:
        """A call, and the same again when a fault of ours has ended it."""
        cancels, connection = self._with.cancels, self._with.connection
        after = cancels.after() if self._may_be_cut(call[0][1].act) else None
        while True:
            breaks, began = connection.breaks, time.perf_counter()
            try:
                answers = await _cut_short(self._send(call), after)
            except ServerUnavailable:
                if connection.breaks == breaks:
                    raise
            except _WasCancelled:
                cancels.made += 1
                after = None
            else:
                cancels.took(time.perf_counter() - began)
                return answers
            self._disturbed = True

    def _may_be_cut(self, act: Act) -> bool:
        # Whether the call, made again, is known as the same. An import leaves another stream behind; and of a
        # prompt longer than the window the first tokens are no longer there to compare.
        return act is not Act.IMPORT and not (
            act is Act.APPEND and self._with.workload.prompt > self._with.workload.window
        )

    async def _send(self, call: Call) -> Answers:
        if len(call) > 1:
            return await Voice.step_batch(self._with.connection, call)
        return [await voice.send(move) for voice, move in call]


class _WasCancelled(Exception):
    """A call was cancelled on purpose before it was answered."""


async def _cut_short(
    call: Coroutine[Any, Any, list[Array | None]], after: float | None
) -> list[Array | None]:
    """The answers to a call that is cancelled ``after`` so many seconds. Raises _WasCancelled if it was."""
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
