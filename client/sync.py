"""Clients that wait. The asyncio twins are in aio.py; what both have in common is in core.py."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self, Unpack
from weakref import WeakSet

import grpc

from rondel.client import calls, generation, operations
from rondel.client.batch import step_batch
from rondel.client.calls import Call
from rondel.client.channels import Channel
from rondel.client.checks import checked_timeout
from rondel.client.generation import Event, GenerateOptions, Model, Prompt
from rondel.client.limits import Limits
from rondel.client.opened import Opened
from rondel.client.operations import OpenOptions
from rondel.client.sync_decode import DecodeCall
from rondel.client.sync_stream import Stream
from rondel.client.sync_transfers import Importing
from rondel.client.values import Array, Options, ServerInfo, StepOutcome
from rondel.decoder.errors import RondelError
from rondel.decoder.spec import StreamSpec
from rondel.v1 import attention_pb2 as pb


class _Closing(ABC):
    """Closed when its ``with`` block ends."""

    @abstractmethod
    def close(self) -> None:
        """End it. Closing again does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Client(_Closing):
    def __init__(
        self,
        target: str,
        *,
        timeout: float = calls.DEFAULT_TIMEOUT,
        max_message_bytes: int = calls.DEFAULT_MAX_MESSAGE_BYTES,
    ) -> None:
        self._channel = Channel(target, timeout, max_message_bytes)

    @property
    def target(self) -> str:
        """The server's address, as it was given."""
        return self._channel.target

    def close(self) -> None:
        """End the connection and whatever still runs on it. Closing again does nothing."""
        self._channel.close()


class AttentionClient(_Client, Importing[Stream]):
    """Opens streams on a server at ``host:port`` or ``unix:/path``; connects at the first call.

    ``timeout``: seconds for a call, its retries included. ``max_message_bytes``: largest message that is
    sent or taken; the server has a limit of its own. May be used by many threads at once. Raises
    InvalidSpec for what cannot be meant.
    """

    def __init__(
        self,
        target: str,
        *,
        timeout: float = calls.DEFAULT_TIMEOUT,
        max_message_bytes: int = calls.DEFAULT_MAX_MESSAGE_BYTES,
    ) -> None:
        super().__init__(target, timeout=timeout, max_message_bytes=max_message_bytes)
        self._opened = Opened()
        self._limits = Limits(max_message_bytes)
        self._calls: WeakSet[DecodeCall] = WeakSet()

    def open(self, spec: StreamSpec | None = None, **options: Unpack[OpenOptions]) -> Stream:
        """Open a stream, empty or with a named prefix; options as in OpenOptions.

        Raises InvalidSpec, BudgetExceeded, QuotaExceeded; ProjectionNotFound, InvalidLayer, InvalidShape;
        StreamNotFound: no such prefix.
        """
        steps = operations.open_stream(spec, self._limits, self._opened, **options)
        return self._stream(self._channel.run(steps))

    def attach(self, handle: str) -> Stream:
        """Take over the stream of a handle, from whoever has used it: only what all its layers have stays,
        and its other users get StaleGeneration. Raises StreamNotFound, StreamClosed."""
        return self._stream(self._channel.run(operations.attach_stream(handle, self._limits)))

    def decode(self) -> DecodeCall:
        """A long-lived call for the steps of many streams, which is to be closed: ``with``."""
        call = DecodeCall(self._channel, self._limits, self._opened)
        self._calls.add(call)
        return call

    def _stream(self, reply: pb.OpenStreamResponse) -> Stream:
        return Stream(self._channel, reply, self._opened, self._limits.in_force)

    def info(self) -> ServerInfo:
        """What the server is and allows."""
        return self._channel.run(operations.server_info(self._limits))

    def step_batch(
        self,
        layer: int,
        streams: Sequence[Stream],
        qs: Sequence[Array],
        ks: Sequence[Array],
        vs: Sequence[Array],
        *,
        options: Sequence[Options] | None = None,
        return_lse: bool = False,
    ) -> list[StepOutcome]:
        """``step`` one layer of many streams in one call; each has its own output or error."""
        return self._channel.run(step_batch(layer, streams, qs, ks, vs, options, return_lse))

    def close(self) -> None:
        """Close the streams that are still open, then the connection. Closing again does nothing."""
        for call in list(self._calls):
            call.close()
        for steps in operations.close_all(self._opened):
            with suppress(RondelError):  # an unreachable server frees them when their lease ends
                self._channel.run(steps)
        super().close()


class Generation(Iterator[Event], _Closing):
    """A running generation: iterate for its events, or over ``text()`` for its text alone.

    Closing it, leaving its ``with`` block or forgetting it cancels the call, and the server stops.
    """

    def __init__(self, channel: Channel, call: Call, timeout: float) -> None:
        self._channel = channel
        self._closed = False
        self._replies = channel.start(call, timeout)

    def __next__(self) -> Event:
        while not self._closed:
            try:
                event = generation.read_event(next(self._replies))
            except grpc.RpcError as failure:
                raise self._channel.error(failure) from None
            if event is not None:
                return event
        raise StopIteration

    def text(self) -> Iterator[str]:
        """The pieces of the answer, as they come."""
        for event in self:
            if not isinstance(event, generation.Started) and event.text:
                yield event.text

    def close(self) -> None:
        """Cancel what is left. Closing again, or after the end, does nothing."""
        self._closed = True
        self._replies.cancel()

    def __del__(self) -> None:
        replies = getattr(self, "_replies", None)  # absent when starting the call failed
        if replies is not None:
            replies.cancel()


class GenerationClient(_Client):
    """Has a server's language model continue prompts. Options as for AttentionClient."""

    def generate(
        self,
        prompt: Prompt,
        *,
        timeout: float = calls.DEFAULT_GENERATION_TIMEOUT,
        **options: Unpack[GenerateOptions],
    ) -> Generation:
        """Start a generation: text is continued as it is, (role, content) pairs through the chat template.

        ``timeout`` is for the whole of it, in seconds. Raises InvalidSpec or InvalidRequest for options
        that cannot be sent; the server's errors are raised by the iteration.
        """
        call = generation.generate_call(prompt, options)
        return Generation(self._channel, call, checked_timeout(timeout))

    def models(self) -> list[Model]:
        """The server's models; the first is its default."""
        return self._channel.run(generation.list_models())
