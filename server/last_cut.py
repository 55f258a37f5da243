"""What an arena's file keeps of a stream's last TruncateStream or AttachStream: its last truncate's note.

A start on the file begins a generation, but is no request: what was asked before it is still answered, and
who had the stream before it still has it.
"""

from __future__ import annotations

import re
from typing import Final

from rondel.decoder.session import DecoderSession
from rondel.server.entries import Attached, Truncated

_ATTACH: Final = re.compile(rb"\0(\d*)\0(.*)", re.DOTALL)
"""The generation that was asked for and the request_id; a truncate has its request_id alone."""

_TRUNCATE: Final = b"\xff"
"""Before a truncate's request_id that could be taken for an attach. No UTF-8 begins so; where it is not
needed it is left out, so that older software reads the note, too."""


def note_of_truncate(request_id: str) -> bytes:
    """What goes into the file with a truncate."""
    raw = request_id.encode()
    return _TRUNCATE + raw if raw.startswith(b"\0") else raw


def note_of_attach(request_id: str, generation: int | None) -> bytes:
    """What goes into the file with an attach."""
    return b"\0%b\0%b" % (b"" if generation is None else b"%d" % generation, request_id.encode())


def last_truncate(session: DecoderSession) -> Truncated | None:
    """The TruncateStream of the file, if that is what came last and it had a request_id."""
    cut = session.last_truncate
    if cut is None or not cut.note or _ATTACH.fullmatch(cut.note):
        return None
    name = cut.note.removeprefix(_TRUNCATE).decode("utf-8", "replace")
    return Truncated(name, cut.generation - 1, cut.length, session.generation)


def last_attach(session: DecoderSession) -> Attached | None:
    """The AttachStream of the file, if that is what came last and it had a request_id."""
    cut = session.last_truncate
    found = None if cut is None else _ATTACH.fullmatch(cut.note)
    if found is None or not found[2]:
        return None
    asked = int(found[1]) if found[1] else None
    return Attached(found[2].decode("utf-8", "replace"), asked, session.generation)


def owned_since(session: DecoderSession) -> int:
    """The oldest generation that whoever has the stream may know: an attach took it from those before, a
    truncate may have lost its answer in the kill."""
    cut = session.last_truncate
    if cut is None:
        return 0
    return cut.generation if _ATTACH.fullmatch(cut.note) else cut.generation - 1
