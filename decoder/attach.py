"""The streams that an arena's file holds, as sessions again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rondel.decoder import kernels
from rondel.decoder.cache.accounts import checked_owner
from rondel.decoder.cache.arena import Arena
from rondel.decoder.cache.owners import assign
from rondel.decoder.cache.rebuild import Found
from rondel.decoder.checks import checked_verify
from rondel.decoder.damage import damage
from rondel.decoder.errors import InvalidRequest
from rondel.decoder.session import DecoderSession


@dataclass(frozen=True, slots=True)
class AttachedStream:
    """A stream that was in an arena's file, under the tag that it was given.

    Either a session that goes on to the bit, at the length that all layers had and in a new generation; or
    None and the ``reason`` why the stream was set aside. Such a one keeps its pages until :meth:`drop`.
    """

    tag: bytes
    session: DecoderSession | None
    reason: str
    _found: Found

    def drop(self) -> int:
        """Give up a stream that was set aside, or close the session; the bytes that are free then."""
        return self._found.pages.release() if self.session is None else self.session.close()


def attach(
    arena: Arena,
    *,
    verify: str = "full",
    tier: str | None = None,
    owner_of: Callable[[bytes], str] | None = None,
) -> list[AttachedStream]:
    """The streams that were in an arena's file when it was opened. They are handed out once.

    Every stream's record is looked at whole. Of its tokens, ``verify="full"`` looks at the checksums of all
    that can be read, "tail" at those in the last page of each layer: what a kill can have left, unless the
    memory or the disk under the file lies.

    ``owner_of`` tells by a stream's tag whose it is; owners are not written down. Streams that share pages
    are one owner's: one that would be another's is set aside.

    Raises:
        InvalidSpec: ``verify`` is neither.
        UnsupportedTier: the processor lacks ``tier``.
    """
    full, tier_kernels = checked_verify(verify), kernels.KERNELS if tier is None else kernels.load(tier)
    found, arena.found = arena.found, []
    if owner_of is not None:
        for each in found:
            _assign(arena, each, checked_owner(owner_of(each.tag)))
    return [_attached(arena, each, tier_kernels, full=full) for each in found]


def _assign(arena: Arena, found: Found, owner: str) -> None:
    try:
        assign(arena, found.pages, owner)
    except InvalidRequest as error:
        found.reason = found.reason or error.message


def _attached(arena: Arena, found: Found, tier: kernels.Kernels, *, full: bool) -> AttachedStream:
    if found.reason:
        return AttachedStream(found.tag, None, found.reason, found)
    parts = found.parts()
    extent, rings, _ = parts
    reason = damage(
        tier,
        arena.base,
        [each.layout for each in rings],
        [each.tables for each in rings],
        extent.length,
        extent.marks()[1],
        full=full,
    )
    if reason:
        return AttachedStream(found.tag, None, reason, found)
    spec = found.spec
    return AttachedStream(found.tag, DecoderSession._of(spec, arena, parts, tier), "", found)
