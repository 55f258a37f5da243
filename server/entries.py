"""What the server remembers of a stream, open or closed."""

from __future__ import annotations

from dataclasses import dataclass

from rondel.decoder.session import DecoderSession


@dataclass(slots=True, eq=False)
class Entry:
    """A stream: its session and what must be remembered about requests."""

    handle: str
    session: DecoderSession
    open_id: str
    last_used: float
    origin: Origin | Imported | None = None
    """What it was made from; None = it began empty."""
    projections: str = ""
    """Name of its projections."""
    truncated: Truncated | None = None
    """The last TruncateStream, if it had a request_id."""
    found: int | None = None
    """The generation that it was in when the server was started; None = it was not there."""
    serial: int = 0
    """Counts the streams of a tenant from 1, in the order in which they came."""
    attached: Attached | None = None
    """The last AttachStream that had a request_id."""
    worried: bool = False
    """The log has been told that the keys do not suit the storage."""
    exports: int = 0
    """How many exports of it are at work."""
    frozen: int = 0
    """How many of those found no room to be apart from it: nothing may change it meanwhile."""


@dataclass(frozen=True, slots=True)
class Imported:
    """How an import of the same name is known as the same one: number and SHA-256 of its bytes."""

    size: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Origin:
    """The request that a fork was made by: a stream and its state, or a prefix by its name."""

    handle: str
    generation: int
    length: int
    max_new_tokens: int | None
    prefix_name: str
    """Of a ForkStream the name that the fork is kept as; of an OpenStream the one it begins with."""


@dataclass(frozen=True, slots=True)
class Truncated:
    """A TruncateStream that was carried out."""

    request_id: str
    generation: int
    length: int
    new_generation: int


@dataclass(frozen=True, slots=True)
class Attached:
    """An AttachStream that was carried out."""

    request_id: str
    generation: int | None
    new_generation: int


@dataclass(frozen=True, slots=True)
class Closed:
    """What is remembered of a closed stream."""

    close_id: str
    committed_length: int
    bytes_released: int
