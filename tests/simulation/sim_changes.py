"""What requests say that they do to streams, by their answers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from google.protobuf.message import Message

from rondel.decoder.session import DecoderSession
from rondel.server.bound import Bound
from rondel.server.operation import Operation
from rondel.server.stepping import Asked
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


@dataclass(frozen=True)
class Subject:
    """What an operation is about: a message, and the handles of the streams that it uses, in its order."""

    request: Message | None
    handles: tuple[str, ...]

    @classmethod
    def of(cls, operation: Operation) -> Self:
        argument = operation.argument
        if isinstance(argument, Asked):
            bound = getattr(argument, "bound", ())  # in a Decode call
            items = (item.stream.handle for item in argument.request.items)
            return cls(argument.request, tuple(each.handle for each in bound) or tuple(items))
        parts = argument.args if isinstance(argument, partial) else ()
        request = next((part for part in parts if isinstance(part, Message)), None)
        handle = next((part.handle for part in parts if isinstance(part, Bound)), "")
        if request is not None and "stream" in request.DESCRIPTOR.fields_by_name:
            handle = request.stream.handle or handle  # type: ignore[attr-defined]
        return cls(request, (handle,) if handle else ())


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


def changes(subject: Subject, response: Any, states: dict[str, Change], promised: dict[str, int]) -> None:
    """Does to ``states`` what an answer says was done, and notes the lengths that it promises."""
    request = subject.request
    handle = subject.handles[0] if subject.handles else ""
    match request:
        case pb.StepRequest():
            for item, handle, result in zip(request.items, subject.handles, response.results, strict=True):
                if result.status.code:
                    continue
                if not result.duplicate:
                    states[handle] = states[handle].longer(request.layer, 1, item.q.shape[0])
                promised[handle] = max(promised.get(handle, 0), result.committed_length)
        case pb.AppendTokenRequest():
            if not response.duplicate:
                layers, tokens = request.k.shape[:2]
                states[handle] = states[handle].longer(request.first_layer, layers, tokens)
            promised[handle] = max(promised.get(handle, 0), response.committed_length)
        case pb.TruncateStreamRequest():
            state = states[handle]
            if request.generation == state.generation:
                states[handle] = Change((request.length,) * len(state.lengths), state.generation + 1)
                promised[handle] = request.length
        case pb.CloseStreamRequest():
            states.pop(handle, None)
            promised.pop(handle, None)
        case pb.AttachStreamRequest():
            state = states[handle]
            if response.stream.generation == state.generation + 1:
                states[handle] = Change((min(state.lengths),) * len(state.lengths), state.generation + 1)
        case pb.OpenStreamRequest() | pb.ForkStreamRequest():
            handle = made(response)
            if handle not in promised:
                promised[handle] = (
                    response.stream if isinstance(response, pb.ForkStreamResponse) else response
                ).committed_length
