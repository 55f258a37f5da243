"""Decode calls for clients that wait: steps of many streams at once. The asyncio twin is in aio_decode.py."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from types import TracebackType
from typing import Any, Self, Unpack

import grpc

from rondel.client import calls, operations
from rondel.client.batch import step_batch
from rondel.client.calls import Call, Detached
from rondel.client.channels import Channel
from rondel.client.conversation import Conversation
from rondel.client.limits import Limits
from rondel.client.opened import Opened
from rondel.client.operations import OpenOptions
from rondel.client.running import Runner
from rondel.client.sync_stream import Stream
from rondel.client.values import Array, Options, StepOutcome
from rondel.decoder.errors import DeadlineExpired, Draining, RondelError, ServerUnavailable
from rondel.decoder.spec import StreamSpec


class DecodeCall:
    """One long-lived call for the steps of many streams. Made by ``AttentionClient.decode``.

    As AsyncDecodeCall; many threads may use it at once, and what they send at the same time goes together.
    """

    def __init__(self, channel: Channel, limits: Limits, opened: Opened) -> None:
        self._lanes = Lanes(channel, limits)
        self._limits = limits
        self._opened = opened

    def open(self, spec: StreamSpec | None = None, **options: Unpack[OpenOptions]) -> Stream:
        """``AttentionClient.open``."""
        steps = operations.open_stream(spec, self._limits, self._opened, **options)
        return Stream(self._lanes, self._lanes.run(steps), self._opened, self._limits.in_force)

    def attach(self, handle: str) -> Stream:
        """``AttentionClient.attach``."""
        reply = self._lanes.run(operations.attach_stream(handle, self._limits))
        return Stream(self._lanes, reply, self._opened, self._limits.in_force)

    def step(
        self,
        layer: int,
        items: Sequence[tuple[Stream, Array, Array, Array]],
        *,
        options: Sequence[Options] | None = None,
        return_lse: bool = False,
    ) -> list[StepOutcome]:
        """``step`` one layer of many streams, (stream, q, k, v) each; each has its own output or error."""
        streams, qs, ks, vs = operations.columns(items)
        return self._lanes.run(step_batch(layer, streams, qs, ks, vs, options, return_lse))

    def close(self) -> None:
        """End the call. Its streams stay. Closing again does nothing."""
        self._lanes.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Lanes(Runner):
    """Sends calls as operations of a Decode call, of another one when that has ended. What cannot be one, and
    everything once it is closed, is a call of its own."""

    def __init__(self, channel: Channel, limits: Limits) -> None:
        self._channel = channel
        self._limits = limits
        self._lock = threading.Lock()
        self._lane: Lane | None = None
        self._forgotten = weakref.finalize(self, lambda: None)
        """Ends the call of a client that was dropped without being closed."""
        self._was_there = False
        self._closed = False

    @property
    def channel(self) -> Channel:
        return self._channel

    def send(self, call: Call) -> Any:
        attempts = self.channel.attempts(call)
        attempts.lasting = self._was_there
        while not self._closed and self._takes(call):
            left = attempts.begin()
            try:
                lane = self._connected(left)
                attempts.lasting = True
                return lane.ask(call, attempts.left())
            except Detached:
                if call.method not in calls.ALONE:
                    raise
                continue  # the connection that it was bound to has just ended
            except (ServerUnavailable, Draining) as failure:
                error = failure
            self.channel.wait(attempts, error)
        return self.channel.send(call)

    def close(self) -> None:
        """End the call."""
        with self._lock:
            self._closed = True
            lane = self._lane
        if lane is not None:
            lane.close()

    def _takes(self, call: Call) -> bool:
        """Whether a call can be an operation. For some no stream is attached to: they do without."""
        if call.method not in calls.ALONE:
            return call.method.path in calls.KINDS
        request: Any = call.request
        return self._lane is not None and self._lane.conversation.binds(request.stream.handle)

    def _connected(self, seconds: float) -> Lane:
        with self._lock:
            lane = self._lane
            if self._closed:  # another thread has done so meanwhile, and ends no lane any more
                target = self.channel.target
                raise ServerUnavailable(f"the call to {target} was closed", target=target)
            if lane is None or not lane.conversation.usable:
                lane = self._lane = Lane(self.channel, self._limits)
                self._forgotten.detach()
                self._forgotten = weakref.finalize(self, lane.cancel)
                self._forgotten.atexit = False
        lane.ready(seconds)
        self._was_there = True
        return lane


class Lane:
    """One Decode call: a thread of ours reads it, one of gRPC's writes."""

    def __init__(self, channel: Channel, limits: Limits) -> None:
        self._channel = channel
        self._wanted = threading.Event()
        self._greeted: Future[None] = Future()
        self.conversation = Conversation(channel.target, limits, self._wanted.set, self._greeted)
        self._call = channel.converse(self._messages())
        self._reading = threading.Thread(target=self._read, name="rondel-decode", daemon=True)
        self._reading.start()

    def ready(self, seconds: float) -> None:
        """Returns when the server has said its first word, or the call has ended without one."""
        self._within(seconds, self._greeted)

    def ask(self, call: Call, seconds: float) -> Any:
        """The reply to a call. Raises RondelError, Detached."""
        answer: Future[Any] = Future()
        ticket = self.conversation.add(call, seconds, answer)
        try:
            return self._within(seconds, answer)
        finally:
            self.conversation.drop(ticket)

    def cancel(self) -> None:
        """End it at once."""
        self._call.cancel()

    def close(self) -> None:
        """End it, and wait for its thread."""
        self.cancel()
        self._reading.join()

    def _within(self, seconds: float, answer: Future[Any]) -> Any:
        target = self._channel.target
        try:
            return answer.result(seconds)
        except FutureTimeoutError:
            raise DeadlineExpired(
                f"the server at {target} did not answer in {seconds:g} s", target=target
            ) from None

    def _read(self) -> None:
        target = self._channel.target
        error: RondelError = ServerUnavailable(f"the server at {target} has ended the call", target=target)
        try:
            for raw in self._call:
                self.conversation.receive(raw)
        except grpc.RpcError as failure:
            error = self._channel.error(failure)
        finally:
            self.conversation.end(error)
            self._call.cancel()

    def _messages(self) -> Iterator[bytes]:
        while not self.conversation.over:
            self._wanted.wait()
            self._wanted.clear()
            while (raw := self.conversation.next_message()) is not None:
                yield raw
