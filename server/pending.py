"""An operation of a Decode call between its message and its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from rondel.decoder.errors import InvalidRequest
from rondel.server import loads
from rondel.server.bound import Bindings, Bound
from rondel.server.errors import known, to_status
from rondel.server.operation import Operation
from rondel.v1 import attention_pb2 as pb

PLAIN_BYTES: Final = 4096
"""More than a result without tensors has, be it an error with all its details."""


Told = Callable[["Pending", Any, Exception | None], None]


class Pending:
    """The scheduler settles it as it would a future. But ``told`` is called at once, with the reply or the
    error: the callbacks of futures take a turn of the loop of their own. It raises nothing."""

    __slots__ = (
        *("bound", "deadline", "kind", "load", "message", "operation"),
        *("reply_bytes", "response", "short", "size", "work"),
        *("_cancelled", "_settled", "_told"),
    )

    def __init__(self, message: pb.DecodeOperation, size: int, deadline: float | None, told: Told) -> None:
        self.message = message
        self.kind = message.WhichOneof("operation") or ""
        self.size = size
        """Bytes of the message."""
        self.deadline = deadline
        self.reply_bytes = PLAIN_BYTES
        """Most bytes of the result."""
        self.work: Any = None
        """What the scheduler is to carry out; None: nothing, the result is there."""
        self.load = loads.SHORT
        """What that will cost."""
        self.short = False
        """Whether it may be carried out at once, if that would not take long."""
        self.operation: Operation | None = None
        """What the scheduler has for it."""
        self.bound: Bound | None = None
        """The stream that it binds, or closes."""
        self.response = pb.DecodeResponse()
        """Where the result goes."""
        self.response.results.add().op_id = message.op_id
        self._told = told
        self._settled = self._cancelled = False

    @property
    def result(self) -> pb.DecodeResult:
        """The result, once it is there."""
        return self.response.results[0]

    def fail(self, error: Exception, bindings: Bindings) -> None:
        """Make an error the result."""
        result = self.result
        result.Clear()
        result.op_id = self.message.op_id
        result.status.CopyFrom(to_status(known(error)))
        if self.bound is not None and self.kind in ("open", "attach"):
            bindings.release(self.bound)

    def finish(self, reply: Any, bindings: Bindings, most: int) -> None:
        """Make a reply the result. Raises InvalidRequest if that is of more bytes than ``most``."""
        if self.kind != "step":  # whose result was filled where it is
            getattr(self.result, self.kind).CopyFrom(reply)
        if self.bound is not None and self.kind == "close":
            bindings.release(self.bound)
        size = self.response.ByteSize()
        if size > most:
            raise InvalidRequest(
                f"the operation was carried out, but its result has {size} bytes and the call takes at most "
                f"{most}; send fewer rows or items at a time",
                field="max_response_bytes",
            )

    # What the scheduler wants of a future.

    def done(self) -> bool:
        return self._settled or self._cancelled

    def cancelled(self) -> bool:
        return self._cancelled

    def set_result(self, reply: Any) -> None:
        self._settled = True
        self._told(self, reply, None)

    def set_exception(self, error: Exception) -> None:
        self._settled = True
        self._told(self, None, error)

    def cancel(self) -> None:
        """If it has not begun, it never does; and nobody is told. What the queue still has of it is small."""
        self._cancelled = True
        self.message, self.response, self.work = pb.DecodeOperation(), pb.DecodeResponse(), None
