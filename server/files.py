"""Files that are read again when they have changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, TypeVar

from rondel.decoder.errors import InvalidSpec

T = TypeVar("T")
Stamp = tuple[tuple[int, int, int] | None, ...]


class Watched:
    """Files that belong together; ``field`` is the setting that names them."""

    def __init__(self, field: str, *paths: str) -> None:
        self.field: Final = field
        self.paths: Final = paths
        self._stamp: Stamp = ()

    @property
    def changed(self) -> bool:
        """Whether one was written to, replaced, has come or gone since they were last read, well or not."""
        return self._stamp != self._now()

    def read(self, read: Callable[[], T]) -> T:
        """What ``read`` makes of them. Raises InvalidSpec where they cannot be read or are being replaced,
        and what ``read`` raises."""
        self._stamp = self._now()
        try:
            found = read()
        except OSError as error:
            raise self._unreadable(f"{error.filename}: {error.strerror}") from error
        except UnicodeError:
            raise self._unreadable("it is not UTF-8") from None  # whose text would show what is in it
        if self.changed:
            raise self._unreadable("it changed meanwhile")
        return found

    def _now(self) -> Stamp:
        return tuple(map(_stamp, self.paths))

    def _unreadable(self, why: str) -> InvalidSpec:
        return InvalidSpec(f"{self.field} cannot be read: {why}", field=self.field)


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
