"""The streams of one tenant: handles, answers kept for repeated requests, prefixes.

Every name that a request may say is looked up here and nowhere else. So what another tenant has is unknown in
the same way, in the same words and after the same steps as what nobody has.

Only the scheduler's worker uses it, one operation at a time; so it has no locks.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from rondel.decoder.errors import (
    InvalidRequest,
    QuotaExceeded,
    SessionBusy,
    StreamClosed,
    StreamNotFound,
)
from rondel.decoder.projection import NO_PROJECTIONS, Projections
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import LayerGroup, StreamSpec
from rondel.server.bounds import check_id
from rondel.server.entries import Closed, Entry, Imported, Origin
from rondel.server.exactly_once import check_owner
from rondel.server.tags import Tag

if TYPE_CHECKING:
    from rondel.server.streams import StreamRegistry
    from rondel.server.tenants import Tenant

_TOMBSTONES: Final = 4096
"""How many closed streams are remembered, to tell closed from unknown and to answer a repeated Close. Of each
tenant: if there was one number for all, closing many would show in the others' answers."""


class TenantStreams:
    """Handle to stream. Made by :meth:`StreamRegistry.of`."""

    def __init__(self, registry: StreamRegistry, tenant: Tenant) -> None:
        self.tenant: Final = tenant
        self._registry = registry
        self._entries: dict[str, Entry] = {}
        self._opened: dict[str, Entry] = {}
        self._prefixes: dict[str, Entry] = {}
        self._closed: OrderedDict[str, Closed] = OrderedDict()
        self._serial = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        """The open streams, oldest first. Their leases stay as they are."""
        return iter(self._entries.values())

    @property
    def epoch(self) -> int:
        """That of all streams of this server."""
        return self._registry.epoch

    def open(
        self,
        spec: StreamSpec,
        request_id: str,
        projections: Projections = NO_PROJECTIONS,
        *,
        projections_name: str = "",
    ) -> Entry:
        """A new stream, or the one that the first request of this id opened.

        Raises:
            InvalidRequest: the id was used with another specification, or other projections.
            InvalidLayer, InvalidShape: the projections do not fit the specification.
            QuotaExceeded: there are as many streams as there may be.
            BudgetExceeded: the arena has no room.
        """
        earlier = self.repeated(request_id, None)
        if earlier is not None:
            session = earlier.session
            if not (same_streams(session.spec, spec) and session.projections is projections):
                raise InvalidRequest(
                    f"request_id {request_id!r} has opened a stream of another specification, or with other "
                    f"projections",
                    field="request_id",
                )
            return earlier
        self.check_room()
        tag = self._tag(request_id, None, projections_name)
        return self.add(self._session(spec, projections, tag.encode()), tag)

    def fork(self, entry: Entry, request_id: str, origin: Origin) -> Entry:
        """A new stream that begins as another one is.

        Raises:
            QuotaExceeded: there are as many streams as there may be.
            InvalidRequest, StreamSealed, BudgetExceeded: the session cannot be forked so.
        """
        self.check_room()
        tag = self._tag(request_id, origin, entry.projections)
        session = entry.session.fork(max_new_tokens=origin.max_new_tokens, tag=tag.encode())
        return self.add(session, tag)

    def unpublished(self, spec: StreamSpec, projections: Projections) -> DecoderSession:
        """A session that :meth:`adopt` may make a stream of. Raises as :meth:`open`."""
        self.check_room()
        return self._session(spec, projections, None)

    def adopt(
        self, session: DecoderSession, request_id: str, imported: Imported, projections_name: str = ""
    ) -> Entry:
        """The stream that a session has become, which was not published yet. Raises QuotaExceeded; the
        session is then still the caller's."""
        self.check_room()
        tag = self._tag(request_id, imported, projections_name)
        session.publish(tag.encode())
        return self.add(session, tag)

    def add(self, session: DecoderSession, tag: Tag) -> Entry:
        """The stream of a session whose tag is in the arena's file, if there is one."""
        entry = Entry(tag.handle, session, tag.open_id, self._registry.clock(), tag.origin, tag.projections)
        self._serial += 1
        entry.serial = self._serial
        self._entries[entry.handle] = entry
        if entry.open_id:
            self._opened[entry.open_id] = entry
        return entry

    def idle_seconds(self, entry: Entry) -> float:
        """How long nobody has named a stream."""
        return max(0.0, self._registry.clock() - entry.last_used)

    def keep(self, entry: Entry, prefix_name: str) -> None:
        """Give a stream a name that others may begin with."""
        self._prefixes[prefix_name] = entry

    def prefix(self, name: str) -> Entry:
        """The stream kept under a name, whose lease starts anew. Raises StreamNotFound."""
        entry = self._prefixes.get(name)
        if entry is None:
            raise StreamNotFound(f"no prefix {name!r}", prefix=name)
        entry.last_used = self._registry.clock()
        return entry

    def has_prefix(self, name: str) -> bool:
        """Whether a stream is kept under a name."""
        return name in self._prefixes

    def repeated(self, request_id: str, origin: Origin | Imported | None) -> Entry | None:
        """The stream that an earlier request of this id made, whose lease starts anew; None = there was none.

        Raises:
            InvalidRequest: it made another one.
        """
        earlier = self._opened.get(request_id) if request_id else None
        if earlier is None:
            return None
        if earlier.origin != origin:
            raise InvalidRequest(
                f"request_id {request_id!r} has made another stream, by another request", field="request_id"
            )
        earlier.last_used = self._registry.clock()
        return earlier

    def knows(self, request_id: str) -> bool:
        """Whether a stream is here that a request of this id made."""
        return bool(request_id) and request_id in self._opened

    def check_room(self) -> None:
        """Raises QuotaExceeded when there are as many streams as there may be."""
        most = self.tenant.quota.max_streams
        if most is not None and len(self) >= most:
            raise QuotaExceeded(
                f"{len(self)} streams of this tenant are open, the quota is {most}",
                quota="streams",
                limit=most,
            )
        self._registry.check_room()

    def get(self, handle: str, epoch: int) -> Entry:
        """The stream of a handle, whose lease starts anew.

        Raises:
            InvalidRequest: there is no handle, or one that no stream can have.
            StreamClosed: it was closed.
            StreamNotFound: there is none, or the epoch is another one's.
        """
        entry = self._entries.get(handle)
        if entry is None or epoch not in (0, self._registry.epoch):
            self._checked(handle, epoch)
            if handle in self._closed:
                raise StreamClosed(f"stream {handle} was closed", handle=handle)
            raise StreamNotFound(f"no stream {handle!r}", handle=handle)
        entry.last_used = self._registry.clock()
        return entry

    def look_up(self, handle: str) -> DecoderSession | None:
        """As ``StreamRegistry.look_up``."""
        entry = self._entries.get(handle)
        return None if entry is None else entry.session

    def get_to_change(self, handle: str, epoch: int) -> Entry:
        """:meth:`get` for what changes the stream. Raises SessionBusy, too, while it is being exported and
        there was no room for the copies that its changes would need."""
        entry = self.get(handle, epoch)
        if entry.frozen:
            raise SessionBusy(
                f"stream {handle} is being exported, and there is no room for copies of what would change; "
                f"it takes changes again when that has ended",
                handle=handle,
            )
        return entry

    def close(self, handle: str, epoch: int, request_id: str, generation: int | None = None) -> Closed:
        """Ends a stream and frees its memory; repeated with the same id it gives the first answer.

        Raises:
            InvalidRequest, StreamClosed, StreamNotFound: as :meth:`get`.
            StaleGeneration: it is not that of whoever had it in this generation any more.
        """
        earlier = self._closed.get(self._checked(handle, epoch))
        if earlier is not None and request_id and earlier.close_id == request_id:
            return earlier
        entry = self.get(handle, epoch)
        if generation is not None:
            check_owner(entry, generation)
        return self._end(entry, request_id)

    def expire(self, oldest: float) -> int:
        """Closes the streams that were last used then, or before, and that no export is at work on; how many
        there were."""
        stale = [entry for entry in self if entry.last_used <= oldest and not entry.exports]
        for entry in stale:
            self._end(entry, "")
        return len(stale)

    def leave_all(self) -> None:
        """Ends with every stream; what is in a file stays there, for the next start."""
        for entry in self:
            entry.session.detach()
        self._entries.clear()

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

    def _tag(self, request_id: str, origin: Origin | Imported | None, projections_name: str) -> Tag:
        return Tag(secrets.token_urlsafe(18), request_id, origin, projections_name, self.tenant.name)

    def _session(self, spec: StreamSpec, projections: Projections, tag: bytes | None) -> DecoderSession:
        return DecoderSession(
            spec, self._registry.arena, projections=projections, tag=tag, account=self.tenant.account
        )

    def _end(self, entry: Entry, request_id: str) -> Closed:
        length, released = entry.session.length, entry.session.close()
        del self._entries[entry.handle]
        # Its name may be another's by now: a file can have two of one name, if the first was set aside when
        # the request was repeated.
        if self._opened.get(entry.open_id) is entry:
            del self._opened[entry.open_id]
        for name in [name for name, kept in self._prefixes.items() if kept is entry]:
            del self._prefixes[name]
        closed = Closed(request_id, length, released)
        self._closed[entry.handle] = closed
        if len(self._closed) > _TOMBSTONES:
            self._closed.popitem(last=False)
        return closed


def same_streams(one: StreamSpec, other: StreamSpec) -> bool:
    """Whether two specifications mean the same stream, whatever they leave to defaults."""

    def meaning(spec: StreamSpec) -> tuple[int, frozenset[LayerGroup]]:
        groups = (replace(group, scale=group.score_scale) for group in spec.groups)
        return spec.length_limit, frozenset(groups)

    return meaning(one) == meaning(other)
