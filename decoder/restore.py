"""Reading a snapshot back: into a stream that nobody sees before its last byte was found right.

The format is described in ``snapshot.py``. Sizes come from the specification, once that was found possible
and has its pages reserved; no number in the input is ever a size to allocate, except the header's, which is
bounded.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator
from contextlib import nullcontext, suppress
from typing import Final, Generic, NoReturn, TypeVar

from rondel.decoder.binary import BinaryReader
from rondel.decoder.cache.layout import FORMAT_VERSION
from rondel.decoder.cache.ring import GroupRings
from rondel.decoder.errors import CorruptSnapshot, InvalidRequest, UnsupportedSnapshot
from rondel.decoder.snapshot import (
    CHECKSUM,
    END_MAGIC,
    MAGIC,
    PAGE_HEAD,
    PIECE_BYTES,
    PREAMBLE,
    TRAILER,
    VERSION,
    PreservedStream,
)
from rondel.decoder.snapshot_header import MAX_HEADER_BYTES, SnapshotHeader
from rondel.decoder.snapshot_pages import SnapshotPage, columns_of, pages_of
from rondel.decoder.spec import PAGE_SLOTS, StreamSpec

Stream = TypeVar("Stream", bound=PreservedStream)


class Restoring(Generic[Stream]):
    """A stream on its way back. Bytes are fed in pieces of any size; :meth:`finish` gives the stream.

    ``make`` opens an empty stream. After any error, and after :meth:`close`, everything has been given back.
    """

    def __init__(self, make: Callable[[StreamSpec], Stream]) -> None:
        self._make: Final = make
        self._stream: Stream | None = None
        self._offset = 0
        self._sums = 0
        self._section = 0
        self._ended = False
        self._steps = self._read()
        self._left = next(self._steps)

    def feed(self, data: bytes) -> None:
        """Take the next bytes.

        Raises:
            CorruptSnapshot: they are not what can follow.
            UnsupportedSnapshot: a newer version wrote the snapshot.
            StreamClosed: the arena's file was closed meanwhile.
            Exception: whatever ``make`` raises, BudgetExceeded above all.
        """
        try:
            left = memoryview(data)
            while left:
                # So the arena's file is not closed, and another's, in the middle of it.
                with nullcontext() if self._stream is None else self._stream._turn:
                    left = self._take(left)
        except BaseException:
            self.close()
            raise

    def finish(self) -> Stream:
        """The stream. Raises CorruptSnapshot unless all of a snapshot was fed."""
        stream = self._stream
        if not self._ended or stream is None:
            self.close()
            raise CorruptSnapshot(
                f"the snapshot ends after {self._offset} bytes, before its trailer does",
                part="end",
                offset=self._offset,
            )
        self._stream = None
        return stream

    def close(self) -> None:
        """Give everything back, unless :meth:`finish` has given it away. Doing it twice is harmless."""
        self._steps.close()
        self._ended = False
        self._left = memoryview(b"")
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _take(self, data: memoryview) -> memoryview:
        """Fills what is wanted next; what is left of the data."""
        if not self._left:
            self._refuse("end", "it goes on after its trailer" if self._ended else "it was refused before")
        size = min(len(data), len(self._left))
        self._left[:size] = data[:size]
        self._section = zlib.crc32(data[:size], self._section)
        self._offset += size
        self._left = self._left[size:]
        if not self._left:
            with suppress(StopIteration):
                self._left = next(self._steps)
        return data[size:]

    # --- what follows what ----------------------------------------------------------------------------

    def _read(self) -> Generator[memoryview, None, None]:
        """Asks for the parts of a snapshot one after the other; each is filled when it goes on."""
        raw, checksum = yield from self._preamble()
        yield memoryview(raw)
        if self._section != checksum:
            self._refuse("header", f"the header's checksum must be {checksum}, got {self._section}")
        header = SnapshotHeader.decode(bytes(raw), page_format=FORMAT_VERSION)
        # From here on there is something to give back; whoever fed us does that when this raises.
        stream = self._stream = self._make(header.spec)
        layouts = [rings.layout for rings in stream._rings]
        count = 0
        for page in pages_of(header, layouts):
            yield from self._page(stream, page)
            count += 1
        for rings in stream._rings:
            if columns := columns_of(header, rings.layout):
                _take_pages(stream, rings, columns)
        yield from self._trailer(count, self._offset + TRAILER.size + CHECKSUM.size)
        marks = (list(header.lengths), list(header.claimed), header.length, header.high_water)
        stream._extent.resume(marks, generation=header.generation, sealed=header.sealed)
        self._ended = True

    def _preamble(self) -> Generator[memoryview, None, tuple[bytearray, int]]:
        start = bytearray(PREAMBLE.size)
        yield memoryview(start)
        magic, version, header_bytes, checksum = PREAMBLE.unpack(start)
        if magic != MAGIC:
            self._refuse("preamble", f"it must begin with {MAGIC!r}, got {magic!r}")
        yield from self._checksum("preamble")
        if version != VERSION:
            raise UnsupportedSnapshot(
                f"the snapshot is of version {version}, this version of Rondel reads {VERSION}",
                version=version,
                supported=VERSION,
            )
        if not 1 <= header_bytes <= MAX_HEADER_BYTES:
            self._refuse("preamble", f"a header has 1 to {MAX_HEADER_BYTES} bytes, got {header_bytes}")
        return bytearray(header_bytes), checksum

    def _page(self, stream: Stream, page: SnapshotPage) -> Generator[memoryview, None, None]:
        self._section = 0
        head = bytearray(PAGE_HEAD.size)
        yield memoryview(head)
        got, want = PAGE_HEAD.unpack(head), (page.layer, page.index)
        if got != want:
            self._refuse("page", f"layer and page must be {want}, got {got}")
        rings = stream._rings[stream.spec.group_index(page.layer)]
        _take_pages(stream, rings, page.index)
        offset = int(rings.table(page.layer)[page.index])
        held = stream._pages.contents(page.layout.page_bytes, offset)
        for section in page.sections():
            yield held.data[section]
            page.check(section, held[section])
        yield from self._checksum("page", layer=page.layer, page=page.index)

    def _trailer(self, pages: int, size: int) -> Generator[memoryview, None, None]:
        self._section = 0
        end = bytearray(TRAILER.size)
        yield memoryview(end)
        got, want = TRAILER.unpack(end), (END_MAGIC, pages, size, self._sums)
        if got != want:
            self._refuse("trailer", f"its trailer must be {want}, got {got}")
        yield from self._checksum("trailer")

    def _checksum(self, part: str, **facts: int) -> Generator[memoryview, None, None]:
        """Reads the checksum of the section just read, and begins the next one."""
        want = self._section
        raw = bytearray(CHECKSUM.size)
        yield memoryview(raw)
        (got,) = CHECKSUM.unpack(raw)
        if got != want:
            self._refuse(part, f"a checksum must be {want}, got {got}", **facts)
        self._sums = zlib.crc32(raw, self._sums)
        self._section = 0

    def _refuse(self, part: str, why: str, **facts: int) -> NoReturn:
        raise CorruptSnapshot(
            f"the snapshot is wrong in its {part}, before byte {self._offset}: {why}",
            part=part,
            offset=self._offset,
            **facts,
        )


def _take_pages(stream: PreservedStream, rings: GroupRings, columns: int) -> None:
    """Take the sink pages, if there are any, and so many ring pages per layer, unless they are taken."""
    rings.grow(rings.group.sinks + columns * PAGE_SLOTS, stream._pages)


def restored(make: Callable[[StreamSpec], Stream], reader: BinaryReader) -> Stream:
    """The stream in a snapshot that is read to its end. Raises what :meth:`Restoring.feed` raises."""
    restoring = Restoring(make)
    try:
        while data := reader.read(PIECE_BYTES):
            if not isinstance(data, bytes | bytearray | memoryview):
                raise InvalidRequest(
                    f"a snapshot is read from a binary file, got {type(data).__name__}",
                    field="reader",
                )
            restoring.feed(data)
        return restoring.finish()
    finally:
        restoring.close()
