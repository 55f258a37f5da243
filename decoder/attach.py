"""The streams that an arena's file holds, as sessions again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Final

from rondel.decoder import kernels
from rondel.decoder.cache.arena import Arena
from rondel.decoder.cache.rebuild import Found
from rondel.decoder.checks import checked_verify
from rondel.decoder.damage import damage
from rondel.decoder.session import DecoderSession
from rondel.decoder.turn import CheckedTurn


class AttachedStream:
    """A stream that was in an arena's file, under the tag that it was given.

    Either a session that goes on to the bit, at the length that all layers had and in a new generation; or
    None and the ``reason`` why the stream was set aside. Such a one keeps its pages until :meth:`drop`.
    """

    def __init__(self, found: Found, session: DecoderSession | None, check: Check | None = None) -> None:
        self.tag: Final = found.tag
        self.session: Final = session
        self._found = found
        self._check = check

    @property
    def reason(self) -> str:
        """Why the stream was set aside, as far as it was looked at."""
        return self._found.reason or (self._check.found if self._check is not None else None) or ""

    def verify(self) -> str:
        """Look at a stream that was attached to lazily, unless that was done; the reason. From any thread.
        A stream that was closed, now or while it was looked at, has none."""
        if self._check is not None and self.session is not None and not self.session.closed:
            self._check()
        # Its pages may have been another's by then.
        return "" if self.session is not None and self.session.closed else self.reason

    def drop(self) -> int:
        """Give up a stream that was set aside, or close the session; the bytes that are free then."""
        return self._found.pages.release() if self.session is None else self.session.close()


class Check:
    """A look at a stream's tokens, once: what is wrong with them."""

    def __init__(self, look: Callable[[], str]) -> None:
        self.found: str | None = None
        """None = it has not been looked."""
        self._look = look
        self._lock = threading.Lock()

    def __call__(self) -> str:
        with self._lock:
            if self.found is None:
                self.found = self._look()
            return self.found


def attach(
    arena: Arena,
    *,
    verify: str = "full",
    tier: str | None = None,
    lazily: bool = False,
) -> list[AttachedStream]:
    """The streams that were in an arena's file when it was opened. They are handed out once.

    Every stream's record is looked at whole. Of its tokens, ``verify="full"`` looks at the checksums of all
    that can be read, "tail" at those in the last page of each layer: what a kill can have left, unless the
    memory or the disk under the file lies.

    With ``lazily`` tokens are looked at when a stream is first used, or by ``AttachedStream.verify``, and
    nothing is done with any before: the first answer does not wait for the other streams. A session whose
    tokens are damaged raises StreamDamaged from every call but ``close`` and ``detach``.

    Raises:
        InvalidSpec: ``verify`` is neither.
        UnsupportedTier: the processor lacks ``tier``.
    """
    full, tier_kernels = checked_verify(verify), kernels.KERNELS if tier is None else kernels.load(tier)
    found, arena.found = arena.found, []
    return [_attached(arena, each, tier_kernels, full=full, lazily=lazily) for each in found]


def _attached(
    arena: Arena, found: Found, tier: kernels.Kernels, *, full: bool, lazily: bool
) -> AttachedStream:
    if found.reason:
        return AttachedStream(found, None)
    extent, rings, pages = found.parts()
    layouts, tables = [each.layout for each in rings], [each.tables for each in rings]
    check = Check(
        partial(damage, tier, arena.base, layouts, tables, extent.length, extent.marks()[1], full=full)
    )
    if not lazily:
        found.reason = check()
        if found.reason:
            return AttachedStream(found, None)
    session = DecoderSession._of(found.spec, arena, (extent, rings, pages), tier)
    if lazily:
        session._turn = CheckedTurn(check)
    return AttachedStream(found, session, check)
