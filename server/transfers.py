"""Snapshots over the wire: ExportStream and ImportStream, a piece at a time.

Every piece is an operation of its own on the scheduler's worker, so a large stream does not keep the others
waiting; between two pieces the call waits for its caller, never the worker for the call. A stream that is
exported can be changed meanwhile: the export holds its pages as a fork does, and what is written to is copied
first. Where the arena has no room for such copies nothing changes the stream until the export has ended: what
would is refused, since waiting would have no bound but the slowest reader's.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from rondel.decoder.errors import BudgetExceeded, DeadlineExpired, InvalidRequest, QuotaExceeded, StreamClosed
from rondel.decoder.projection import Projections
from rondel.decoder.restore import Restoring
from rondel.decoder.session import DecoderSession
from rondel.decoder.snapshot import PIECE_BYTES, SnapshotPieces
from rondel.server.bounds import PIECE_FRAME
from rondel.server.config import ServerConfig
from rondel.server.door import Call
from rondel.server.entries import Entry, Imported
from rondel.server.operation import Load
from rondel.server.projections import ProjectionSets
from rondel.server.replies import milliseconds, opened
from rondel.server.scheduler import Scheduler
from rondel.server.streams import StreamRegistry
from rondel.server.tenant_streams import TenantStreams
from rondel.v1 import attention_pb2 as pb

_EXPORT, _IMPORT = Load("export"), Load("import")
LEAST_PIECE: Final = 256
"""Least that a caller may ask for in a reply: smaller ones would cost more than they carry."""
MOST_SENT: Final = 128 << 10
"""Most that a reply carries. Copies of one stay in the server's memory while its reader stalls: with 1 MiB in
each that was 6 MiB, most of which the C library kept afterwards. Now it is below 0.5, and exports are as
fast."""


class Transfers:
    """Carries out exports and imports."""

    def __init__(
        self, config: ServerConfig, streams: StreamRegistry, scheduler: Scheduler, projections: ProjectionSets
    ) -> None:
        self._streams = streams
        self._scheduler = scheduler
        self._projections = projections
        self._largest = max(LEAST_PIECE, min(MOST_SENT, config.max_message_bytes - PIECE_FRAME))
        self._stall = config.stall_timeout_seconds or None
        self._lease_ms = milliseconds(config.idle_lease_seconds)

    async def send(self, request: pb.ExportStreamRequest, call: Call) -> None:
        """Writes a stream's snapshot to the call."""
        size = request.max_data_bytes or PIECE_BYTES
        if not LEAST_PIECE <= size <= PIECE_BYTES:
            raise InvalidRequest(
                f"max_data_bytes must be 0 or from {LEAST_PIECE} to {PIECE_BYTES}, got {size}",
                field="max_data_bytes",
            )
        export = _Export(self._streams, call.tenant, request.stream, min(size, self._largest))
        cost = call.size
        try:
            while True:
                data = await self._scheduler.run(
                    export.next, cost=cost, deadline=call.deadline, tenant=call.tenant, load=_EXPORT
                )
                if not data:
                    return
                cost = 0
                writing = call.write(pb.ExportStreamResponse(data=data, total_bytes=export.total_bytes))
                del data  # while the caller takes its time, only what gRPC has of it stays
                async with _patience(self._stall, "nobody has read the export"):
                    await writing
        finally:
            # Posted, not awaited: this may be the end of a cancelled call, and what the worker is doing for
            # it now must be over first.
            self._scheduler.post(export.close, tenant=call.tenant)

    async def receive(
        self, requests: AsyncIterator[pb.ImportStreamRequest], call: Call
    ) -> pb.ImportStreamResponse:
        """Makes a stream of the snapshot that the call sends."""
        incoming: _Import | None = None
        try:
            while True:
                async with _patience(self._stall, "nobody has fed the import"):
                    request = await anext(requests, None)
                if request is None:
                    break
                _check_piece(request, first=incoming is None)
                cost = 0
                if incoming is None:
                    incoming = _Import(self._streams, call.tenant, self._projections, request)
                    cost = request.ByteSize()
                work = partial(incoming.feed, request.data)
                await self._scheduler.run(
                    work, cost=cost, deadline=call.deadline, tenant=call.tenant, load=_IMPORT
                )
            if incoming is None:
                raise InvalidRequest("an import has at least one request, got none", field="data")
            return await self._scheduler.run(
                partial(self._end, incoming), cost=0, deadline=call.deadline, tenant=call.tenant
            )
        finally:
            if incoming is not None:
                self._scheduler.post(incoming.close, tenant=call.tenant)

    def _end(self, incoming: _Import) -> pb.ImportStreamResponse:
        entry = incoming.finish()
        return pb.ImportStreamResponse(
            opened=opened(entry, self._streams, self._lease_ms),
            total_bytes=incoming.size,
        )


