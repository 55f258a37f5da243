"""How far a Decode call's client may be behind with taking its results."""

from __future__ import annotations

from collections import deque

from rondel.decoder.errors import InvalidRequest


class Window:
    """Bytes of results that are on their way to a client, or will be, and that it has not told of.

    Room is taken before an operation begins, by what its result can need at most; so results never have to
    wait for room, and a client that takes nothing costs no more memory than the window and one result. The
    client may lag by half of the window: else it would have to tell of every result at once, lest a large one
    waited for the news of a small one. ``copies`` are bytes of the window that what is being written may take
    besides; they are left free beyond that half.
    """

    def __init__(self, most: int, copies: int = 0) -> None:
        self._half = most // 2
        self._most = max(most - copies, self._half)
        self._bytes = 0
        self._sent: dict[int, int] = {}  # op_id -> bytes
        self._order: deque[int] = deque()
        self._told = 0

    @property
    def bytes(self) -> int:
        """What counts now."""
        return self._bytes

    def has_room(self, size: int) -> bool:
        """Whether an operation may begin whose result has so many bytes at most."""
        return self._bytes <= self._half or self._bytes + size <= self._most

    def expect(self, size: int) -> None:
        """A result of so many bytes at most will come."""
        self._bytes += size

    def settle(self, expected: int, size: int) -> None:
        """It is there, and has so many bytes."""
        self._bytes += size - expected

    def sent(self, op_id: int, size: int) -> None:
        """It is on its way."""
        self._sent[op_id] = size
        self._order.append(op_id)

    def received(self, op_id: int) -> bool:
        """The client says that it has this result, and so all before it; whether that is news.

        Raises:
            InvalidRequest: there was no such result, or it has told of a later one.
        """
        if op_id == self._told:
            return False
        if op_id not in self._sent:
            raise InvalidRequest(
                f"received_op_id must be that of a result that was sent, from {self._told} on, got {op_id}",
                field="received_op_id",
            )
        self._told, sent = op_id, 0
        while sent != op_id:
            sent = self._order.popleft()
            self._bytes -= self._sent.pop(sent)
        return True

    def forget(self) -> None:
        """What was sent no longer counts: of a client that can tell nothing any more."""
        self._bytes -= sum(self._sent.values())
        self._sent.clear()
        self._order.clear()
