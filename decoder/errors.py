"""The one exception tree.

Every class has a ``reason`` (UPPER_SNAKE, stable, machine-readable) and carries its variables as
``facts``, a flat mapping of plain strings and integers. The server sends both in
``google.rpc.ErrorInfo``; the client finds the class again with :func:`from_reason`. Nothing here knows
about gRPC: the table from class to status code is in ``server/errors.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

Fact = str | int


class RondelError(Exception):
    """Root of all errors that Rondel raises on purpose."""

    reason: ClassVar[str] = "RONDEL_ERROR"

    def __init__(self, message: str, **facts: Fact) -> None:
        super().__init__(message)
        self.facts: dict[str, Fact] = facts

    @property
    def message(self) -> str:
        """What happened, with what was got and what was expected."""
        return str(self.args[0])

    def _int(self, name: str) -> int:
        return int(self.facts[name])


class InvalidSpec(RondelError, ValueError):
    """A stream specification, or a sampling or server setting, is impossible. ``field`` names it."""

    reason = "INVALID_SPEC"

    @property
    def field(self) -> str:
        return str(self.facts.get("field", ""))


class InvalidShape(RondelError, ValueError):
    """An array has the wrong shape or dtype."""

    reason = "INVALID_SHAPE"

    @property
    def got(self) -> str:
        return str(self.facts["got"])

    @property
    def expected(self) -> str:
        return str(self.facts["expected"])


class ValueRange(RondelError, ValueError):
    """An array holds NaN, an infinity or a magnitude above ``spec.MAX_MAGNITUDE``."""

    reason = "VALUE_RANGE"


class InvalidLayer(RondelError, IndexError):
    """A layer number is outside the stream's layers. ``layers`` is how many there are."""

    reason = "INVALID_LAYER"

    @property
    def layers(self) -> int:
        return self._int("layers")


class InvalidRequest(RondelError, ValueError):
    """A message lacks a field, or a field has a value that no request may have."""

    reason = "INVALID_REQUEST"


class StreamNotFound(RondelError, KeyError):
    """No such stream, or none that this caller may see."""

    reason = "STREAM_NOT_FOUND"

    def __str__(self) -> str:  # KeyError would print the repr of the message
        return self.message


class StreamClosed(RondelError):
    """The stream was closed; its caches are gone."""

    reason = "STREAM_CLOSED"


class StreamDamaged(RondelError):
    """What an arena's file holds of the stream is not what was stored; it is set aside, others go on."""

    reason = "STREAM_DAMAGED"


class StreamSealed(RondelError):
    """The stream was sealed: it takes no tokens and gives none up."""

    reason = "STREAM_SEALED"


class SessionBusy(RondelError):
    """Another caller is inside this session; a session is used by one caller at a time."""

    reason = "SESSION_BUSY"


class SequenceGap(RondelError, ValueError):
    """A position is beyond what the stream or layer holds. ``expected`` is the position it would take."""

    reason = "SEQUENCE_GAP"

    @property
    def expected(self) -> int:
        return self._int("expected")


class PositionConflict(RondelError, ValueError):
    """The position is taken by a token with other bytes. ``expected`` is the layer's next position."""

    reason = "POSITION_CONFLICT"

    @property
    def expected(self) -> int:
        return self._int("expected")


class DuplicateTooOld(RondelError, ValueError):
    """A repeated token can no longer be compared: the ring has passed it."""

    reason = "DUPLICATE_TOO_OLD"


class StaleGeneration(RondelError):
    """The request was made for an earlier generation of the stream. ``current`` is the one in force."""

    reason = "STALE_GENERATION"

    @property
    def current(self) -> int:
        return self._int("current")


class ChunkTooLong(RondelError, ValueError):
    """A wrapped layer would run further ahead of the stream than ``limit`` tokens."""

    reason = "CHUNK_TOO_LONG"

    @property
    def limit(self) -> int:
        return self._int("limit")


class LengthExceeded(RondelError, ValueError):
    """The stream would grow beyond its ``limit`` (``max_length``, or a model's context)."""

    reason = "LENGTH_EXCEEDED"

    @property
    def limit(self) -> int:
        return self._int("limit")


class WindowEvicted(RondelError, ValueError):
    """The window of the asked position is no longer whole. ``oldest`` is the first that still is."""

    reason = "WINDOW_EVICTED"

    @property
    def oldest(self) -> int:
        return self._int("oldest")


class RollbackTooDeep(RondelError, ValueError):
    """A truncate reaches below what the ring still holds. ``limit`` is the smallest length allowed."""

    reason = "ROLLBACK_TOO_DEEP"

    @property
    def limit(self) -> int:
        return self._int("limit")


class BudgetExceeded(RondelError, MemoryError):
    """The arena has no room for what was asked (``requested`` and ``available``, bytes; both 0 where others'
    use of it is not to be known, as on a server with several tenants)."""

    reason = "BUDGET_EXCEEDED"

    @property
    def requested(self) -> int:
        return int(self.facts.get("requested", 0))

    @property
    def available(self) -> int:
        return int(self.facts.get("available", 0))


class QuotaExceeded(RondelError):
    """A limit on the number or size of streams or the rate of steps, not on memory itself, was reached.
    ``retry_after_ms`` is a hint where waiting helps; 0 = it does not."""

    reason = "QUOTA_EXCEEDED"

    @property
    def retry_after_ms(self) -> int:
        return int(self.facts.get("retry_after_ms", 0))