class _Export:
    """A stream on its way out. For the worker, but for ``total_bytes``."""

    total_bytes = 0

    def __init__(self, streams: StreamRegistry, tenant: str, stream: pb.StreamRef, piece_bytes: int) -> None:
        self._streams = streams
        self._tenant = tenant
        self._stream = stream
        self._piece_bytes = piece_bytes
        self._entry: Entry | None = None
        self._pieces: SnapshotPieces | None = None
        self._freezes = False

    def next(self) -> bytes:
        """The next bytes; none at the end."""
        streams = self._streams.of(self._tenant)
        entry = streams.get(self._stream.handle, self._stream.epoch)  # which also renews its lease
        if self._pieces is None:
            try:
                self._pieces = entry.session.snapshot_pieces(at_most=self._piece_bytes, apart=True)
            except (BudgetExceeded, QuotaExceeded):
                self._pieces = entry.session.snapshot_pieces(at_most=self._piece_bytes)
                entry.frozen += 1
                self._freezes = True
            self.total_bytes = self._pieces.total_bytes
            self._entry = entry
            entry.exports += 1
        return next(self._pieces, b"")

    def close(self) -> None:
        """Gives back what it holds, and lets the stream change again."""
        if self._entry is not None and self._pieces is not None:
            self._pieces.close()
            self._entry.exports -= 1
            self._entry.frozen -= self._freezes
            self._entry = None


class _Import:
    """A stream on its way in. For the worker."""

    def __init__(
        self,
        registry: StreamRegistry,
        tenant: str,
        projections: ProjectionSets,
        first: pb.ImportStreamRequest,
    ) -> None:
        self.size = 0
        self._registry = registry
        self._tenant = tenant
        self._sets = projections
        self._name = first.projections
        self._request_id = first.request_id
        # A CRC of the whole would be the same for all snapshots of a size: each section has its own in it.
        self._digest = hashlib.sha256()
        self._restoring: Restoring[DecoderSession] | None = None
        self._projections: Projections | None = None

    @property
    def _streams(self) -> TenantStreams:
        return self._registry.of(self._tenant)

    def feed(self, data: bytes) -> None:
        """Takes the next bytes."""
        if self._projections is None:
            self._begin()
        self.size += len(data)
        if self._request_id:
            self._digest.update(data)
        if self._restoring is not None:
            self._restoring.feed(data)

    def finish(self) -> Entry:
        """The stream."""
        if self._projections is None:
            raise InvalidRequest("an import begins with a request, got its end", field="data")
        imported = Imported(self.size, self._digest.digest())
        earlier = self._streams.repeated(self._request_id, imported)
        if earlier is not None:  # before this import, or while it was on its way
            if earlier.session.projections is not self._projections:
                raise InvalidRequest(
                    f"request_id {self._request_id!r} has imported a stream with other projections",
                    field="request_id",
                )
            return earlier
        if self._restoring is None:
            raise StreamClosed(f"the stream that {self._request_id!r} imported was closed meanwhile")
        session = self._restoring.finish()
        try:
            return self._streams.adopt(session, self._request_id, imported, self._name)
        except BaseException:
            session.close()
            raise

    def close(self) -> None:
        """Gives back what no stream has come of."""
        if self._restoring is not None:
            self._restoring.close()
            self._restoring = None

    def _begin(self) -> None:
        self._projections = projections = self._sets.get(self._name)
        # A repeated import is only read and compared: there may not be room for the stream twice.
        streams = self._streams
        if not streams.knows(self._request_id):
            streams.check_room()
            self._restoring = Restoring(lambda spec: streams.unpublished(spec, projections))


def _check_piece(request: pb.ImportStreamRequest, *, first: bool) -> None:
    if len(request.data) > PIECE_BYTES:
        raise InvalidRequest(
            f"data has at most {PIECE_BYTES} bytes in a request, got {len(request.data)}", field="data"
        )
    for field in ("request_id", "projections"):
        if not first and getattr(request, field):
            raise InvalidRequest(f"{field} belongs into an import's first request, got it later", field=field)


@asynccontextmanager
async def _patience(seconds: float | None, what: str) -> AsyncIterator[None]:
    """Waits inside for a caller, at most so long. Raises DeadlineExpired."""
    try:
        async with asyncio.timeout(seconds) as waiting:
            yield
    except TimeoutError as error:
        if not waiting.expired():
            raise
        raise DeadlineExpired(f"{what} for {seconds:g} s, so it was ended") from error
