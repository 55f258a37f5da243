"""What must hold in every schedule. The names are those that a violation is reported under.

exactly-once
    At every restart and before its end a stream has, in every layer and to the byte, the tokens that its
    client has sent, each once and in its place; of the one request that the client has no answer to, all or
    none. A request id makes one stream.
acknowledged
    What an answer says was stored is stored when the answer is made, and a restart on the file loses nothing
    below a committed length that any answer has told.
same-answer
    Answers are to the bit those of a session that was given each token once, however often a request was
    made.
order
    Requests that name a stream are carried out in the order in which they arrived at the server.
deadline
    No work begins at or after its deadline.
whole
    A request that fails, expires or is cancelled in the queue changes nothing; one that has begun changes all
    that it says, or nothing.
fair
    While two tenants both have something waiting, the time that they get differs by at most one turn of each;
    a turn is one batch.
bounded
    Requests that wait have at most ``queue_bytes``, unless there is only one; and no tenant has more waiting
    than ``max_queue_seconds`` of estimated time before its last one.
lease
    An expiry ends exactly the streams that no request has used for the length of the lease.
answered
    Every request that arrives is answered or refused, unless its caller or the server has gone; every client
    comes to its end once the faults are over.
given-back
    When all streams have ended the arena has nothing reserved, and the queue says that nothing waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

NAMES: Final = tuple(line for line in (__doc__ or "").splitlines() if line and " " not in line)


class Violation(Exception):
    """A property does not hold."""

    def __init__(self, name: str, text: str) -> None:
        if name not in NAMES:
            raise ValueError(f"no property {name!r}")
        super().__init__(f"{name}: {text}")
        self.name = name


class Court:
    """Where violations are brought: the code that is looked at may catch what is raised inside it."""

    def __init__(self) -> None:
        self.first: Exception | None = None
        self.adjourn: Callable[[], object] = lambda: None
        """Called for the first one: what comes after it does not count."""

    def open(self, adjourn: Callable[[], object]) -> None:
        """Begins anew."""
        self.first, self.adjourn = None, adjourn

    def bring(self, error: Exception) -> None:
        """Something that should not have been."""
        if self.first is None:
            self.first = error
            self.adjourn()


COURT: Final = Court()


def hold(name: str, true: bool, text: str) -> None:
    """Raises Violation unless ``true``."""
    if not true:
        violation = Violation(name, text)
        COURT.bring(violation)
        raise violation
