"""Many calls that no honest client makes, each judged; and what was found."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import grpc
import grpc.aio
from endings import Ending
from shots import CHANGING, Shot
from targets import SORTS, Sort, Target, close
from wire import Wire

from rondel.v1.attention_pb2_grpc import AttentionServiceStub

WHOLLY_EVERY: Final = 8
"""Every how many calls all stored bytes of the stream aimed at are compared, not only its numbers."""
MOST_TOLD: Final = 20
"""Faults that are told in words; the others are only counted."""


@dataclass(slots=True)
class Found:
    """What a fuzzer has found."""

    seed: int
    calls: int = 0
    crashes: int = 0
    hangs: int = 0
    changed: int = 0
    undocumented: int = 0
    endings: dict[str, Counter[str]] = field(default_factory=dict)
    """How calls ended, by method."""
    told: list[str] = field(default_factory=list)

    @property
    def faults(self) -> int:
        return self.crashes + self.hangs + self.changed + self.undocumented

    def note(self, kind: str, shot: Shot, what: str) -> None:
        """Count a fault, and say how to see it again."""
        setattr(self, kind, getattr(self, kind) + 1)
        if len(self.told) < MOST_TOLD:
            sent = ", ".join(raw[:160].hex() for raw in shot.requests[:3])
            again = f"--seed {self.seed} --call {shot.number}"
            self.told.append(f"{kind}: {shot.method} {shot.manner}: {what} ({again}; sent {sent})")


class Fuzz:
    """Attackers of one server. ``alive`` says whether its process is still there."""

    def __init__(
        self,
        address: str,
        seed: int,
        *,
        attackers: int = 4,
        alive: Callable[[], bool] = lambda: True,
        methods: frozenset[str] = frozenset(),
    ) -> None:
        self.found = Found(seed)
        self._address = address
        self._attackers = attackers
        self._alive = alive
        self._methods = methods
        self._numbers: Iterator[int] = itertools.count()
        self._end = 0.0
        self._pause = 0.0

    async def run(
        self, *, seconds: float, calls: int | None = None, first: int = 0, rate: float | None = None
    ) -> Found:
        """Attack for so long, or with so many calls, at most ``rate`` per second."""
        self._end = time.monotonic() + seconds
        self._numbers = iter(range(first, first + calls)) if calls is not None else itertools.count(first)
        self._pause = 0.0 if rate is None else self._attackers / rate
        await asyncio.gather(*(self._attack() for _ in range(self._attackers)))
        if not self._alive():
            self.found.crashes = max(1, self.found.crashes)
        return self.found

    async def _attack(self) -> None:
        wire = Wire(self._address)
        stub = AttentionServiceStub(wire.channel)
        targets = {sort: Target(stub, sort) for sort in SORTS}
        try:
            for number in self._numbers:
                if time.monotonic() >= self._end or not self._alive():
                    return
                shot = Shot.aimed(self.found.seed, number)
                if self._methods and shot.method not in self._methods:
                    continue
                if not await self._shoot(wire, stub, shot, targets):
                    return
                if self._pause:
                    await asyncio.sleep(self._pause)
        finally:
            for target in targets.values():
                try:
                    await target.give_up()
                except grpc.aio.AioRpcError as error:
                    self._lost(Shot.aimed(self.found.seed, -1), error)
            await wire.close()

    async def _shoot(
        self, wire: Wire, stub: AttentionServiceStub, shot: Shot, targets: dict[Sort, Target]
    ) -> bool:
        """Make a call and look at what it has done; whether the server is still there."""
        found, target = self.found, targets[shot.sort]
        try:
            shot.load()
            shot.aim(await target.ready(), target.closed)
            found.calls += 1
            ending = await wire.send(shot)
            found.endings.setdefault(shot.method, Counter())[ending.reason] += 1
            if not self._alive():
                found.note("crashes", shot, f"the server has ended ({ending.reason})")
                return False
            if ending.hung:
                found.note("hangs", shot, "no answer before the deadline")
            if ending.undocumented is not None:
                found.note("undocumented", shot, ending.undocumented)
            await self._after(stub, shot, ending, target)
            for each in targets.values():
                await each.keep()
        except grpc.aio.AioRpcError as error:
            return self._lost(shot, error)
        return True

    async def _after(self, stub: AttentionServiceStub, shot: Shot, ending: Ending, target: Target) -> None:
        for handle in ending.made:
            await close(stub, handle)
        if ending.accepted and shot.method in CHANGING:
            await target.give_up()
            return
        changed = await target.changed(wholly=shot.number % WHOLLY_EVERY == 0)
        if changed is not None:
            self.found.note("changed", shot, f"{changed} ({ending.reason})")
            await target.give_up()

    def _lost(self, shot: Shot, error: grpc.aio.AioRpcError) -> bool:
        """A call of ours, not an attack, has failed; whether the server is still there."""
        if not self._alive():
            self.found.note("crashes", shot, f"the server has ended: {error.details()}")
            return False
        kind = "hangs" if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED else "changed"
        self.found.note(kind, shot, f"an honest call failed: {error.code()} {error.details()}")
        return True
