"""What requests say that they do to streams, by their answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

from google.protobuf.message import Message

from rondel.decoder.session import DecoderSession
from rondel.v1 import attention_pb2 as pb


@dataclass(frozen=True)
class Change:
    """How far a stream is."""

    lengths: tuple[int, ...]
    generation: int

    @classmethod
    def of(cls, session: DecoderSession) -> Self:
        lengths = (session.layer_length(layer) for layer in range(session.spec.layers))
        return cls(tuple(lengths), session.generation)

    def longer(self, first_layer: int, layers: int, tokens: int) -> Change:
        """With more tokens in a run of layers."""
        run = range(first_layer, first_layer + layers)
        lengths = (length + (tokens if layer in run else 0) for layer, length in enumerate(self.lengths))
        return Change(tuple(lengths), self.generation)


def named(request: Message | None) -> Iterator[str]:
    """The handles of the streams that a request uses."""
    if isinstance(request, pb.StepRequest):
        yield from (item.stream.handle for item in request.items)
    elif request is not None and "stream" in request.DESCRIPTOR.fields_by_name:
        yield request.stream.handle  # type: ignore[attr-defined]


def made(response: Any) -> str:
    """The handle of the stream that a request has opened; empty if it was another kind of request."""
    if isinstance(response, pb.ForkStreamResponse):
        return response.stream.handle
    return response.handle if isinstance(response, pb.OpenStreamResponse) else ""


def repeated(response: Any) -> int:
    """How many answers of an answer say that they are repeated."""
    if isinstance(response, pb.StepResponse):
        return sum(result.duplicate for result in response.results)
    return int(isinstance(response, pb.AppendTokenResponse) and response.duplicate)


def changes(request: Message, response: Any, states: dict[str, Change], promised: dict[str, int]) -> None:
    """Does to ``states`` what an answer says was done, and notes the lengths that it promises."""
    match request:
        case pb.StepRequest():
            for item, result in zip(request.items, response.results, strict=True):
                handle = item.stream.handle
                if result.status.code:
                    continue
                if not result.duplicate:
                    states[handle] = states[handle].longer(request.layer, 1, item.q.shape[0])
                promised[handle] = max(promised.get(handle, 0), result.committed_length)
        case pb.AppendTokenRequest():
            handle = request.stream.handle
            if not response.duplicate:
                layers, tokens = request.k.shape[:2]
                states[handle] = states[handle].longer(request.first_layer, layers, tokens)
            promised[handle] = max(promised.get(handle, 0), response.committed_length)
        case pb.TruncateStreamRequest():
            handle = request.stream.handle
            state = states[handle]
            if request.generation == state.generation:
                states[handle] = Change((request.length,) * len(state.lengths), state.generation + 1)
                promised[handle] = request.length
        case pb.CloseStreamRequest():
            states.pop(request.stream.handle, None)
            promised.pop(request.stream.handle, None)
        case pb.OpenStreamRequest() | pb.ForkStreamRequest():
            handle = made(response)
            if handle not in promised:
                promised[handle] = (
                    response.stream if isinstance(response, pb.ForkStreamResponse) else response
                ).committed_length
