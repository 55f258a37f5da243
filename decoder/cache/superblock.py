"""The first bytes of an arena's file: what the file is, and where everything in it stands.

A file has, in this order: the superblock (4,096 bytes) · the slab map, a word per unit: the page size of the
slab that begins there, or 0 · the stream table, 512 words per unit, 65,536 at most: the offset of a
stream's record plus 1, or 0 · zeros up to a multiple of 2 MiB · the units themselves. Words are those of
``words.py``, in the byte order of the machine; pages are as ``layout.py`` says, records as ``record.py``.

The superblock is written once, its magic last, and never changes. Its first 64 bytes keep their meaning in
every later version, so that a version can be read off any file.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Final, Self

from rondel.decoder.cache.layout import FORMAT_VERSION, round_up
from rondel.decoder.cache.slabs import UNIT
from rondel.decoder.cache.words import WORD_BYTES
from rondel.decoder.errors import CorruptArena, UnsupportedArena

VERSION: Final = 2
MAGIC: Final = b"\x89RNDLARN"
CREATING: Final = b"\x89RNDLNEW"
"""In place of the magic while a file is made: nothing in it was ever promised to anybody."""
BLOCK_BYTES: Final = 4096
SLOTS_PER_UNIT: Final = 512
MAX_SLOTS: Final = 1 << 16
_ORDER: Final = 0x01020304
_FIELDS: Final = struct.Struct("=IIIQQQQ")
_CHECKSUM: Final = struct.Struct("=I")
FIXED_BYTES: Final = len(MAGIC) + _FIELDS.size + _CHECKSUM.size


@dataclass(frozen=True, slots=True)
class Superblock:
    """``identity`` is a random number from 1 to 2^62 that no other file has."""

    units: int
    identity: int

    @property
    def slots(self) -> int:
        """Streams that the table has room for."""
        return min(SLOTS_PER_UNIT * self.units, MAX_SLOTS)

    @property
    def map_range(self) -> slice:
        """Where the slab map stands, in bytes."""
        return slice(BLOCK_BYTES, BLOCK_BYTES + WORD_BYTES * self.units)

    @property
    def table_range(self) -> slice:
        """Where the stream table stands, in bytes."""
        start = BLOCK_BYTES + round_up(WORD_BYTES * self.units, BLOCK_BYTES)
        return slice(start, start + WORD_BYTES * self.slots)

    @property
    def first_unit(self) -> int:
        """Where the units begin, in bytes."""
        return round_up(self.table_range.stop, UNIT)

    @property
    def file_bytes(self) -> int:
        """Size of the file."""
        return self.first_unit + self.units * UNIT

    def encode(self) -> bytes:
        """All but the magic."""
        fields = (_ORDER, VERSION, FORMAT_VERSION, UNIT, self.units, self.slots, self.identity)
        raw = _FIELDS.pack(*fields)
        return raw + _CHECKSUM.pack(zlib.crc32(raw))

    @classmethod
    def decode(cls, raw: bytes, path: str) -> Self:
        """What the first bytes of a file say.

        Raises:
            CorruptArena: they are no superblock, or a damaged one.
            UnsupportedArena: it is of another version, or of a machine that stores numbers otherwise.
        """
        fields = raw[len(MAGIC) : FIXED_BYTES]
        if len(raw) < FIXED_BYTES or raw[: len(MAGIC)] != MAGIC:
            raise CorruptArena(f"{path} is no arena, or its beginning is damaged; it is left as it is")
        order, version, page_format, unit, units, slots, identity = _FIELDS.unpack_from(fields)
        (checksum,) = _CHECKSUM.unpack_from(fields, _FIELDS.size)
        if zlib.crc32(fields[: _FIELDS.size]) != checksum:
            raise CorruptArena(f"the superblock of {path} is damaged; the file is left as it is")
        wrong = {
            "byte order": (order, _ORDER),
            "version": (version, VERSION),
            "page format": (page_format, FORMAT_VERSION),
            "unit": (unit, UNIT),
            "stream table": (slots, cls(units, identity).slots),
        }
        for name, (got, want) in wrong.items():
            if got != want:
                raise UnsupportedArena(
                    f"{path} is an arena of {name} {got}, this version of Rondel reads {want}; it is left as "
                    f"it is",
                    version=got,
                    supported=want,
                )
        return cls(units, identity)
