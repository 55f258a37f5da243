"""What clients that wait have in common: an address, access, an end. The asyncio twin is aio_base.py."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self, Unpack

from rondel.client import calls
from rondel.client.access import Access, AccessOptions
from rondel.client.channels import Channel
from rondel.client.checks import checked_target


class Closing(ABC):
    """Closed when its ``with`` block ends."""

    @abstractmethod
    def close(self) -> None:
        """End it. Closing again does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Client(Closing):
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
        self._channel = Channel(target, timeout, max_message_bytes, checked)

    @property
    def target(self) -> str:
        """The server's address, as it was given."""
        return self._channel.target

    def close(self) -> None:
        """End the connection and whatever still runs on it. Closing again does nothing."""
        self._channel.close()
