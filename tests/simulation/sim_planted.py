"""Mistakes that a simulation must find. Each is a patch of the real code."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final
from unittest.mock import patch

from rondel.decoder.cache.recorded import RecordedExtent
from rondel.decoder.errors import Overloaded
from rondel.decoder.session import DecoderSession
from rondel.server import exactly_once, scheduler
from rondel.server.attention import AttentionService
from rondel.server.dispatch import Dispatch
from rondel.server.fair_queue import FairQueue, Line
from rondel.server.operation import Operation
from rondel.server.streams import StreamRegistry
from rondel.server.tenant_streams import TenantStreams
from rondel.v1 import attention_pb2 as pb


def _twice() -> Any:
    """What is there already is stored once more."""

    def is_new(session: DecoderSession, layers: Any, position: int, tokens: int) -> bool:
        return all(session.layer_length(layer) >= position for layer in layers)

    return patch.object(exactly_once, "_is_new", is_new)


def _early() -> Any:
    """An append is answered when it is understood, and stored when there is time."""

    async def append_token(service: Any, request: pb.AppendTokenRequest, call: Any) -> pb.AppendTokenResponse:
        streams = service._streams.of(call.tenant)
        session = streams.get(request.stream.handle, request.stream.epoch).session
        exactly_once.check_generation(session, request.generation)
        service._scheduler.post(partial(service._work.append, request, streams), tenant=call.tenant)
        end = request.position + request.k.shape[1]
        return pb.AppendTokenResponse(committed_length=end, layer_length=end)

    return patch.object(AttentionService, "append_token", append_token)


def _fast_clock() -> Any:
    """Leases are looked at by a clock that is a tenth faster."""
    expire = StreamRegistry.expire

    def fast(streams: StreamRegistry, now: float) -> int:
        return expire(streams, 1000.0 + 1.1 * (now - 1000.0))

    return patch.object(StreamRegistry, "expire", fast)


def _no_deadlines() -> Any:
    """Nobody looks at deadlines once something waits."""
    never = {name: lambda operation, now: False for name in ("expired", "hopeless")}
    return patch.multiple(Operation, **never)


def _unfair() -> Any:
    """First come, first served, whoever it is."""

    def settle(queue: FairQueue, line: Line) -> None:
        line.place = None
        if line.waiting:
            line.place = (0.0, line.waiting[0].number, next(queue._places), line)
            heapq.heappush(queue._heap, line.place)

    return patch.object(FairQueue, "_settle", settle)


def _last_first() -> Any:
    """The newest of a tenant is the first of it."""
    add = FairQueue.add

    def in_front(queue: FairQueue, operation: Operation) -> None:
        add(queue, operation)
        if operation.tenant is not None:
            line = queue._lines[operation.tenant]
            line.waiting.rotate(1)
            queue._settle(line)

    return patch.object(FairQueue, "add", in_front)


def _half() -> Any:
    """Layers are stored one by one, and some in the middle of which something else comes to mind."""
    calls = iter(range(1 << 30))

    def append_all(session: DecoderSession, k: Any, v: Any, *, first_layer: int = 0) -> int:
        fails = next(calls) % 4 == 3
        for layer, (keys, values) in enumerate(zip(k, v, strict=True)):
            if layer and fails:
                raise Overloaded("too much to do", retry_after_ms=1)
            session.append(first_layer + layer, keys, values)
        return session.layer_length(first_layer)

    return patch.object(DecoderSession, "append_all", append_all)


def _endless() -> Any:
    """Everybody is let in."""
    return patch.multiple(
        Dispatch,
        _check_seconds=lambda dispatch, operation, tenant, now: None,
        _room=lambda dispatch, operation, tenant, now: [],
    )


def _same_generation() -> Any:
    """A restart does not begin a generation."""
    attach = RecordedExtent.attach

    def quietly(extent: RecordedExtent, length: int) -> None:
        attach(extent, length)
        extent.generation -= 1

    return patch.object(RecordedExtent, "attach", quietly)


def _stale() -> Any:
    """Requests of older generations are as good as others."""
    return patch.object(exactly_once, "check_generation", lambda session, generation: None)


def _shared() -> Any:
    """Whoever attaches to a stream shares it with those who were there before."""
    return patch.object(exactly_once, "attach", lambda entry, generation, request_id: None)


def _opened_again() -> Any:
    """A repeated request to open a stream opens another one."""
    return patch.object(TenantStreams, "repeated", lambda streams, request_id, origin: None)


def _silent() -> Any:
    """Errors are not handed out."""
    hand_out = scheduler._hand_out

    def good_ones(operations: Any) -> None:
        hand_out([operation for operation in operations if operation.error is None])

    return patch.object(scheduler, "_hand_out", good_ones)


PLANTED: Final[Mapping[str, Callable[[], Any]]] = {
    "applied twice": _twice,
    "acknowledged before it is stored": _early,
    "lease by a fast clock": _fast_clock,
    "deadlines ignored": _no_deadlines,
    "not fair": _unfair,
    "last come, first served": _last_first,
    "applied by half": _half,
    "no bounds": _endless,
    "no new generation after a restart": _same_generation,
    "stale requests taken": _stale,
    "opened again": _opened_again,
    "attached beside others": _shared,
    "errors kept back": _silent,
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """The code with a mistake in it."""
    with PLANTED[name]():
        yield
