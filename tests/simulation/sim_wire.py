"""The two directions of a Decode call: what is sent arrives later, in order, until the connection breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sim_network import Network
from sim_tally import Tally

END = None
"""There are no more messages; of the one side because it has said so, or because the connection is gone."""


class Direction:
    """One of them."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._messages: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._last = 0.0
        self._broken = False

    def send(self, message: bytes | None) -> None:
        """Has a message arrive behind all before it."""
        if not self._broken:
            self._last = self._network.later(self._last, lambda: self._messages.put_nowait(message))

    def cut(self) -> None:
        """What has not arrived never will."""
        self._broken = True
        self._messages.put_nowait(END)

    async def read(self) -> bytes | None:
        """The next message, or END."""
        return await self._messages.get()


class Wire:
    """A call. For the server it is the context of one."""

    def __init__(self, network: Network, tally: Tally) -> None:
        self._network = network
        self._tally = tally
        self._up, self._down = Direction(network), Direction(network)
        self._cut = False
        self.on_cut: Callable[[], None] = lambda: None
        """What the server does when it hears of it."""

    def cut(self) -> None:
        """The connection breaks. The client knows at once, the server sooner or later."""
        if not self._cut:
            self._cut = True
            self._tally.note("conversations cut")
            self._down.cut()
            self._up.cut()
            self._network.later(0.0, lambda: self.on_cut())

    def tell(self, message: bytes | None) -> None:
        """The client sends something, or END; it may be what the connection breaks at."""
        if self._network.breaks():
            self.cut()
        self._up.send(message)

    async def hear(self) -> bytes | None:
        """What the client gets."""
        return await self._down.read()

    async def read(self) -> object:
        """What the server gets."""
        return await self._up.read()

    async def write(self, message: bytes) -> None:
        """The server sends something."""
        if self._network.breaks():
            self.cut()
        self._down.send(message)

    def end(self) -> None:
        """The server has ended the call."""
        self._down.send(END)
