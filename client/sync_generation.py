"""Text from a server's language model, for clients that wait. The asyncio twin is aio_generation.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Unpack

import grpc

from rondel.client import calls, generation
from rondel.client.calls import Call
from rondel.client.channels import Channel
from rondel.client.checks import checked_timeout
from rondel.client.generation import Event, GenerateOptions, Model, Prompt
from rondel.client.sync_base import Client, Closing


class Generation(Iterator[Event], Closing):
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


class GenerationClient(Client):
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
