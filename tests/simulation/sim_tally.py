"""How often what has happened: schedules in which nothing does prove nothing."""

from __future__ import annotations

from collections import Counter

from rondel.server.observer import Observer

KINDS = (
    *("carried out", "in a batch with others", "in pieces"),
    *("expired", "cancelled", "refused: overloaded", "refused: deadline_expired"),
    *("made room for others", "repeated", "killed", "stopped", "ended by its lease"),
    *("answered twice", "stale", "conversations", "conversations cut"),
)


class Tally(Observer):
    """Counts what it is told."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def note(self, kind: str, times: int = 1) -> None:
        """Something that only the simulation knows of."""
        self.counts[kind] += times

    def refused(self, reason: str, tenant: str) -> None:
        self.note(f"refused: {reason}")

    def expired(self, tenant: str) -> None:
        self.note("expired")

    def cancelled(self, tenant: str) -> None:
        self.note("cancelled")

    def carried_out(self, operations: int, seconds: float) -> None:
        self.note("carried out", operations)
        if operations > 1:
            self.note("in a batch with others", operations)
