"""ListStreams: a tenant's streams, page by page. For the scheduler's worker only."""

from __future__ import annotations

from itertools import islice
from typing import Final

from rondel.decoder.errors import InvalidRequest
from rondel.server.entries import Entry
from rondel.server.replies import milliseconds
from rondel.server.tenant_streams import TenantStreams
from rondel.v1 import tenant_pb2 as pb

DEFAULT_PAGE: Final = 100
MAX_PAGE: Final = 1000
_DIGITS: Final = 19


def list_streams(request: pb.ListStreamsRequest, streams: TenantStreams) -> pb.ListStreamsResponse:
    """One page. A page's token is the serial number of its last stream: it holds its place whatever becomes
    of that one.

    Raises:
        InvalidRequest: the page is too large, or the token is none.
    """
    size = request.page_size or DEFAULT_PAGE
    if size > MAX_PAGE:
        raise InvalidRequest(f"a page has at most {MAX_PAGE} streams, got {size}", field="page_size")
    after = _serial(request.page_token)
    later = (entry for entry in streams if entry.serial > after)
    page = list(islice(later, size))
    more = next(later, None) is not None
    return pb.ListStreamsResponse(
        streams=[_listed(entry, streams) for entry in page],
        next_page_token=str(page[-1].serial) if more else "",
    )


def _serial(token: str) -> int:
    if not token:
        return 0
    if not (token.isascii() and token.isdecimal() and len(token) <= _DIGITS):
        raise InvalidRequest("page_token is none that ListStreams has given", field="page_token")
    return int(token)


def _listed(entry: Entry, streams: TenantStreams) -> pb.ListedStream:
    stats = entry.session.stats()
    return pb.ListedStream(
        handle=entry.handle,
        epoch=streams.epoch,
        generation=stats.generation,
        committed_length=stats.length,
        bytes_reserved=stats.bytes_reserved,
        bytes_resident=stats.bytes_resident,
        bytes_shared=stats.bytes_shared,
        idle_ms=milliseconds(streams.idle_seconds(entry)),
        sealed=stats.sealed,
    )
