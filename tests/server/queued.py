"""Operations for the scheduler's decisions, without a thread, a loop or a clock."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rondel.server.dispatch import Dispatch
from rondel.server.operation import Load, Operation


@dataclass
class Waiter:
    """Who waits for an operation, or has left."""

    name: str = ""
    gone: bool = False
    error: Exception | None = None

    def done(self) -> bool:
        return self.gone

    def cancelled(self) -> bool:
        return self.gone

    def set_result(self, result: Any) -> None:
        self.gone = True

    def set_exception(self, error: Exception) -> None:
        self.gone, self.error = True, error


def work(arguments: Any) -> Any:
    return arguments


def other_work(arguments: Any) -> Any:
    return arguments


def operation(
    name: str = "",
    *,
    tenant: str | None = "",
    cost: int = 1,
    deadline: float | None = None,
    joint: bool = False,
    kind: str = "",
    now: float = 0.0,
    how: Any = work,
) -> Operation:
    return Operation(how, name, Waiter(name), cost, deadline, tenant, now, Load(kind), joint=joint)


def names(operations: Iterable[Operation]) -> list[str]:
    """Those of operations made here. What was withdrawn has no argument any more."""
    return [str(getattr(each.future, "name", "")) for each in operations]


@dataclass
class Machine:
    """Carries out what a dispatch says, each kind of work in the time that it is said to take."""

    dispatch: Dispatch
    seconds: dict[str, float] = field(default_factory=dict)
    now: float = 0.0
    order: list[str] = field(default_factory=list)

    def turn(self) -> list[str]:
        """One batch; the names of what was carried out."""
        batch = self.dispatch.next(self.now)
        if batch is None:
            return []
        names = [each.argument for each in batch.operations]
        self.order += names
        self.now += sum(self.seconds.get(each.load.kind, 0.001) for each in batch.operations)
        self.dispatch.finish(batch, self.now)
        return names

    def all(self) -> list[list[str]]:
        """All batches, until nothing waits."""
        batches = []
        while self.dispatch.waiting_bytes or self.dispatch.waiting_seconds:
            batches.append(self.turn())
        return batches

    def learn(self, **seconds: float) -> None:
        """Teaches the model what kinds of work take."""
        self.seconds.update(seconds)
        for kind in seconds:
            for _ in range(50):
                self.dispatch.admit(operation(kind=kind, now=self.now), self.now)
                self.turn()
        self.order.clear()
