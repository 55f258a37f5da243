"""What clients for asyncio have in common: the twin of sync_base.py."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self, Unpack

from rondel.client import calls
from rondel.client.access import Access, AccessOptions
from rondel.client.channels import AsyncChannel
from rondel.client.checks import checked_target


class AsyncClosing(ABC):
    """Closed when its ``async with`` block ends."""

    @abstractmethod
    async def close(self) -> None:
        """End it. Closing again does nothing."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncClient(AsyncClosing):
    """A client of a server; ``access``: see AccessOptions. Raises InvalidSpec for what cannot be meant."""

    def __init__(
        self,
        target: str,
        *,
        timeout: float = calls.DEFAULT_TIMEOUT,
        max_message_bytes: int = calls.DEFAULT_MAX_MESSAGE_BYTES,
        **access: Unpack[AccessOptions],
    ) -> None:
        checked = Access.checked(checked_target(target), **access)
        self._channel = AsyncChannel(target, timeout, max_message_bytes, checked)

    @property
    def target(self) -> str:
        """The server's address, as it was given."""
        return self._channel.target

    async def close(self) -> None:
        """End the connection and whatever still runs on it. Closing again does nothing."""
        await self._channel.close()
