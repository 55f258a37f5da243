"""Snapshots: a stream as a run of bytes, from which it goes on to the bit, elsewhere and at another time.

The format, version 1, little-endian, the same on every machine and tier:

- preamble, 24 bytes: magic (8 bytes) · version uint32 · bytes of the header uint32 · checksum of the header
  uint32 · checksum of the 20 bytes before uint32. It stays as it is in every later version.
- header: see ``snapshot_header.py``.
- pages, in the order of ``snapshot_pages.py``: layer uint32 · index uint32 · the page's bytes as they are
  stored · checksum of all these uint32.
- trailer, 32 bytes: magic (8 bytes) · number of pages uint64 · bytes of the whole snapshot uint64 · checksum
  of all the checksums before, in order, uint32 · checksum of the 28 bytes before uint32. Nothing follows it.

Checksums are CRC-32 as zlib has it. It finds every flipped byte and runs at 4 GiB/s from the standard
library, which has no CRC-32C; in Python that would run at a thousandth of it, and cryptographic sums at a
sixth to a third, for a promise that nobody asks for here: whoever can write a snapshot can write its sums.
What is sound in itself but cannot be a stream is refused by looking at it.

Layers at different lengths are kept as they are: tokens that only some layers have are not committed, but a
caller who goes on where it stopped needs them. Whoever wants the committed tokens only truncates afterwards.
"""

from __future__ import annotations

import struct
import weakref
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Final

from rondel.decoder.binary import BinaryWriter, write_all
from rondel.decoder.cache.arena import Reservation
from rondel.decoder.cache.extent import StreamExtent
from rondel.decoder.cache.layout import FORMAT_VERSION, RingLayout
from rondel.decoder.cache.ring import GroupRings
from rondel.decoder.errors import SessionBusy
from rondel.decoder.snapshot_header import SnapshotHeader
from rondel.decoder.snapshot_pages import SnapshotPage, pages_of
from rondel.decoder.spec import StreamSpec, integer
from rondel.decoder.turn import Turn
from rondel.decoder.view import StreamView

VERSION: Final = 1
MAGIC: Final = b"\x89RNDL\r\n\x1a"
"""Not text, and no longer the same after a transfer that takes it for text."""
END_MAGIC: Final = b"RNDLEND\n"
PREAMBLE: Final = struct.Struct("<8sIII")
PAGE_HEAD: Final = struct.Struct("<II")
TRAILER: Final = struct.Struct("<8sQQI")
CHECKSUM: Final = struct.Struct("<I")
PIECE_BYTES: Final = 1 << 20
"""Bytes that are read or written at once, at most."""


class PreservedStream(StreamView, ABC):
    """A stream that can be written down."""

    @abstractmethod
    def close(self) -> int:
        """Give all pages back; the bytes that are free then."""

    def snapshot(self, writer: BinaryWriter) -> int:
        """Write the stream to a binary file and return the number of bytes; the stream stays as it is.

        ``DecoderSession.restore`` reads it back, and what was restored goes on as this stream would: tokens
        that only some layers have, undone tokens' claims, generation and seal included. Projections are not
        part of it, nor is what a fork was held to (``max_new_tokens``): what was restored has reserved all.

        Raises:
            InvalidSpec: the header would be too large (seventy groups, each with 512 rope divisors).
            OSError: whatever the file raises.
        """
        with self._turn:
            snapshot = _Snapshot.of(self.spec, self._extent, self._rings, self._pages)
            for piece in snapshot.pieces(PIECE_BYTES):
                write_all(writer, piece)
            return snapshot.total_bytes

    def snapshot_pieces(self, *, at_most: int = PIECE_BYTES, apart: bool = False) -> SnapshotPieces:
        """The bytes of :meth:`snapshot` in pieces of ``at_most`` bytes, each made when it is asked for.

        The stream may be read in between, not changed; with ``apart`` it may be changed, and even closed: the
        pieces hold its pages as a fork does, with room for a copy of each that is written to meanwhile, until
        the last is given out or ``close`` of them is called.

        Raises:
            InvalidRequest, InvalidSpec: ``at_most`` is below 1; as snapshot does.
            BudgetExceeded, QuotaExceeded: no room for the copies, in the arena or on the account.
        """
        at_most = integer("at_most", at_most, least=1)
        with self._turn:
            if not apart:
                snapshot = _Snapshot.of(self.spec, self._extent, self._rings, self._pages)
                return SnapshotPieces(snapshot, at_most, self._turn, self._extent)
            rings = [ring.fork() for ring in self._rings]
            pages = self._pages.hold(copies=not self._extent.sealed)
            try:
                return SnapshotPieces(_Snapshot.of(self.spec, self._extent, rings, pages), at_most)
            except BaseException:
                pages.release()
                raise


