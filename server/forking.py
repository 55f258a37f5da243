"""The rules for streams that begin as others are. For the scheduler's worker only."""

from __future__ import annotations

from rondel.decoder.errors import InvalidRequest, SequenceGap
from rondel.decoder.projection import Projections
from rondel.decoder.spec import StreamSpec
from rondel.server.bounds import check_id
from rondel.server.entries import Entry, Origin
from rondel.server.exactly_once import check_generation, check_position
from rondel.server.tenant_streams import TenantStreams, same_streams
from rondel.v1 import attention_pb2 as pb


def fork(streams: TenantStreams, request: pb.ForkStreamRequest) -> Entry:
    """The fork that a request asks for, or the one that it was answered with before.

    Raises:
        InvalidRequest: a field is impossible, the request_id was used for another request, or the prefix's
            name is taken.
        StreamNotFound, StreamClosed, StaleGeneration, SequenceGap: there is no such state to begin with.
        StreamSealed, BudgetExceeded, QuotaExceeded: as ``TenantStreams.fork``.
    """
    check_position("length", request.length)
    check_id("stream", request.stream.handle)
    most = request.max_new_tokens if request.HasField("max_new_tokens") else None
    name = request.prefix_name
    if name:
        if most:
            raise InvalidRequest(
                f"max_new_tokens must be unset or 0 for a prefix, got {most}", field="max_new_tokens"
            )
        most = 0
    origin = Origin(request.stream.handle, request.generation, request.length, most, name)
    # Looked for first: what has become of the stream since does not change the answer.
    earlier = streams.repeated(request.request_id, origin)
    if earlier is not None:
        return earlier
    parent = streams.get(request.stream.handle, request.stream.epoch)
    session = parent.session
    check_generation(session, request.generation)
    if request.length != session.length:
        raise SequenceGap(
            f"the stream has {session.length} tokens, the fork was to have {request.length}",
            expected=session.length,
        )
    if name and streams.has_prefix(name):
        raise InvalidRequest(f"there is a prefix {name!r} already", field="prefix_name")
    entry = streams.fork(parent, request.request_id, origin)
    if name:
        streams.keep(entry, name)
    return entry


def open_prefix(
    streams: TenantStreams,
    request: pb.OpenStreamRequest,
    spec: StreamSpec | None,
    projections: Projections | None,
) -> Entry:
    """A stream that begins with a named prefix; ``spec`` and ``projections``: what the request says of them.

    Raises:
        StreamNotFound: no prefix has that name.
        InvalidRequest: it is of another specification, or has other projections; or the request_id was used
            for another request.
        StreamSealed, BudgetExceeded, QuotaExceeded: as ``TenantStreams.fork``.
    """
    most = request.max_new_tokens if request.HasField("max_new_tokens") else None
    origin = Origin("", 0, 0, most, request.from_prefix)
    earlier = streams.repeated(request.request_id, origin)
    prefix = streams.prefix(request.from_prefix) if earlier is None else earlier
    session = prefix.session
    if spec is not None and not same_streams(session.spec, spec):
        raise InvalidRequest(f"the prefix {request.from_prefix!r} has another specification", field="spec")
    if projections is not None and session.projections is not projections:
        raise InvalidRequest(f"the prefix {request.from_prefix!r} has other projections", field="projections")
    return earlier or streams.fork(prefix, request.request_id, origin)
