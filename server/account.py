"""What is known of a call while it is at work: for its line in the log, for metrics and for traces."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import grpc

log = logging.getLogger("rondel.server")

T = TypeVar("T")


def safely(tell: Callable[..., T], *arguments: Any) -> T | None:
    """What ``tell(*arguments)`` returns; None if it raises, which is logged: whoever watches calls must not
    end them, nor keep results from others."""
    try:
        return tell(*arguments)
    except Exception:
        log.exception("watching a call has failed")
        return None


class Listener(Protocol):
    """Is told of a call's messages and work as they happen."""

    def received(self) -> None: ...
    def sent(self) -> None: ...
    def worked(self, arrived: float, began: float, ended: float) -> None: ...


@dataclass(slots=True, eq=False)
class Account:
    """One call. Only the event loop's thread uses it."""

    service: str
    method: str
    peer: str
    began: float
    """On ``time.monotonic``, as all times here."""
    listeners: tuple[Listener, ...] = ()
    tenant: str = ""
    request: Any = None
    """The message of a call that begins with one."""
    messages_received: int = 0
    messages_sent: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0
    operations: int = 0
    """How many the scheduler has carried out for it."""
    queue_seconds: float = 0.0
    """How long they waited, together."""
    kernel_seconds: float = 0.0
    """How long they took; an operation carried out with others counts with the time of all."""
    code: grpc.StatusCode = grpc.StatusCode.OK
    reason: str = ""
    """That of the error, if it is one of ours."""
    trace_id: str = ""
    """Of its trace, if that is recorded; hexadecimal."""

    def received(self, size: int) -> None:
        """A message of so many bytes has come."""
        self.messages_received += 1
        self.bytes_received += size
        for listener in self.listeners:
            safely(listener.received)

    def sent(self, size: int) -> None:
        """A message of so many bytes was sent."""
        self.messages_sent += 1
        self.bytes_sent += size
        for listener in self.listeners:
            safely(listener.sent)

    def worked(self, arrived: float, began: float, ended: float) -> None:
        """An operation of the call was carried out: when it was submitted, when it began and ended."""
        self.operations += 1
        self.queue_seconds += began - arrived
        self.kernel_seconds += ended - began
        for listener in self.listeners:
            safely(listener.worked, arrived, began, ended)


CURRENT: Final[ContextVar[Account | None]] = ContextVar("rondel_account", default=None)
"""The account of the call that this task, or the task that started it, works for. Set once in a call's own
task and never reset: a context ends with its task."""