class SnapshotPieces(Iterator[bytes]):
    """A snapshot on its way. ``next`` raises SessionBusy, and then always, once the stream has changed: what
    was given out belongs to no stream. Raises StreamClosed, too. Neither where it is apart from the stream,
    unless it was closed itself; but ArenaFileError once the arena's file was closed."""

    def __init__(
        self, snapshot: _Snapshot, at_most: int, turn: Turn | None = None, extent: StreamExtent | None = None
    ) -> None:
        self.total_bytes: Final = snapshot.total_bytes
        """Bytes of all pieces."""
        self._turn = Turn() if turn is None else turn
        self._extent = extent
        self._begun = self._state()
        self._pieces = snapshot.pieces(at_most)
        # Given back also if they are dropped; a stream that they are not apart from keeps its own pages.
        self._held = snapshot.pages if extent is None else None
        if self._held is not None:
            weakref.finalize(self, self._held.abandon).atexit = False

    def __next__(self) -> bytes:
        with self._turn:
            if self._state() != self._begun:
                raise SessionBusy("the stream was changed while its snapshot was taken, which has ended")
            if self._held is not None:
                self._held.check_held()
            try:
                return next(self._pieces)
            except StopIteration:
                if self._held is not None:
                    self._held.release()
                raise

    def close(self) -> None:
        """Give back what is held for it, if it is apart from its stream. Doing it twice is harmless."""
        if self._held is not None and not self._turn.closed:
            with self._turn:
                self._turn.closed = True
                self._held.release()

    def _state(self) -> tuple[object, ...]:
        """Whatever is done to a stream changes one of these."""
        if self._extent is None:
            return ()
        return *self._extent.marks(), self._extent.generation, self._extent.sealed


class _Snapshot:
    """A stream's snapshot in the making."""

    def __init__(self, header: SnapshotHeader, rings: Sequence[GroupRings], pages: Reservation) -> None:
        self.header = header
        self._raw = header.encode()
        self._rings = rings
        self.pages = pages
        self._layouts: list[RingLayout] = [each.layout for each in rings]
        self._sums = self._count = 0
        self.total_bytes = PREAMBLE.size + len(self._raw) + TRAILER.size + 2 * CHECKSUM.size
        for page in pages_of(header, self._layouts):
            self._count += 1
            self.total_bytes += PAGE_HEAD.size + page.layout.page_bytes + CHECKSUM.size

    @classmethod
    def of(
        cls, spec: StreamSpec, extent: StreamExtent, rings: Sequence[GroupRings], pages: Reservation
    ) -> _Snapshot:
        lengths, claimed, _, high_water = extent.marks()
        header = SnapshotHeader(
            spec=spec,
            page_format=FORMAT_VERSION,
            lengths=tuple(lengths),
            claimed=tuple(claimed),
            high_water=high_water,
            generation=extent.generation,
            sealed=extent.sealed,
        )
        return cls(header, rings, pages)

    def pieces(self, at_most: int) -> Iterator[bytes]:
        """All of it in pieces of ``at_most`` bytes; the last may be shorter."""
        waiting = bytearray()
        for part in self._parts():
            left = memoryview(part)
            while len(waiting) + len(left) >= at_most:
                cut = at_most - len(waiting)
                yield b"".join((waiting, left[:cut]))
                waiting, left = bytearray(), left[cut:]
            waiting += left
        if waiting:
            yield bytes(waiting)

    def _parts(self) -> Iterator[bytes | memoryview]:
        start = PREAMBLE.pack(MAGIC, VERSION, len(self._raw), zlib.crc32(self._raw))
        yield from (start, self._summed(zlib.crc32(start)), self._raw)
        for page in pages_of(self.header, self._layouts):
            yield from self._page(page)
        end = TRAILER.pack(END_MAGIC, self._count, self.total_bytes, self._sums)
        yield from (end, CHECKSUM.pack(zlib.crc32(end)))

    def _page(self, page: SnapshotPage) -> Iterator[bytes | memoryview]:
        rings = self._rings[self.header.spec.group_index(page.layer)]
        offset = int(rings.table(page.layer)[page.index])
        held = self.pages.contents(page.layout.page_bytes, offset).data
        head = PAGE_HEAD.pack(page.layer, page.index)
        checksum = zlib.crc32(head)
        yield head
        for section in page.sections():
            checksum = zlib.crc32(held[section], checksum)
            yield held[section]
        yield self._summed(checksum)

    def _summed(self, checksum: int) -> bytes:
        raw = CHECKSUM.pack(checksum)
        self._sums = zlib.crc32(raw, self._sums)
        return raw
