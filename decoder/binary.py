"""Binary files as far as snapshots need them: something to read from, something to write to."""

from __future__ import annotations

import io
from typing import Protocol

from rondel.decoder.errors import InvalidRequest


class BinaryReader(Protocol):
    """A binary file, or whatever gives bytes like one: at least one, or none at the end."""

    def read(self, size: int, /) -> bytes: ...


class BinaryWriter(Protocol):
    """A binary file, or whatever takes bytes like one. It says how many it took; None = all."""

    def write(self, data: bytes, /) -> int | None: ...


def write_all(file: BinaryWriter, data: bytes) -> None:
    """Write all of it: an unbuffered file may take a part only.

    Raises:
        BlockingIOError: it is one that must not wait, and takes nothing now.
        InvalidRequest: it says that it took nothing, or more than it was given: it would be asked for ever.
        OSError: whatever the file raises.
    """
    left = data
    while left:
        taken = file.write(left)
        if taken is None:
            if isinstance(file, io.RawIOBase):
                raise BlockingIOError("the file takes nothing now, and a snapshot must be written whole")
            return
        if not 0 < taken <= len(left):
            raise InvalidRequest(
                f"a file takes from 1 to all of the {len(left)} bytes that it is given, got {taken}",
                field="file",
            )
        left = left[taken:]
