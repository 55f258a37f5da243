"""Exports and imports without their input and output: pieces, sizes, and what is known of a source."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

from rondel.client import calls
from rondel.client.calls import Call
from rondel.client.checks import checked_text
from rondel.client.core import StreamCore
from rondel.client.lasting import request_id
from rondel.decoder.binary import BinaryReader
from rondel.decoder.errors import InvalidRequest, ServerInternal
from rondel.v1 import attention_pb2 as pb

Progress = Callable[[int, int], None]
"""Told again and again how many bytes are done, and how many there are; 0 = that is not known."""

S = TypeVar("S", bound=StreamCore)

_MOST: Final = 1 << 20
_LEAST: Final = 256
_FRAME: Final = 512
"""Bytes of a message besides those of the snapshot, at most."""


def piece_bytes(limit: int) -> int:
    """Bytes of a snapshot in a message, where messages have at most ``limit``."""
    return max(_LEAST, min(_MOST, limit - _FRAME))


def export_call(ref: pb.StreamRef, limit: int) -> Call:
    """The call that exports a stream in messages of at most ``limit`` bytes."""
    return Call(calls.EXPORT, pb.ExportStreamRequest(stream=ref, max_data_bytes=piece_bytes(limit)))


def ref_of(handle: str) -> pb.StreamRef:
    """A stream that somebody else has opened. Raises InvalidRequest."""
    return pb.StreamRef(handle=checked_text("handle", handle))


class Arriving:
    """A snapshot on its way in."""

    def __init__(self, progress: Progress | None) -> None:
        self.received = 0
        self._total = 0
        self._progress = progress

    def take(self, reply: pb.ExportStreamResponse) -> bytes:
        """The bytes of a reply."""
        self.received += len(reply.data)
        self._total = reply.total_bytes
        if self._progress is not None:
            self._progress(self.received, self._total)
        return reply.data

    def end(self) -> int:
        """Bytes of it all. Raises ServerInternal if some are missing."""
        if not 0 < self.received == self._total:
            raise ServerInternal(f"the server sent {self.received} bytes of an export of {self._total}")
        return self.received


class Source:
    """A snapshot on its way out, with the name that makes its import happen once."""

    def __init__(self, file: BinaryReader, projections: str, progress: Progress | None, *, most: int) -> None:
        self._file = file
        self._projections = checked_text("projections", projections)
        self._progress = progress
        self._most = piece_bytes(most)
        self._name = request_id()
        self._start = _place(file)
        self._total = _size(file, self._start)
        self._sent = 0
        self._first = True

    def next(self) -> pb.ImportStreamRequest | None:
        """The next request; None at the end. Raises what the file raises, and InvalidRequest."""
        data = self._file.read(self._most)
        if not isinstance(data, bytes | bytearray | memoryview):
            raise InvalidRequest(
                f"a snapshot is read from a binary file, got {type(data).__name__}", field="file"
            )
        if not data and not self._first:
            return None
        request = pb.ImportStreamRequest(data=bytes(data))
        if self._first:
            request.request_id, request.projections = self._name, self._projections
            self._first = False
        self._sent += len(data)
        if self._progress is not None:
            self._progress(self._sent, self._total)
        return request

    def rewind(self) -> bool:
        """Begin anew, for another try; False where the file cannot."""
        if self._start is None:
            return False
        self._file.seek(self._start)  # type: ignore[attr-defined]  # it has told its place
        self._sent, self._first = 0, True
        return True


def _place(file: Any) -> int | None:
    with suppress(AttributeError, OSError, ValueError):
        if file.seekable():
            return int(file.tell())
    return None


def _size(file: Any, start: int | None) -> int:
    if start is None:
        return 0
    end = int(file.seek(0, 2))
    file.seek(start)
    return max(0, end - start)
