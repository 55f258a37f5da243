"""Clients for asyncio: the twins of sync.py, of the same names and meaning. One event loop per client."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Literal, Self, Unpack, overload

from rondel.client import calls, operations
from rondel.client.access import AccessOptions
from rondel.client.aio_base import AsyncClient
from rondel.client.aio_transfers import AsyncExportedStream, AsyncImporting
from rondel.client.channels import AsyncChannel
from rondel.client.core import StreamCore
from rondel.client.limits import Limits
from rondel.client.opened import Opened
from rondel.client.operations import OpenOptions, pack
from rondel.client.values import Array, ListedStream, Options, ServerInfo, StepOutcome, StreamStats
from rondel.decoder.errors import RondelError
from rondel.decoder.explanation import Explanation
from rondel.decoder.spec import StreamSpec
from rondel.v1 import attention_pb2 as pb


class AsyncStream(AsyncExportedStream):
    """A stream of a remote server. Made by ``AsyncAttentionClient.open``; see ``sync.Stream``.

    A cancelled call may or may not have been carried out; making it again is right in either case.
    """

    def __init__(
        self,
        channel: AsyncChannel,
        reply: pb.OpenStreamResponse,
        opened: dict[str, StreamCore],
        max_message_bytes: int,
    ) -> None:
        super().__init__(reply, opened, max_message_bytes)
        self._channel = channel

    async def append(self, layer: int, k: Array, v: Array) -> int:
        """Store k [n, Hkv, Dk] and v [n, Hkv, Dv]; the layer's new length."""
        return await self._channel.run(self._append(layer, k, v))

    async def append_all(self, k: Array, v: Array) -> int:
        """Store k [layers, n, Hkv, Dk] and v [layers, n, Hkv, Dv]; the stream's new length."""
        return await self._channel.run(self._append_all(k, v))

    @overload
    async def attend(
        self, layer: int, q: Array, *, position: int | None = ..., options: Options = ...
    ) -> Array: ...
    @overload
    async def attend(
        self,
        layer: int,
        q: Array,
        *,
        position: int | None = ...,
        options: Options = ...,
        return_lse: Literal[True],
    ) -> tuple[Array, Array]: ...
    async def attend(
        self,
        layer: int,
        q: Array,
        *,
        position: int | None = None,
        options: Options = None,
        return_lse: bool = False,
    ) -> Array | tuple[Array, Array]:
        """Attend from q [N, Hq, Dk], its first row at ``position``; out [N, Hq, Dv], and lse [N, Hq]."""
        return pack(await self._channel.run(self._attend(layer, q, position, options, return_lse)))

    async def explain(
        self, layer: int, q: Array, *, position: int | None = None, options: Options = None
    ) -> Explanation:
        """What ``attend`` does, stage by stage. The server looks at no more than 2**20 scores in a call, and
        its answer must be within the message limits."""
        return await self._channel.run(self._explain(layer, q, position, options))

    @overload
    async def step(self, layer: int, q: Array, k: Array, v: Array, *, options: Options = ...) -> Array: ...
    @overload
    async def step(
        self, layer: int, q: Array, k: Array, v: Array, *, options: Options = ..., return_lse: Literal[True]
    ) -> tuple[Array, Array]: ...
    async def step(
        self, layer: int, q: Array, k: Array, v: Array, *, options: Options = None, return_lse: bool = False
    ) -> Array | tuple[Array, Array]:
        """Store k and v, and attend from q at the same positions, in one call."""
        return pack(await self._channel.run(self._step(layer, q, k, v, options, return_lse)))

    async def step_embeddings(self, layer: int, x: Array, *, options: Options = None) -> Array:
        """``step`` of what the stream's projection of the layer makes of x [n, d_model]; [n, Hq, Dv]."""
        return await self._channel.run(self._step_embeddings(layer, x, options))

    async def step_all(self, q: Array, k: Array, v: Array, *, options: Options = None) -> Array:
        """``step`` for all layers: q, k, v [layers, n, heads, dim]; one call per layer and chunk."""
        return await self._channel.run(self._step_all(q, k, v, options))

    async def fork(self, *, max_new_tokens: int | None = None, prefix_name: str = "") -> AsyncStream:
        """A stream that begins as this one is: see ``DecoderSession.fork``. With ``prefix_name`` it takes no
        tokens, but ``open`` may begin with it until it is closed, which this client's end does not do."""
        reply = await self._channel.run(self._fork(max_new_tokens, prefix_name))
        return AsyncStream(self._channel, reply, {} if prefix_name else self._opened, self._max_message_bytes)

    async def truncate(self, length: int) -> None:
        """Take tokens off the end. Raises RollbackTooDeep, SequenceGap, StaleGeneration."""
        await self._channel.run(self._truncate(length))

    async def seal(self) -> None:
        """Let nothing change the stream from now on. Raises SequenceGap, StaleGeneration."""
        await self._channel.run(self._seal())

    async def stats(self, *, quality: bool = False) -> StreamStats:
        """What the stream holds on the server; with ``quality`` also what int8 storage makes of its keys."""
        return await self._channel.run(self._stats(quality))

    async def close(self) -> None:
        """End the stream and give its memory back. Closing again does nothing."""
        await self._channel.run(self.close_steps())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
            return
        with suppress(RondelError):  # the first error is the one to see
            await self.close()


