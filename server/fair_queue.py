"""A queue that is fair between tenants, and first come, first served within each.

Start-time fair queueing (Goyal, Vin, Cheng 1996) with the time that was really taken: every tenant has a
count of the seconds it has used, divided by its weight; the one that has used least is next. A tenant that
comes back is put level with the one whose turn it is, so that nobody saves up turns. While two tenants both
have something waiting, what they get differs by at most a turn of each.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from rondel.server.operation import Operation

LEAST_SECONDS: Final = 1e-6
"""What taking an operation counts as at the least: many that cost nothing are a cost."""


@dataclass(slots=True, eq=False)
class Line:
    """What a tenant has waiting."""

    weight: float
    used: float
    """Seconds by its weight."""
    waiting: deque[Operation] = field(default_factory=deque)
    seconds: float = 0.0
    """Estimates of what waits, withdrawn operations left out; so ``bytes``."""
    bytes: int = 0
    place: Place | None = None
    """Its entry in the heap of those that have something waiting; other entries of it are out of date."""


Place = tuple[float, int, int, Line]
"""What a line has used, the number of its first operation, and a number that makes two places differ."""


class FairQueue:
    """Operations by tenant, and those of nobody. ``weight`` says how large a tenant's share is beside others'
    (above 0)."""

    def __init__(self, weight: Callable[[str], float]) -> None:
        self.weight = weight
        self._lines: dict[str, Line] = {}
        self._heap: list[Place] = []
        self._nobodys: deque[Operation] = deque()
        self._numbers = count(1)
        self._places = count()
        self._turn = 0.0
        """What the tenant whose turn was last had used when it began: never less than before."""
        self.seconds = 0.0
        """Estimates of all that waits."""
        self.bytes = 0
        self.waiting = 0
        """Operations, withdrawn ones and nobody's left out."""
        self._held = 0
        """Those in lines, withdrawn ones too."""

    def line(self, tenant: str) -> Line | None:
        """What a tenant has waiting, if it was here lately."""
        return self._lines.get(tenant)

    def lines(self) -> Iterable[Line]:
        """Of all tenants that were here lately."""
        return self._lines.values()

    def add(self, operation: Operation) -> None:
        """Behind all of its tenant's."""
        operation.number = next(self._numbers)
        if operation.tenant is None:
            self._nobodys.append(operation)
            return
        line = self._line(operation.tenant)
        if not line.waiting:
            line.used = max(line.used, self._turn)
        line.waiting.append(operation)
        self._held += 1
        self._count(line, operation, 1)
        self._settle(line)

    def put_back(self, operation: Operation) -> None:
        """In front of all of its tenant's: a part of it was carried out."""
        if operation.tenant is None:
            self._nobodys.appendleft(operation)
            return
        line = self._line(operation.tenant)
        line.waiting.appendleft(operation)
        self._held += 1
        self._count(line, operation, 1)
        self._settle(line)

    def withdraw(self, operation: Operation) -> None:
        """It counts as gone, and so does its request; :meth:`take` finds it when its turn comes."""
        if not operation.withdrawn:
            operation.withdrawn = True
            operation.argument = operation.account = None
            if operation.tenant is not None:
                self._count(self._line(operation.tenant), operation, -1)

    def charge(self, tenant: str, seconds: float) -> None:
        """A tenant has used so many seconds more than it was thought to, or less."""
        line = self._lines.get(tenant)
        if line is not None:
            line.used += seconds / line.weight
            self._settle(line)

    def ahead(self, tenant: str) -> float:
        """Seconds, by the estimates, that begin before what a tenant would add now."""
        line = self._lines.get(tenant)
        own = 0.0 if line is None else line.seconds
        if own == self.seconds:
            return own
        if line is None:
            end = self._turn
        else:
            end = (line.used if line.waiting else max(line.used, self._turn)) + own / line.weight
        others = (other for other in self._lines.values() if other is not line and other.waiting)
        return own + sum(min(other.seconds, max(0.0, (end - other.used) * other.weight)) for other in others)

    def take(
        self,
        over: Callable[[Operation], bool],
        joins: Callable[[list[Operation], Operation], bool | None],
    ) -> tuple[list[Operation], list[Operation]]:
        """The operation whose turn it is and those that go with it, and the ones that were found to be over.

        If the first one is joint, ``joins(together, other)`` is asked of the first one in each tenant's line,
        in the order of their turns: None = nothing more has room.
        """
        left: list[Operation] = []
        if self._nobodys_turn():
            return [self._nobodys.popleft()], left
        together: list[Operation] = []
        aside: list[Line] = []
        while (line := self._next(over, left)) is not None:
            joined = joins(together, line.waiting[0]) if together else True
            if joined is None:
                break
            if joined:
                together.append(self._taken(line))
                if not together[0].joint:
                    break
            else:
                line.place = None
                heapq.heappop(self._heap)
                aside.append(line)
        for line in aside:
            self._settle(line)
        if not together and self._nobodys_turn():
            together.append(self._nobodys.popleft())
        return together, left

    def take_all(self) -> list[Operation]:
        """Everything, in order of arrival."""
        everything = [*self._nobodys]
        for line in self._lines.values():
            everything += line.waiting
        everything.sort(key=lambda operation: operation.number)
        self._nobodys.clear()
        self.forget()
        return everything

    def forget(self) -> None:
        """Nothing waits: what was used before does not count any more."""
        self._lines.clear()
        self._heap.clear()
        self._turn = self.seconds = 0.0
        self.bytes = self.waiting = self._held = 0

    def __bool__(self) -> bool:
        """Whether :meth:`take` finds anything."""
        return bool(self._held or self._nobodys)

    def _line(self, tenant: str) -> Line:
        line = self._lines.get(tenant)
        if line is None:
            line = self._lines[tenant] = Line(self.weight(tenant), self._turn)
        return line

    def _nobodys_turn(self) -> bool:
        if not self._nobodys:
            return False
        oldest = min(
            (line.waiting[0].number for line in self._lines.values() if line.waiting), default=math.inf
        )
        return self._nobodys[0].number < oldest

    def _next(self, over: Callable[[Operation], bool], left: list[Operation]) -> Line | None:
        """The tenant whose turn it is; what is over in front of its line goes to ``left``."""
        while self._heap:
            line = self._heap[0][3]
            if self._heap[0] is not line.place:
                heapq.heappop(self._heap)
                continue
            operation = line.waiting[0]
            if not (operation.withdrawn or over(operation)):
                return line
            left.append(line.waiting.popleft())
            self._held -= 1
            if not operation.withdrawn:
                self._count(line, operation, -1)
            self._settle(line)
        return None

    def _taken(self, line: Line) -> Operation:
        self._turn = max(self._turn, line.used)
        operation = line.waiting.popleft()
        self._held -= 1
        self._count(line, operation, -1)
        line.used += max(operation.estimate, LEAST_SECONDS) / line.weight
        self._settle(line)
        return operation

    def _count(self, line: Line, operation: Operation, sign: int) -> None:
        line.seconds += sign * operation.estimate
        line.bytes += sign * operation.cost
        self.seconds += sign * operation.estimate
        self.bytes += sign * operation.cost
        self.waiting += sign

    def _settle(self, line: Line) -> None:
        """Puts a line where it belongs in the heap."""
        if not line.waiting:
            line.place = None
            line.seconds = 0.0  # rounding must not add up over months
            return
        if line.place is not None and line.place[:2] == (line.used, line.waiting[0].number):
            return
        line.place = (line.used, line.waiting[0].number, next(self._places), line)
        heapq.heappush(self._heap, line.place)
