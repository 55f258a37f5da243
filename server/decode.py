"""Decode calls: operations come in, results go out, and neither waits for the other."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from google.protobuf.message import DecodeError

from rondel.decoder.errors import DeadlineExpired, InvalidRequest, RondelError
from rondel.server.bound import Bindings
from rondel.server.config import ServerConfig
from rondel.server.decode_operations import Operations
from rondel.server.door import NOTHING_DONE, Call
from rondel.server.duplex import Duplex
from rondel.server.patience import Patience
from rondel.server.pending import Pending
from rondel.server.steps import of_operation
from rondel.server.window import Window
from rondel.v1 import attention_pb2 as pb

MERGED_BYTES: Final = 256 << 10
"""Results are sent together up to so many bytes: in larger messages the first ones wait for the last, and
what is being written is there three times."""


class Decoding:
    """Carries out Decode calls."""

    def __init__(
        self, config: ServerConfig, operations: Operations, hello: Callable[[], pb.DecodeHello]
    ) -> None:
        self._config = config
        self._operations = operations
        self._hello = hello

    async def converse(self, duplex: Duplex, call: Call) -> None:
        """One call, from its beginning to its end."""
        conversation = Conversation(self._config, self._operations, duplex, call)
        await conversation.run(pb.DecodeResponse(hello=self._hello()))


class Conversation:
    """A Decode call. The handler's task writes; a second one reads; and the scheduler's results come as
    callbacks, so an operation has no task. They meet in ``_held``, ``_running`` and ``_ready``.

    The reading one must never write: it would wait for a client that first sends all its operations.
    """

    def __init__(self, config: ServerConfig, operations: Operations, duplex: Duplex, call: Call) -> None:
        self._loop = asyncio.get_running_loop()
        self._operations = operations
        self._duplex = duplex
        self._call = call
        self._bindings = Bindings(config.max_streams)
        self._window = Window(config.decode_window_bytes, copies=2 * MERGED_BYTES)
        self._most_operations = config.max_step_items
        # A client that keeps to the rules has never more waiting here, so that what it tells is always read.
        self._most_held = config.decode_window_bytes + config.max_message_bytes
        self._largest = self._most = config.max_message_bytes
        self._stall = config.stall_timeout_seconds
        self._patience = Patience(self._stall or None)
        self._last = 0
        # Messages as they came, with their time of arrival; `_first` is what the first one says, `_at` its
        # next operation. The others are parsed again when their turn has come: parsed, they take up to fifty
        # times their room.
        self._held: deque[tuple[bytes, float]] = deque()
        self._held_bytes = 0
        self._first: pb.DecodeRequest | None = None
        self._at = 0
        self._next: Pending | None = None
        self._running: set[Pending] = set()
        self._ready: deque[tuple[int, bytes]] = deque()
        self._room = asyncio.Event()
        self._room.set()
        self._waiting: asyncio.Future[None] | None = None
        self._leaving = False

    async def run(self, hello: pb.DecodeResponse) -> None:
        """Until the client has half-closed the call or the server is stopping, and all is answered.

        Raises:
            InvalidRequest: a message was malformed.
            DeadlineExpired: the client does not take its results.
        """
        reading = asyncio.create_task(self._read())
        reading.add_done_callback(lambda _: self._wake())

        def leave() -> None:
            self._leaving = True
            reading.cancel()

        self._duplex.on_drain = leave
        try:
            await self._write(hello.SerializeToString())
            await self._answer(reading)
        except TimeoutError as error:
            raise DeadlineExpired(
                f"nobody has taken the call's results for {self._stall:g} s, so it was ended; streams stay"
            ) from error
        finally:
            # Cancelled here, what waits for the worker is not begun.
            for pending in self._running:
                steps = of_operation(pending.message) if self._call.metered else 0
                self._operations.cancel(pending)
                if pending.operation is not None and pending.operation.unbegun:
                    self._call.owe(-steps)
            self._patience.close()
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            # What is left of a call is full of circles, and these may be large.
            for each in (self._held, self._ready, self._running):
                each.clear()

    async def _answer(self, reading: asyncio.Task[None]) -> None:
        """Writes results until there will be no more."""
        while not reading.done():
            self._admit()
            await (self._write(self._merge()) if self._ready else self._wait())
        if not reading.cancelled():
            reading.result()
        if self._leaving:
            away = pb.DecodeGoAway(last_op_id=self._last)
            await self._write(pb.DecodeResponse(go_away=away).SerializeToString())
        # Nothing can be told of from now on: what the transport has taken counts as received.
        while self._ready or self._running or self._held:
            self._window.forget()
            self._admit()
            await (self._write(self._merge()) if self._ready else self._wait())

    def _merge(self) -> bytes:
        """The next message: serialised messages, one behind the other, are one with all their results."""
        parts: list[bytes] = []
        size, most = 0, min(MERGED_BYTES, self._most)
        while self._ready and (not parts or size + len(self._ready[0][1]) <= most):
            op_id, raw = self._ready.popleft()
            self._window.sent(op_id, len(raw))
            parts.append(raw)
            size += len(raw)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _write(self, raw: bytes) -> None:
        with self._patience:
            await self._duplex.write(raw)

    async def _wait(self) -> None:
        """Until there is something to be done; for the client at most as long as patience lasts."""
        self._waiting = self._loop.create_future()
        if self._held and not self._running:
            with self._patience:
                await self._waiting
        else:
            await self._waiting

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def _read(self) -> None:
        while True:
            if not self._room.is_set():
                await self._room.wait()
            raw = await self._duplex.read()
            if raw is None:
                return
            self._take(raw)

    def _take(self, raw: bytes) -> None:
        """Carries out a message. Raises InvalidRequest: it is malformed, and nothing of it was done."""
        try:
            request = pb.DecodeRequest.FromString(raw)
        except DecodeError as error:
            name = pb.DecodeRequest.DESCRIPTOR.full_name
            raise InvalidRequest(f"the request is not a {name}: {error}", field=name) from error
        messages = request.operations
        if len(messages) > self._most_operations:
            raise InvalidRequest(
                f"a request has at most {self._most_operations} operations, got {len(messages)}",
                field="operations",
            )
        last = self._last
        for message in messages:
            if message.op_id <= last:
                raise InvalidRequest(
                    f"op_ids must increase, got {message.op_id} after {last}", field="op_id", last=last
                )
            last = message.op_id
            if message.WhichOneof("operation") is None:
                raise InvalidRequest(
                    f"operation {last} is missing, or of a kind that is not known here", field="operation"
                )
        if request.max_response_bytes:
            self._most = min(self._largest, request.max_response_bytes)
        if request.received_op_id and self._window.received(request.received_op_id) and self._held:
            self._wake()
        self._last = last
        if messages:
            if not self._held:
                self._first = request
            self._held.append((raw, time.monotonic()))
            self._held_bytes += len(raw)
            self._admit()
            # The other task knows how long the client may take, and begins to count with the first message.
            if len(self._held) == 1:
                self._wake()

    def _admit(self) -> None:
        """Begins what there is room for. Only in the call's own tasks, by which its work is known."""
        if not self._held:
            return
        while self._held:
            raw, arrived = self._held[0]
            if self._first is None:
                self._first = pb.DecodeRequest.FromString(raw)
            operations, pending = self._first.operations, self._next
            if pending is None:
                message = operations[self._at]
                own = len(raw) if len(operations) == 1 else message.ByteSize()
                pending = Pending(message, own, self._deadline(message, arrived), self._finished)
                self._operations.prepare(pending, self._bindings, self._call.tenant)
            if not self._window.has_room(pending.reply_bytes):
                self._next = pending
                break
            self._next = None
            self._at += 1
            if self._at == len(operations):
                self._held.popleft()
                self._held_bytes -= len(raw)
                self._first, self._at = None, 0
            self._window.expect(pending.reply_bytes)
            self._begin(pending)
        if self._held_bytes <= self._most_held:
            self._room.set()
        else:
            self._room.clear()

    def _begin(self, pending: Pending) -> None:
        if pending.work is None:
            self._answered(pending)
            return
        self._running.add(pending)
        try:
            # A debt is no reason not to close a stream.
            if self._call.metered and (steps := of_operation(pending.message)):
                self._call.take(steps)
            self._operations.begin(pending, self._call.tenant, alone=self._is_alone())
        except RondelError as error:  # it was not let in
            self._finished(pending, None, error)

    def _is_alone(self) -> bool:
        """Whether the operation that begins is the only one, as far as the call knows: all results of others
        have been written. Of a client that has many on the way they are better gathered by the worker, and
        their results written together."""
        return len(self._running) == 1 and self._waiting is not None and not self._waiting.done()

    def _finished(self, pending: Pending, reply: Any, error: Exception | None) -> None:
        self._running.discard(pending)
        # Each knows the other: tens of KiB that would stay until the garbage collector comes by.
        pending.operation = None
        if error is None:
            try:
                pending.finish(reply, self._bindings, self._most)
            except Exception as failure:  # noqa: BLE001 - it is the operation's, and not the scheduler's
                pending.fail(failure, self._bindings)
        else:  # not raised here, where its traceback would come to know this frame
            if self._call.metered and isinstance(error, NOTHING_DONE):
                self._call.owe(-of_operation(pending.message))
            pending.fail(error, self._bindings)
        self._answered(pending)

    def _answered(self, pending: Pending) -> None:
        raw = pending.response.SerializeToString()
        self._window.settle(pending.reply_bytes, len(raw))
        if self._duplex.on_answer is not None:
            self._duplex.on_answer(pending.message, pending.result)
        self._ready.append((pending.message.op_id, raw))
        self._wake()

    def _deadline(self, message: pb.DecodeOperation, arrived: float) -> float | None:
        deadline = self._call.deadline
        if not message.timeout_ms:
            return deadline
        own = arrived + message.timeout_ms / 1000
        return own if deadline is None else min(own, deadline)
