"""The streams that the server keeps: handles, epoch, answers kept for repeated requests, idle expiry.

Only the scheduler's worker uses a registry, one operation at a time; so it has no locks.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import InvalidRequest, QuotaExceeded, StreamClosed, StreamNotFound
from rondel.decoder.projection import NO_PROJECTIONS, Projections
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import LayerGroup, StreamSpec
from rondel.server.bounds import check_id

_TOMBSTONES: Final = 4096
"""How many closed streams are remembered, to tell closed from unknown and to answer a repeated Close."""


@dataclass(slots=True, eq=False)
class Entry:
    """A stream: its session and what must be remembered about requests."""

    handle: str
    session: DecoderSession
    open_id: str
    last_used: float
    truncated: Truncated | None = None
    """The last TruncateStream, if it had a request_id."""
    worried: bool = False
    """The log has been told that the keys do not suit the storage."""


@dataclass(frozen=True, slots=True)
class Truncated:
    """A TruncateStream that was carried out."""

    request_id: str
    generation: int
    length: int
    new_generation: int


@dataclass(frozen=True, slots=True)
class Closed:
    """What is remembered of a closed stream."""

    close_id: str
    committed_length: int
    bytes_released: int


@dataclass(slots=True, eq=False)
class StreamRegistry:
    """Handle to stream. ``epoch`` is the same for all streams of one server start: handles are not reused."""

    arena: Arena
    max_streams: int
    lease_seconds: float = 0.0
    clock: Callable[[], float] = time.monotonic
    epoch: int = field(default_factory=lambda: 1 + secrets.randbits(62))
    _entries: dict[str, Entry] = field(default_factory=dict)
    _opened: dict[str, Entry] = field(default_factory=dict)
    _closed: OrderedDict[str, Closed] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._entries)

    def open(self, spec: StreamSpec, request_id: str, projections: Projections = NO_PROJECTIONS) -> Entry:
        """A new stream, or the one that the first request of this id opened.

        Raises:
            InvalidRequest: the id was used with another specification, or other projections.
            InvalidLayer, InvalidShape: the projections do not fit the specification.
            QuotaExceeded: there are ``max_streams`` already.
            BudgetExceeded: the arena has no room.
        """
        earlier = self._opened.get(request_id) if request_id else None
        if earlier is not None:
            session = earlier.session
            if not (_same(session.spec, spec) and session.projections is projections):
                raise InvalidRequest(
                    f"request_id {request_id!r} has opened a stream of another specification, or with other "
                    f"projections",
                    field="request_id",
                )
            earlier.last_used = self.clock()
            return earlier
        if len(self._entries) >= self.max_streams:
            raise QuotaExceeded(
                f"{len(self._entries)} streams are open, the limit is {self.max_streams}",
                limit=self.max_streams,
            )
        session = DecoderSession(spec, self.arena, projections=projections)
        entry = Entry(secrets.token_urlsafe(18), session, request_id, self.clock())
        self._entries[entry.handle] = entry
        if request_id:
            self._opened[request_id] = entry
        return entry

    def get(self, handle: str, epoch: int) -> Entry:
        """The stream of a handle, whose lease starts anew.

        Raises:
            InvalidRequest: there is no handle, or one that no stream can have.
            StreamClosed: it was closed.
            StreamNotFound: there is none, or the epoch is another one's.
        """
        entry = self._entries.get(self._checked(handle, epoch))
        if entry is None:
            if handle in self._closed:
                raise StreamClosed(f"stream {handle} was closed", handle=handle)
            raise StreamNotFound(f"no stream {handle!r}", handle=handle)
        entry.last_used = self.clock()
        return entry

    def close(self, handle: str, epoch: int, request_id: str) -> Closed:
        """Ends a stream and frees its memory; repeated with the same id it gives the first answer.

        Raises:
            InvalidRequest, StreamClosed, StreamNotFound: as :meth:`get`.
        """
        earlier = self._closed.get(self._checked(handle, epoch))
        if earlier is not None and request_id and earlier.close_id == request_id:
            return earlier
        return self._end(self.get(handle, epoch), request_id)

    def expire(self) -> int:
        """Closes the streams whose lease has run out; how many there were."""
        if not self.lease_seconds:
            return 0
        oldest = self.clock() - self.lease_seconds
        stale = [entry for entry in self._entries.values() if entry.last_used <= oldest]
        for entry in stale:
            self._end(entry, "")
        return len(stale)

    def close_all(self) -> None:
        """Ends every stream."""
        for entry in list(self._entries.values()):
            self._end(entry, "")

    def _checked(self, handle: str, epoch: int) -> str:
        if not handle:
            raise InvalidRequest("the stream's handle is missing", field="stream")
        check_id("stream", handle)
        if epoch not in (0, self.epoch):
            raise StreamNotFound(
                f"stream {handle!r} of epoch {epoch} is not here, the epoch is {self.epoch}",
                handle=handle,
                epoch=self.epoch,
            )
        return handle

    def _end(self, entry: Entry, request_id: str) -> Closed:
        stats = entry.session.stats()
        entry.session.close()
        del self._entries[entry.handle]
        if entry.open_id:
            del self._opened[entry.open_id]
        closed = Closed(request_id, stats.length, stats.bytes_reserved)
        self._closed[entry.handle] = closed
        if len(self._closed) > _TOMBSTONES:
            self._closed.popitem(last=False)
        return closed


def _same(one: StreamSpec, other: StreamSpec) -> bool:
    """Whether two specifications mean the same stream, whatever they leave to defaults."""

    def meaning(spec: StreamSpec) -> tuple[int, frozenset[LayerGroup]]:
        groups = (replace(group, scale=group.score_scale) for group in spec.groups)
        return spec.length_limit, frozenset(groups)

    return meaning(one) == meaning(other)