class CorruptSnapshot(RondelError, ValueError):
    """A snapshot is truncated, foreign, longer than it should be, not what its checksums say, or of a stream
    that cannot be. ``part`` is where: preamble, header, page, trailer or end."""

    reason = "CORRUPT_SNAPSHOT"

    @property
    def part(self) -> str:
        return str(self.facts.get("part", ""))


class UnsupportedSnapshot(RondelError, ValueError):
    """A snapshot is of a ``version`` that this software does not read; it reads up to ``supported``."""

    reason = "UNSUPPORTED_SNAPSHOT"

    @property
    def version(self) -> int:
        return self._int("version")

    @property
    def supported(self) -> int:
        return self._int("supported")


class ArenaFileError(RondelError, OSError):
    """An arena's file cannot be used as it is: no room for it, no plain file, or of another size."""

    reason = "ARENA_FILE"

    def __str__(self) -> str:  # OSError would format errno and strerror
        return self.message


class ArenaFileBusy(ArenaFileError):
    """Another process, or another arena of this one, has the file."""

    reason = "ARENA_FILE_BUSY"


class CorruptArena(ArenaFileError):
    """A file is no arena's, or was cut or overwritten where nothing can be made of it any more."""

    reason = "CORRUPT_ARENA"


class UnsupportedArena(ArenaFileError):
    """An arena's file is of a ``version`` that this software does not read; it reads ``supported``."""

    reason = "UNSUPPORTED_ARENA"

    @property
    def version(self) -> int:
        return self._int("version")

    @property
    def supported(self) -> int:
        return self._int("supported")


class Overloaded(RondelError):
    """The server's queue is full; nothing was changed. ``retry_after_ms`` is a hint."""

    reason = "OVERLOADED"

    @property
    def retry_after_ms(self) -> int:
        return int(self.facts.get("retry_after_ms", 0))


class Unauthenticated(RondelError, PermissionError):
    """The server does not know who is calling: no token, or one that is not or no longer good."""

    reason = "UNAUTHENTICATED"

    def __str__(self) -> str:  # OSError would format errno and strerror
        return self.message


class PermissionDenied(RondelError, PermissionError):
    """The server knows who is calling, and that caller may not use it."""

    reason = "PERMISSION_DENIED"

    def __str__(self) -> str:  # OSError would format errno and strerror
        return self.message


class Draining(RondelError):
    """The server is shutting down and takes no new work."""

    reason = "DRAINING"


class DeadlineExpired(RondelError, TimeoutError):
    """The deadline passed, or was about to, before the work could be done; nothing was changed."""

    reason = "DEADLINE_EXPIRED"


class UnsupportedTier(RondelError, ImportError):
    """The instruction-set tier asked for is unknown or this processor lacks it."""

    reason = "UNSUPPORTED_TIER"


class ForkedProcess(RondelError, RuntimeError):
    """This process was forked after the kernel threads had started; it cannot use them."""

    reason = "FORKED_PROCESS"


class ModelError(RondelError):
    """Root of everything that can be wrong with a model or its file."""

    reason = "MODEL_ERROR"


class ModelNotFound(ModelError, FileNotFoundError):
    """No model of that name, or no such file."""

    reason = "MODEL_NOT_FOUND"

    def __str__(self) -> str:  # OSError would format errno and strerror
        return self.message


class CorruptModel(ModelError, ValueError):
    """The file is truncated, foreign, or not what its checksum says."""

    reason = "CORRUPT_MODEL"


class UnsupportedModel(ModelError, ValueError):
    """The file is sound but its architecture, tokenizer or tensor type is not one that we run."""

    reason = "UNSUPPORTED_MODEL"


class DownloadFailed(ModelError, ConnectionError):
    """The model could not be fetched."""

    reason = "DOWNLOAD_FAILED"

    def __str__(self) -> str:  # OSError would format errno and strerror
        return self.message


class ProjectionNotFound(RondelError, KeyError):
    """No projections of that name, or none for that layer."""

    reason = "PROJECTION_NOT_FOUND"

    def __str__(self) -> str:  # KeyError would print the repr of the message
        return self.message


class ServerUnavailable(RondelError, ConnectionError):
    """The server could not be reached, or went away before it answered."""

    reason = "SERVER_UNAVAILABLE"

    def __str__(self) -> str:  # OSError would format errno and strerror
        return self.message


class ServerInternal(RondelError):
    """The server failed in a way it did not expect; ``error_id`` finds the entry in its log."""

    reason = "INTERNAL"

    @property
    def error_id(self) -> str:
        return str(self.facts.get("error_id", ""))


def _descendants(cls: type[RondelError]) -> dict[str, type[RondelError]]:
    found = {cls.reason: cls}
    for child in cls.__subclasses__():
        found.update(_descendants(child))
    return found


BY_REASON: Mapping[str, type[RondelError]] = _descendants(RondelError)
"""Every class of the tree by its reason."""


def from_reason(reason: str, message: str, facts: Mapping[str, Fact]) -> RondelError:
    """The error that a peer reported, as the class that was raised there.

    An unknown reason (a newer peer) gives a plain :class:`RondelError` that keeps it in ``facts``.
    """
    cls = BY_REASON.get(reason)
    if cls is None:
        return RondelError(message, **{**facts, "reason": reason})
    return cls(message, **facts)
