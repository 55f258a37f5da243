"""All streams that the server keeps, by tenant: one arena, one epoch, one lease, one limit on their number.

Only the scheduler's worker uses a registry, one operation at a time; so it has no locks.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import QuotaExceeded
from rondel.decoder.session import DecoderSession
from rondel.server.entries import Entry, Origin
from rondel.server.tags import Tag
from rondel.server.tenant_streams import TenantStreams
from rondel.server.tenants import Tenants, Usage


@dataclass(slots=True, eq=False)
class StreamRegistry:
    """Tenants' streams. ``epoch`` is the same for all streams of one server start, or of one arena's file:
    handles are not reused."""

    arena: Arena
    max_streams: int
    lease_seconds: float = 0.0
    clock: Callable[[], float] = time.monotonic
    tenants: Tenants = field(default_factory=Tenants)
    epoch: int = field(init=False)
    start_id: int = field(init=False)
    """Number of this start of the server, where the epoch is the file's."""
    _streams: dict[str, TenantStreams] = field(default_factory=dict)

    def __post_init__(self) -> None:
        file = self.arena.file
        self.start_id = 1 + secrets.randbits(62)
        self.epoch = self.start_id if file is None else file.superblock.identity

    def __len__(self) -> int:
        return sum(map(len, self._streams.values()))

    def __iter__(self) -> Iterator[Entry]:
        """All open streams. Their leases stay as they are."""
        return chain.from_iterable(self._streams.values())

    def of(self, tenant: str) -> TenantStreams:
        """The streams of a tenant: all that its calls may see."""
        found = self._streams.get(tenant)
        if found is None:
            found = self._streams[tenant] = TenantStreams(self, self.tenants.get(tenant))
        return found

    def look_up(self, tenant: str, handle: str) -> DecoderSession | None:
        """The session of a tenant's handle: for estimates, from any thread. Its lease stays as it is."""
        streams = self._streams.get(tenant)
        return None if streams is None else streams.look_up(handle)

    def usage(self, tenant: str) -> Usage:
        """What a tenant has, to the byte. From any thread; numbers of one moment only on the worker."""
        streams, who = self._streams.get(tenant), self.tenants.get(tenant)
        account = who.account
        return Usage(
            0 if streams is None else len(streams),
            *(account.reserved, account.resident, account.shared),
            who.calls,
        )

    def check_room(self) -> None:
        """Raises QuotaExceeded when there are ``max_streams`` already."""
        if len(self) >= self.max_streams:
            raise QuotaExceeded(
                f"{len(self)} streams are open, the limit is {self.max_streams}",
                limit=self.max_streams,
            )

    def take_back(self, tag: Tag, session: DecoderSession) -> Entry:
        """A stream of an earlier start, under the handle and of the tenant that it had. Its lease starts
        anew."""
        streams = self.of(tag.tenant)
        session.charge(streams.tenant.account)
        entry = streams.add(session, tag)
        entry.found = session.generation
        if isinstance(tag.origin, Origin) and tag.origin.handle and tag.origin.prefix_name:
            streams.keep(entry, tag.origin.prefix_name)
        return entry

    def expire(self, now: float | None = None) -> int:
        """Closes the streams whose lease has run out; how many there were. ``now``: when that was asked for,
        if the requests that have come since are still to be carried out."""
        if not self.lease_seconds:
            return 0
        oldest = (self.clock() if now is None else now) - self.lease_seconds
        return sum(streams.expire(oldest) for streams in self._streams.values())

    def usages(self) -> dict[str, Usage]:
        """What every tenant has that has been here."""
        return {name: self.usage(name) for name in self._streams}

    def leave_all(self) -> None:
        """Ends with every stream; what is in a file stays there, for the next start."""
        for streams in self._streams.values():
            streams.leave_all()