class AsyncAttentionClient(AsyncClient, AsyncImporting[AsyncStream]):
    """Opens streams on a server at ``host:port`` or ``unix:/path``; connects at the first call.

    ``timeout``: seconds for a call, its retries included. ``max_message_bytes``: largest message that is
    sent or taken; the server has a limit of its own. ``access``: see AccessOptions. May be used by many
    tasks of one loop at once. Raises InvalidSpec for what cannot be meant.
    """

    def __init__(
        self,
        target: str,
        *,
        timeout: float = calls.DEFAULT_TIMEOUT,
        max_message_bytes: int = calls.DEFAULT_MAX_MESSAGE_BYTES,
        **access: Unpack[AccessOptions],
    ) -> None:
        super().__init__(target, timeout=timeout, max_message_bytes=max_message_bytes, **access)
        self._opened = Opened()
        self._limits = Limits(max_message_bytes)

    async def open(self, spec: StreamSpec | None = None, **options: Unpack[OpenOptions]) -> AsyncStream:
        """``AttentionClient.open``."""
        steps = operations.open_stream(spec, self._limits, self._opened, **options)
        return self._stream(await self._channel.run(steps))

    def _stream(self, reply: pb.OpenStreamResponse) -> AsyncStream:
        return AsyncStream(self._channel, reply, self._opened, self._limits.in_force)

    async def info(self) -> ServerInfo:
        """What the server is and allows."""
        return await self._channel.run(operations.server_info(self._limits))

    async def list_streams(self) -> list[ListedStream]:
        """The streams of this client's tenant, oldest first, whoever opened them."""
        return await self._channel.run(operations.list_streams())

    async def step_batch(
        self,
        layer: int,
        streams: Sequence[AsyncStream],
        qs: Sequence[Array],
        ks: Sequence[Array],
        vs: Sequence[Array],
        *,
        options: Sequence[Options] | None = None,
        return_lse: bool = False,
    ) -> list[StepOutcome]:
        """``step`` one layer of many streams in one call; each has its own output or error."""
        return await self._channel.run(operations.step_batch(layer, streams, qs, ks, vs, options, return_lse))

    async def close(self) -> None:
        """Close the streams that are still open, then the connection. Closing again does nothing."""
        for steps in operations.close_all(self._opened):
            with suppress(RondelError):  # an unreachable server frees them when their lease ends
                await self._channel.run(steps)
        await super().close()
