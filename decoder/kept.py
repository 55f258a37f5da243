"""How a stream gives tokens up, and how it ends; one in a file may stay there when its process does."""

from __future__ import annotations

from typing import Self

from rondel.decoder.cache.account import Account
from rondel.decoder.cache.arena import Arena
from rondel.decoder.cache.record import StreamRecord, checked_tag
from rondel.decoder.errors import InvalidRequest
from rondel.decoder.view import StreamView


class KeptStream(StreamView):
    """A stream in an arena; in one with a file it has a record there."""

    _arena: Arena

    def publish(self, tag: bytes = b"") -> None:
        """Let the stream be found in the arena's file, under a tag of up to 1 KiB that means something to its
        owner. Nothing where the arena has no file.

        Raises:
            InvalidRequest: the tag is too long, or the stream has one already.
        """
        tag = checked_tag(tag)
        with self._turn:
            record = self._pages.record
            if not isinstance(record, StreamRecord):
                return
            if record.published:
                raise InvalidRequest("the stream has been published already", field="tag")
            record.publish(tag)

    def truncate(self, length: int, *, note: bytes = b"") -> None:
        """Forget all tokens from position ``length`` on, in every layer; a new generation begins.

        A ``note`` of up to 232 bytes stays with the stream as long as this is its :attr:`last_truncate`, in a
        file beyond a kill: so whoever asked for the truncate can be told whether it was carried out.

        Raises:
            InvalidRequest: the note is no bytes, or too long.
            SequenceGap: the stream is not that long.
            RollbackTooDeep: the ring no longer holds what that length would see (see ``min_length``).
            StreamSealed: the stream was sealed.
        """
        with self._turn:
            self._extent.truncate(length, note)

    def seal(self) -> None:
        """Let nothing change the stream from now on: it refuses tokens and truncates with StreamSealed and is
        only attended to, as the memory of cross-attention is. Doing it twice is harmless.

        Raises:
            SequenceGap: the layers are not equally long.
        """
        with self._turn:
            self._extent.seal()

    def charge(self, account: Account) -> None:
        """Have an account bear what the stream has from now on, and its forks, and what it was forked from.
        It is not refused for being more than the account may have."""
        self._turn.begin_last()  # nothing that is stored is looked at
        try:
            self._arena.charge(self._pages, account)
        finally:
            self._turn.end()

    def detach(self) -> None:
        """Close the session and leave the stream in the arena's file, for whoever attaches to it next. Where
        it is in none, this is what ``close`` does. Doing it twice is harmless. Raises SessionBusy."""
        if self._turn.closed:
            return
        self._turn.begin_last()
        try:
            self._turn.closed = True
            self._pages.leave()
        finally:
            self._turn.end()

    def close(self) -> int:
        """Give all pages back, but for those that forks hold; the bytes that are free to be reserved again.
        In a file the stream is gone, too.

        Doing it twice is harmless, and frees nothing more. Raises SessionBusy during another call.
        """
        if self._turn.closed:
            return 0
        self._turn.begin_last()
        try:
            self._turn.closed = True
            return self._pages.release()
        finally:
            self._turn.end()

    def check_sound(self) -> None:
        """Wait until a stream that was in a file was found to be what was stored (see ``attach``); nothing to
        do for any other. Raises StreamDamaged, SessionBusy, StreamClosed."""
        with self._turn:
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
