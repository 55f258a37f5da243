"""A step of many streams, without its input and output."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

from rondel.client import calls
from rondel.client.calls import Call, Detached, Steps
from rondel.client.checks import checked_list
from rondel.client.core import StreamCore
from rondel.client.lasting import stamp
from rondel.client.values import Array, Options, StepOutcome
from rondel.decoder.errors import InvalidRequest, RondelError, ServerInternal, StaleGeneration
from rondel.v1 import attention_pb2 as pb

_NAMES: Final = ("streams", "qs", "ks", "vs")


def step_batch(
    layer: int,
    streams: Sequence[StreamCore],
    qs: Sequence[Array],
    ks: Sequence[Array],
    vs: Sequence[Array],
    options: Sequence[Options] | None,
    return_lse: bool,
) -> Steps[list[StepOutcome]]:
    """One Step for many streams; those that must be taken over first are, and go again."""
    checked = [checked_list(*pair) for pair in zip(_NAMES, (streams, qs, ks, vs), strict=True)]
    checked.append([None] * len(checked[0]) if options is None else checked_list("options", options))
    counts = tuple(map(len, checked))
    if len(set(counts)) != 1:
        raise InvalidRequest(f"{', '.join(_NAMES)} and options must be of one length, got {counts}")
    for stream in checked[0]:
        if not isinstance(stream, StreamCore):
            raise InvalidRequest(f"streams must be streams of a client, got {type(stream).__name__}")
    if len({id(stream) for stream in checked[0]}) != len(checked[0]):
        raise InvalidRequest("a stream may occur once only in a batch, got one of them again")
    batch = _Batch(layer, checked[0])
    with ExitStack() as inside:
        for stream in checked[0]:
            inside.enter_context(stream.alone())
        for index, (stream, q, k, v, asked) in enumerate(zip(*checked, strict=True)):
            try:
                batch.items[index] = stream.item(layer, q, k, v, asked, return_lse)
            except RondelError as error:  # this stream's; the others are stepped
                batch.fail(index, error)
        while batch.items:
            yield from batch.step()
    return [batch.outcomes[index] for index in range(len(checked[0]))]


class _Batch:
    """What is to be stepped yet, and what has come of the rest."""

    def __init__(self, layer: int, streams: Sequence[StreamCore]) -> None:
        self._layer = layer
        self._streams = streams
        self._deadline: float | None = None
        self.items: dict[int, pb.StepItem] = {}
        self.outcomes: dict[int, StepOutcome] = {}

    def fail(self, index: int, error: RondelError) -> None:
        """That stream is not stepped."""
        self.items.pop(index, None)
        self.outcomes[index] = StepOutcome(None, None, error)

    def step(self) -> Steps[None]:
        """Step what is left; afterwards less is, or streams were taken over. Raises what the call does."""
        for index in list(self.items):
            yield from self._ready(index)
        if not self.items:
            return
        call = Call(calls.STEP, pb.StepRequest(layer=self._layer, items=self.items.values()), self._deadline)
        try:
            reply = yield call
        except Detached as error:
            self._deadline = call.deadline
            for index in [at for at in self.items if self._streams[at].handle in error.handles]:
                yield from self._taken_over(index)
            return
        self._deadline = call.deadline
        if not isinstance(reply, pb.StepResponse) or len(reply.results) != len(self.items):
            raise ServerInternal(f"the server's answer is not one of {len(self.items)} items")
        for index, result in zip(list(self.items), reply.results, strict=True):
            outcome = self._streams[index].outcome(self._layer, self.items[index], result)
            if isinstance(outcome.error, StaleGeneration):
                yield from self._taken_over(index)
            else:
                del self.items[index]
                self.outcomes[index] = outcome

    def _ready(self, index: int) -> Steps[None]:
        """Has a stream store what it has lost, and its item be about the generation that it is in."""
        stream = self._streams[index]
        while index in self.items:
            try:
                yield from stream.store_missing(self._deadline)
            except (StaleGeneration, Detached):
                yield from self._taken_over(index)
            except RondelError as error:
                self.fail(index, error)
            else:
                stamp(self.items[index], stream.generation)
                return

    def _taken_over(self, index: int) -> Steps[None]:
        try:
            yield from self._streams[index].take_over(self._deadline)
        except RondelError as failure:
            self.fail(index, failure)
