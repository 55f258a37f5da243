"""Step requests: the items of all that wait, many streams of many callers, as one batch of the decoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rondel.decoder.batch import Step, StepResult, run_steps
from rondel.decoder.errors import DeadlineExpired, InvalidRequest
from rondel.decoder.session import DecoderSession
from rondel.server import exactly_once
from rondel.server.config import ServerConfig
from rondel.server.entries import Entry
from rondel.server.errors import known, to_status
from rondel.server.exactly_once import Floats, Stepped
from rondel.server.operation import AtHand
from rondel.server.replies import check_reply, reply_bytes
from rondel.server.streams import StreamRegistry
from rondel.server.tenant_streams import TenantStreams
from rondel.v1 import attention_pb2 as pb
from rondel.v1.options import options_from_message
from rondel.v1.wire import fill_tensor, from_tensor


@dataclass(slots=True)
class Asked:
    """A request, the response that is to be filled, and whose it is: items name streams of that tenant."""

    tenant: str
    request: pb.StepRequest
    response: pb.StepResponse

    def entry(self, number: int, item: pb.StepItem, streams: TenantStreams) -> Entry:
        """The stream of an item. Raises what ``TenantStreams.get_to_change`` does."""
        if item.stream_ref:
            raise InvalidRequest(
                f"stream_ref is for Decode calls, got {item.stream_ref} in a Step", field="stream_ref"
            )
        return streams.get_to_change(item.stream.handle, item.stream.epoch)


@dataclass(slots=True)
class _Waiting:
    """An item that has passed the rules, and the result that it will fill."""

    number: int
    """Of its request."""
    step: Step
    return_lse: bool
    result: pb.StepResult


class _Steps(dict[DecoderSession, _Waiting]):
    """What waits, and the numbers of the requests of which something was carried out."""

    def __init__(self) -> None:
        self.begun: set[int] = set()


class Stepping:
    """Carries out Step requests. For the scheduler's worker only.

    Items are independent, so those that pass the rules wait until all have been looked at and then go as one
    native call; the answer of each is to the bit what it would be alone. A stream that is named again, by
    a later request, finds its earlier step finished: what waits is carried out first.
    """

    def __init__(self, config: ServerConfig, streams: StreamRegistry, at_hand: AtHand) -> None:
        self._most = config.max_message_bytes
        self._streams = streams
        self._at_hand = at_hand

    def __call__(self, all_asked: Sequence[Asked]) -> list[pb.StepResponse]:
        """The response of each request, in order; an item's error is in its result."""
        waiting = _Steps()
        for number, asked in enumerate(all_asked):
            self._begin(number, asked, waiting)
        self._carry_out(waiting)
        return [asked.response for asked in all_asked]

    def _begin(self, number: int, asked: Asked, waiting: _Steps) -> None:
        """Applies the rules to all items of a request; fills the results of those that do not wait."""
        streams, layer, size = self._streams.of(asked.tenant), asked.request.layer, 0
        named: set[str] = set()
        results = asked.response.results
        for index, item in enumerate(asked.request.items):
            result = results.add()
            try:
                entry = asked.entry(index, item, streams)
                size += self._begin_item(number, layer, entry, item, result, size, named, waiting)
            except Exception as error:  # noqa: BLE001 - one item's error must not be the others'
                result.status.CopyFrom(to_status(known(error)))
                size += result.ByteSize()

    def _begin_item(
        self,
        number: int,
        layer: int,
        entry: Entry,
        item: pb.StepItem,
        result: pb.StepResult,
        size: int,
        named: set[str],
        waiting: _Steps,
    ) -> int:
        """Bytes that the item's result takes. The items before it have named the streams ``named`` and take
        ``size`` bytes of the reply."""
        session = entry.session
        if session in waiting and entry.handle not in named:
            self._carry_out(waiting)
        result.committed_length = session.length
        if entry.handle in named:
            raise InvalidRequest("a stream may occur once in a call", field="stream")
        named.add(entry.handle)
        embedded = item.HasField("embeddings")
        rows = from_tensor(item.embeddings if embedded else item.q, name="embeddings" if embedded else "q")
        taken = reply_bytes(session, layer, rows)
        check_reply(size + taken, self._most)
        q, k, v = _projected(session, layer, item, rows) if embedded else _given(item, rows)
        self._check(number, waiting)
        done = exactly_once.step(
            session,
            generation=item.generation,
            position=item.position,
            layer=layer,
            q=q,
            k=k,
            v=v,
            return_lse=item.return_lse,
            options=options_from_message(item.options) if item.HasField("options") else None,
        )
        if isinstance(done, Step):
            waiting[session] = _Waiting(number, done, item.return_lse, result)
        else:
            _fill(result, session, done)
        return taken

    def _check(self, number: int, waiting: _Steps) -> None:
        """Raises DeadlineExpired if nobody waits for a request's answer. A request of which something has
        been stored is carried out whole."""
        if number not in waiting.begun:
            self._at_hand.check(number)

    def _carry_out(self, waiting: _Steps) -> None:
        """Steps what waits, and fills its results; raises nothing, so that no result is left empty."""
        items = self._wanted(waiting)
        waiting.clear()
        outcomes: Sequence[StepResult | Exception]
        try:
            outcomes = run_steps([item.step for item in items]) if items else ()
        except Exception as error:  # noqa: BLE001 - then no step has changed anything, and all are told
            outcomes = [error] * len(items)
        for item, outcome in zip(items, outcomes, strict=True):
            session, layer = item.step.session, item.step.layer
            try:
                if isinstance(outcome, Exception):
                    raise outcome
                lse = outcome.lse if item.return_lse else None
                _fill(item.result, session, Stepped(outcome.out, lse, session.layer_length(layer), False))
            except Exception as error:  # noqa: BLE001 - one item's error must not be the others'
                item.result.status.CopyFrom(to_status(known(error)))

    def _wanted(self, waiting: _Steps) -> list[_Waiting]:
        """Those of what waits that somebody waits for; the others' results are filled."""
        refused: dict[int, DeadlineExpired] = {}
        for number in {item.number for item in waiting.values()}:
            try:
                self._check(number, waiting)
            except DeadlineExpired as error:
                refused[number] = error
            else:
                waiting.begun.add(number)
        for item in waiting.values():
            if item.number in refused:
                item.result.status.CopyFrom(to_status(refused[item.number]))
        return [item for item in waiting.values() if item.number not in refused]


def _given(item: pb.StepItem, q: Floats) -> tuple[Floats, Floats, Floats]:
    return q, from_tensor(item.k, name="k"), from_tensor(item.v, name="v")


def _projected(
    session: DecoderSession, layer: int, item: pb.StepItem, x: Floats
) -> tuple[Floats, Floats, Floats]:
    """What the stream's projections make of embeddings. The rules compare it, as stored: a repeated token's
    bytes are the same ones, even in a request that is cut otherwise."""
    if any(item.HasField(name) for name in ("q", "k", "v")):
        raise InvalidRequest("an item has embeddings, or q, k and v; got both", field="embeddings")
    exactly_once.check_generation(session, item.generation)  # a stale request is not worth the products
    return session.projections.project(session.spec, layer, x, name="embeddings")


def _fill(result: pb.StepResult, session: DecoderSession, done: Stepped) -> None:
    fill_tensor(result.out, done.out)
    if done.lse is not None:
        fill_tensor(result.lse, done.lse)
    result.committed_length = session.length
    result.layer_length = done.layer_length
    result.duplicate = done.duplicate
