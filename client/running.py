"""How operations are carried out whose steps say what is to be sent, but not how."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import closing
from typing import TYPE_CHECKING, Any

from rondel.client.calls import Call, Detached, Result, Steps
from rondel.decoder.errors import RondelError

if TYPE_CHECKING:
    from rondel.client.channels import AsyncChannel, Channel


class Runner(ABC):
    """Carries out operations, waiting."""

    @property
    @abstractmethod
    def channel(self) -> Channel:
        """The connection, for what is not done by :meth:`run`."""

    @abstractmethod
    def send(self, call: Call) -> Any:
        """The reply to a call. Raises RondelError, Detached."""

    def run(self, steps: Steps[Result]) -> Result:
        """Carry out an operation."""
        with closing(steps):
            try:
                call = next(steps)
                while True:
                    try:
                        reply = self.send(call)
                    except (RondelError, Detached) as error:
                        call = steps.throw(error)
                    else:
                        call = steps.send(reply)
            except StopIteration as end:
                result: Result = end.value
                return result


class AsyncRunner(ABC):
    """Carries out operations with asyncio."""

    @property
    @abstractmethod
    def channel(self) -> AsyncChannel:
        """The connection, for what is not done by :meth:`run`."""

    @abstractmethod
    async def send(self, call: Call) -> Any:
        """The reply to a call. Raises RondelError, Detached."""

    async def run(self, steps: Steps[Result]) -> Result:
        """Carry out an operation."""
        with closing(steps):
            try:
                call = next(steps)
                while True:
                    try:
                        reply = await self.send(call)
                    except (RondelError, Detached) as error:
                        call = steps.throw(error)
                    else:
                        call = steps.send(reply)
            except StopIteration as end:
                result: Result = end.value
                return result
