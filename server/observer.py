"""What the server tells of its work, to whoever counts it."""

from __future__ import annotations

from typing import Final


class Observer:
    """Is told what happens; this one forgets it. Methods are cheap and raise nothing.

    Those of the scheduler are called on its worker's thread, one at a time, but for :meth:`refused`.
    """

    def refused(self, reason: str, tenant: str) -> None:
        """A call was not let in: ``overloaded``, ``quota`` and so on. On the loop."""

    def waited(self, seconds: float, tenant: str) -> None:
        """An operation waited so long for the worker, which begins it now."""

    def expired(self, tenant: str) -> None:
        """An operation's deadline passed before it began; it was left out."""

    def cancelled(self, tenant: str) -> None:
        """An operation's caller left before it began; it was left out."""

    def carried_out(self, operations: int, seconds: float) -> None:
        """The worker was inside so many operations together for so long."""

    def stored(self, tokens: int, tenant: str) -> None:
        """So many new tokens times layers were stored."""

    def repeated(self, tenant: str) -> None:
        """A request, or an item of one, was a repetition and was answered again."""

    def gap(self, tenant: str) -> None:
        """A request, or an item of one, named a position that does not come next."""

    def stepped(self, items: int) -> None:
        """A Step call had so many items. On the loop."""

    def failed(self, reason: str) -> None:
        """A call, or an item of one, ended in an error of this ``RondelError.reason``. On the loop."""

    def lapsed(self, streams: int) -> None:
        """So many streams were closed because nobody had named them for their lease."""


DEAF: Final = Observer()
