"""A Decode call without its input and output: calls become operations and messages, results become answers.

aio_decode.py and sync_decode.py carry the messages; so credits, numbers and bindings are written once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from google.protobuf.message import DecodeError, Message

from rondel.client import calls
from rondel.client.calls import Call, Detached
from rondel.client.errors import item_error
from rondel.client.limits import MESSAGE_AIM, Limits
from rondel.decoder.errors import (
    DeadlineExpired,
    QuotaExceeded,
    RondelError,
    ServerInternal,
    ServerUnavailable,
    from_reason,
)
from rondel.v1 import attention_pb2 as pb

_EXTRA: Final = pb.DecodeRequest(received_op_id=(1 << 64) - 1, max_response_bytes=(1 << 32) - 1).ByteSize()
"""Most bytes of a message besides its operations."""


class Answer(Protocol):
    """Where an answer goes: a future, of asyncio or of threads."""

    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


class Ticket:
    """An operation that is on its way."""

    __slots__ = ("answer", "dropped", "handle", "kind", "op_id", "raw", "ref")

    def __init__(
        self, op_id: int, kind: str, raw: bytes, ref: int, handle: str, answer: Answer | None
    ) -> None:
        self.op_id = op_id
        self.kind = kind
        self.raw = raw
        """A message with it alone. Messages one behind the other are one with all their operations."""
        self.ref = ref
        self.handle = handle
        self.answer = answer
        self.dropped = False


class Conversation:
    """One Decode call. Any thread may use it.

    ``wake`` is called when there may be a message to send; ``greeted`` gets None when the server has said its
    first word, or the call has ended without one.
    """

    def __init__(self, target: str, limits: Limits, wake: Callable[[], None], greeted: Answer) -> None:
        self._target = target
        self._limits = limits
        self._wake = wake
        self._greeted = greeted
        self._lock = threading.RLock()
        self._error: RondelError | None = None
        self._over = False
        self._window = 0
        self._most_operations = 1
        self._op_id = 0
        self._ref = 0
        self._refs: dict[str, int] = {}
        self._unsent: deque[Ticket] = deque()
        self._sent: dict[int, Ticket] = {}
        self._sent_bytes = 0
        self._received = 0
        self._untold = 0
        self._said_limit = False

    @property
    def usable(self) -> bool:
        """Whether operations may be added."""
        return self._error is None

    @property
    def over(self) -> bool:
        """Whether there is nothing to be sent any more."""
        return self._over

    def binds(self, handle: str) -> bool:
        """Whether a stream has a number in the call."""
        return handle in self._refs

    def add(self, call: Call, timeout: float, answer: Answer) -> Ticket:
        """Have a call carried out, and its reply or error given to ``answer``.

        Raises:
            Detached: its streams have no numbers in this Decode call.
            QuotaExceeded: it is larger than this client sends.
            ServerUnavailable: there is no use in waiting for this Decode call.
        """
        with self._lock:
            if self._error is not None:
                raise _again(self._error)
            ticket = self._ticket(call, timeout, answer)
            self._unsent.append(ticket)
        self._wake()
        return ticket

    def drop(self, ticket: Ticket) -> None:
        """Nobody waits for that any more. If it was not sent, it never is."""
        with self._lock:
            ticket.dropped = True
            ticket.answer = None
            if ticket.op_id not in self._sent:
                ticket.raw = b""

    def next_message(self) -> bytes | None:
        """What is to be sent now, if anything is."""
        with self._lock:
            if self._error is not None or not self._window:
                return None
            parts: list[bytes] = []
            size = 0
            while self._unsent and len(parts) < self._most_operations:
                ticket = self._unsent[0]
                if ticket.dropped:
                    self._unsent.popleft()
                    continue
                more = len(ticket.raw)
                if parts and size + more > min(MESSAGE_AIM, self._limits.in_force - _EXTRA):
                    break
                if self._sent_bytes and self._sent_bytes + more > self._window:
                    break  # the server may read no further
                self._unsent.popleft()
                self._sent[ticket.op_id] = ticket
                self._sent_bytes += more
                size += more
                parts.append(ticket.raw)
            if not self._said_limit and parts:
                self._said_limit = True
                parts.append(pb.DecodeRequest(max_response_bytes=self._limits.own).SerializeToString())
            # Half of the window may be untold of; with a quarter the server never comes to wait for the news.
            if self._untold and (parts or self._untold >= self._window // 4):
                parts.append(pb.DecodeRequest(received_op_id=self._received).SerializeToString())
                self._untold = 0
            return b"".join(parts) or None

    def receive(self, raw: bytes) -> None:
        """Take a response."""
        try:
            response = pb.DecodeResponse.FromString(raw)
        except DecodeError as error:
            self.end(ServerInternal(f"the server at {self._target} sent what is no response: {error}"))
            return
        with self._lock:
            if response.HasField("hello"):
                self._greet(response.hello)
            for result in response.results:
                self._settle(result)
            if response.results:
                self._received = response.results[-1].op_id
                self._untold += len(raw)
            if response.HasField("go_away"):
                self._leave(response.go_away.last_op_id)
        self._wake()

    def end(self, error: RondelError) -> None:
        """The call is over: what is not answered fails with that. What came first counts."""
        if isinstance(error, DeadlineExpired):  # the server's patience; an operation may have time left
            error = ServerUnavailable(error.message, target=self._target)
        with self._lock:
            self._over = True
            if self._error is None:
                self._error = error
            left = [*self._sent.values(), *self._unsent]
            self._sent.clear()
            self._unsent.clear()
            self._refs.clear()
            for ticket in left:
                _give(ticket.answer, error=_again(error))
            _give(self._greeted)
        self._wake()

    def _greet(self, hello: pb.DecodeHello) -> None:
        self._window = max(1, hello.limits.decode_window_bytes)
        self._most_operations = max(1, hello.limits.max_step_items)
        self._limits.start, self._limits.server = hello.start_id, hello.limits.max_message_bytes
        _give(self._greeted)

    def _ticket(self, call: Call, timeout: float, answer: Answer | None) -> Ticket:
        kind = calls.KINDS[call.method.path]
        message = pb.DecodeRequest()
        operation = message.operations.add()
        handle = self._name(operation, kind, call.request)
        self._op_id += 1
        operation.op_id = self._op_id
        operation.timeout_ms = min((1 << 32) - 1, max(1, int(timeout * 1000)))
        raw = message.SerializeToString()
        if len(raw) > self._limits.in_force - _EXTRA:  # which would end the call, and so what others do
            side = "client" if self._limits.in_force == self._limits.own else "server"
            raise QuotaExceeded(
                f"a request of {len(raw)} bytes is larger than this {side}'s max_message_bytes, "
                f"{self._limits.in_force}; send fewer tokens at a time, or have a larger one",
                requested=len(raw),
                limit=self._limits.in_force,
                side=side,
            )
        return Ticket(self._op_id, kind, raw, operation.stream_ref, handle, answer)

    def _name(self, operation: pb.DecodeOperation, kind: str, request: Any) -> str:
        """Make a request an operation on streams by their numbers; the handle, where it is about one."""
        if kind == "step":
            handles = [item.stream.handle for item in request.items]
            self._check_bound(handles)
            operation.step.CopyFrom(request)
            for item, handle in zip(operation.step.items, handles, strict=True):
                item.ClearField("stream")
                item.stream_ref = self._refs[handle]
            return ""
        handle = "" if kind == "open" else request.stream.handle
        if kind in ("open", "attach"):
            self._ref += 1
            operation.stream_ref = self._ref
        else:
            self._check_bound([handle])
            operation.stream_ref = self._refs[handle]
        part = getattr(operation, kind)
        part.CopyFrom(request)
        if kind not in ("open", "attach"):
            part.ClearField("stream")
        return handle

    def _check_bound(self, handles: list[str]) -> None:
        missing = {handle for handle in handles if handle not in self._refs}
        if missing:
            raise Detached(missing)

    def _settle(self, result: pb.DecodeResult) -> None:
        ticket = self._sent.pop(result.op_id, None)
        if ticket is None:
            return
        self._sent_bytes -= len(ticket.raw)
        if result.status.code:
            _give(ticket.answer, error=item_error(result.status))
            return
        if ticket.kind == "release":  # nobody waits for it, and it has no reply
            return
        reply: Message = getattr(result, ticket.kind)
        if ticket.kind in ("open", "attach"):
            stream = result.open if ticket.kind == "open" else result.attach.stream
            self._bind(stream.handle, ticket.ref)
        elif ticket.kind == "close":
            self._refs.pop(ticket.handle, None)
        _give(ticket.answer, reply)

    def _bind(self, handle: str, ref: int) -> None:
        before = self._refs.get(handle)
        self._refs[handle] = ref
        if before is not None:
            message = pb.DecodeRequest()
            self._op_id += 1
            message.operations.add(op_id=self._op_id, stream_ref=before).release.SetInParent()
            self._unsent.append(Ticket(self._op_id, "release", message.SerializeToString(), before, "", None))

    def _leave(self, last_op_id: int) -> None:
        """The server reads no further; what it has read it answers."""
        error = ServerUnavailable(f"the server at {self._target} is about to stop", target=self._target)
        self._error = error
        unread = [self._sent.pop(op_id) for op_id in list(self._sent) if op_id > last_op_id]
        for ticket in (*unread, *self._unsent):
            _give(ticket.answer, error=_again(error))
        self._unsent.clear()


def _again(error: RondelError) -> RondelError:
    """The error once more: raised in several places, one would collect the traces of all."""
    return from_reason(error.reason, error.message, error.facts)


def _give(answer: Answer | None, result: Any = None, *, error: RondelError | None = None) -> None:
    if answer is None or answer.done():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(result)
