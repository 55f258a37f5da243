"""The last truncate of a stream: what it did, and a note of whoever asked for it.

In a file two places take turns, so that the one before is there until the next has been carried out. A place
has 256 bytes: the generation that the truncate began uint64 · the length that it left uint64 · bytes of the
note uint32 · CRC-32 of these and of the note uint32 · the note.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Final

from rondel.decoder.cache import crash
from rondel.decoder.errors import InvalidRequest

PLACES: Final = 2
PLACE_BYTES: Final = 256
_HEAD: Final = struct.Struct("=QQI")
_CHECKSUM: Final = struct.Struct("=I")
_NOTE: Final = _HEAD.size + _CHECKSUM.size
MAX_NOTE: Final = PLACE_BYTES - _NOTE


@dataclass(frozen=True, slots=True)
class Cut:
    """A truncate to ``length`` that began ``generation``, and the note that came with it."""

    generation: int
    length: int
    note: bytes = b""


def checked_note(note: bytes) -> bytes:
    """``note`` if it is bytes, at most MAX_NOTE of them. Raises InvalidRequest."""
    if not isinstance(note, bytes) or len(note) > MAX_NOTE:
        got = f"{len(note)} bytes" if isinstance(note, bytes) else type(note).__name__
        raise InvalidRequest(f"note must be at most {MAX_NOTE} bytes, got {got}", field="note")
    return note


def write_cut(place: memoryview, cut: Cut) -> None:
    """Write it to a place of PLACE_BYTES bytes."""
    head = _HEAD.pack(cut.generation, cut.length, len(cut.note))
    place[_NOTE : _NOTE + len(cut.note)] = cut.note
    crash.crash_point("cut")
    place[:_NOTE] = head + _CHECKSUM.pack(zlib.crc32(cut.note, zlib.crc32(head)))


def read_cut(place: memoryview) -> Cut | None:
    """What a place holds; None = no truncate, or a damaged one."""
    generation, length, size = _HEAD.unpack_from(place)
    (checksum,) = _CHECKSUM.unpack_from(place, _HEAD.size)
    note = bytes(place[_NOTE : _NOTE + min(size, MAX_NOTE)])
    if size > MAX_NOTE or zlib.crc32(note, zlib.crc32(place[: _HEAD.size])) != checksum:
        return None
    return Cut(generation, length, note)
