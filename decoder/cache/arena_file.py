"""Memory that is a file: what is stored in it outlives the process.

A process that is killed leaves what it stored in the system's page cache, in the order in which it stored it.
So the order of stores is all that there is to keep (``recorded.py``), and nothing is ever flushed. The file
has all its bytes from the beginning and keeps them: a hole would be found out by SIGBUS, when the disk is
full. Only offsets are stored, never addresses.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import stat
import weakref
from typing import Final

import numpy as np

from rondel.decoder.cache import crash
from rondel.decoder.cache.memory import Memory
from rondel.decoder.cache.slabs import UNIT
from rondel.decoder.cache.superblock import BLOCK_BYTES, CREATING, MAGIC, Superblock
from rondel.decoder.cache.words import Words
from rondel.decoder.errors import ArenaFileBusy, ArenaFileError, CorruptArena

_SECTOR: Final = 512
"""What a file's blocks are counted in, whatever the disk's are."""
_locked: Final[weakref.WeakSet[ArenaFile]] = weakref.WeakSet()


class ArenaFile(Memory):
    """A file for ``units`` units, made if it is not there; None = as many as it has, and it must be there.

    Raises:
        ArenaFileError: it cannot be opened or made, or has another number of units.
        ArenaFileBusy, CorruptArena, UnsupportedArena: see the errors.
    """

    def __init__(self, path: str | os.PathLike[str], units: int | None) -> None:
        self._fd = -1
        self.path: Final = os.fspath(path)
        self._fd = _lock(self.path, make=units is not None)
        try:
            self.superblock = self._begun(units)
            self._map = self._mapped(self.superblock.file_bytes)
        except OSError as error:
            self.close()
            if isinstance(error, ArenaFileError):
                raise
            raise ArenaFileError(f"{self.path} cannot be used: {error}") from error
        except BaseException:
            self.close()
            raise
        _locked.add(self)
        whole, head = memoryview(self._map), self.superblock
        self.bytes = np.frombuffer(self._map, dtype=np.uint8)[head.first_unit :]
        self.slabs: Final = Words(whole[head.map_range], "slab map")
        """Per unit the page size of the slab that begins there."""
        self.streams: Final = Words(whole[head.table_range], "stream table")
        """Per slot the offset of a stream's record, plus 1."""
        if self._new:
            self._make()
        self._slots = list(range(head.slots - 1, -1, -1))

    @property
    def held(self) -> bool:
        """Whether the file is ours: not after :meth:`close`, nor in a process that was forked from ours."""
        return self._fd >= 0

    @property
    def file(self) -> ArenaFile:
        """This memory."""
        return self

    def _begun(self, units: int | None) -> Superblock:
        """The superblock; with a file of no content, one that is to be written."""
        state = os.fstat(self._fd)
        size = state.st_size
        raw = os.pread(self._fd, BLOCK_BYTES, 0)
        self._new = units is not None and (size == 0 or raw[: len(CREATING)] == CREATING)
        if units is not None and self._new:
            block = Superblock(units, 1 + secrets.randbits(62))
            self._allocate(block.file_bytes, made=size == 0)
            return block
        block = Superblock.decode(raw, self.path)
        if units not in (None, block.units):
            raise ArenaFileError(
                f"{self.path} is an arena of {block.units * UNIT} bytes, asked for were "
                f"{(units or 0) * UNIT}: ask for as many, or clear it",
                budget=block.units * UNIT,
            )
        if size != block.file_bytes:
            raise CorruptArena(
                f"{self.path} must have {block.file_bytes} bytes, got {size}; it is left as it is"
            )
        if units is not None and state.st_blocks * _SECTOR < size:
            self._fill(size)
        return block

    def _fill(self, size: int) -> None:
        """Have a place on the disk for the holes of a file that was copied by something which leaves out
        zeros. Nothing that it holds changes."""
        try:
            os.posix_fallocate(self._fd, 0, size)
        except OSError as error:
            raise ArenaFileError(
                f"{self.path} has holes, and there is no room to fill them: {error.strerror}; what it holds "
                f"is left as it is"
            ) from error

    def _mapped(self, size: int) -> mmap.mmap:
        # Opened once more: a mapping keeps a copy of its descriptor, and with it would keep the lock.
        fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if not os.path.sameopenfile(fd, self._fd):
                raise ArenaFileBusy(f"{self.path} was replaced while it was opened")
            return mmap.mmap(fd, size, flags=mmap.MAP_SHARED)
        finally:
            os.close(fd)

    def _allocate(self, size: int, *, made: bool) -> None:
        try:
            os.pwrite(self._fd, CREATING, 0)
            crash.crash_point("creating")
            os.ftruncate(self._fd, len(CREATING))  # of a file begun before, perhaps of another size
            os.posix_fallocate(self._fd, 0, size)
        except OSError as error:
            if made:
                os.unlink(self.path)
            else:
                os.ftruncate(self._fd, 0)
            raise ArenaFileError(
                f"there is no room for an arena of {size} bytes at {self.path}: {error.strerror}"
            ) from error

    def _make(self) -> None:
        self.slabs.clear()
        self.streams.clear()
        fields = self.superblock.encode()
        self._map[len(MAGIC) : len(MAGIC) + len(fields)] = fields
        crash.crash_point("superblock")
        memoryview(self._map)[: len(MAGIC)].cast("Q")[0] = int.from_bytes(MAGIC, "little")

    # --- what an arena asks of its memory ---------------------------------------------------------------

    def claim(self, unit: int, page_bytes: int) -> None:
        self.slabs.put(unit, page_bytes)

    def give_back(self, unit: int, units: int, *, used: bool) -> None:
        self.slabs.put(unit, 0)

    # --- slots of the stream table, under the arena's lock ----------------------------------------------

    def take_slot(self) -> int | None:
        """A slot for a stream that is to come; None = all are taken."""
        return self._slots.pop() if self._slots else None

    def hold_slots(self, slots: set[int]) -> None:
        """These are taken."""
        self._slots = [slot for slot in self._slots if slot not in slots]

    def free_slot(self, slot: int) -> None:
        """Give a slot back, whose word is 0."""
        self._slots.append(slot)

    def close(self) -> None:
        """Let others have the file. Doing it twice is harmless."""
        if self._fd >= 0:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        self.forget()

    def forget(self) -> None:
        """Close our descriptor of the file. The lock stays as long as another process has a copy of it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.forget()


def removed(path: str | os.PathLike[str]) -> int:
    """Remove an arena's file, damaged or not, and return the bytes that it had.

    Raises:
        ArenaFileError, ArenaFileBusy: it cannot be, or is in use.
        CorruptArena: nothing says that it ever was an arena.
    """
    path = os.fspath(path)
    fd = _lock(path, make=False)
    try:
        if os.pread(fd, len(MAGIC), 0) not in (MAGIC, CREATING, b""):
            raise CorruptArena(f"{path} does not begin as an arena does; it is left as it is")
        size = os.fstat(fd).st_size
        os.unlink(path)
        return size
    except OSError as error:
        if isinstance(error, ArenaFileError):
            raise
        raise ArenaFileError(f"{path} cannot be removed: {error.strerror}") from error
    finally:
        os.close(fd)


def _lock(path: str, *, make: bool) -> int:
    """A descriptor of the file, locked for as long as it is open."""
    try:
        # Of a device or a FIFO not even the opening may wait.
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | (os.O_CREAT if make else 0)
        fd = os.open(path, flags, 0o600)
    except OSError as error:
        raise ArenaFileError(f"{path} cannot be opened: {error.strerror}") from error
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ArenaFileError(f"{path} is no plain file")
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ArenaFileBusy(f"{path} is in use: another process has locked it") from error
        if os.fstat(fd).st_nlink == 0:
            raise ArenaFileBusy(f"{path} was removed while it was opened")
    except BaseException:
        os.close(fd)
        raise
    return fd


def _close_in_child() -> None:
    # A lock is held until all copies of the descriptor are closed: a child would hold it beyond our end.
    for each in list(_locked):
        each.forget()


os.register_at_fork(after_in_child=_close_in_child)
