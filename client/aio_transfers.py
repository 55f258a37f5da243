"""Snapshots of remote streams to and from files, for asyncio: the twins of sync_transfers.py.

Files are read and written in threads, so that a slow disk does not hold the loop.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import closing
from typing import Generic

import grpc.aio

from rondel.client import calls, operations
from rondel.client.calls import Attempts, Call
from rondel.client.channels import AsyncChannel
from rondel.client.checks import checked_timeout
from rondel.client.core import StreamCore
from rondel.client.limits import Limits
from rondel.client.running import AsyncRunner
from rondel.client.sync_transfers import Upload
from rondel.client.transfers import Arriving, Progress, S, Source, export_call, ref_of
from rondel.decoder.binary import BinaryReader, BinaryWriter, write_all
from rondel.decoder.errors import ServerUnavailable
from rondel.v1 import attention_pb2 as pb


class AsyncExportedStream(StreamCore):
    """A stream that can be exported."""

    _channel: AsyncRunner

    async def export(
        self,
        file: BinaryWriter,
        *,
        timeout: float = calls.DEFAULT_TRANSFER_TIMEOUT,
        progress: Progress | None = None,
    ) -> int:
        """Write the stream's snapshot to a binary file; its bytes. See ``sync.Stream.export``."""
        with self.alone():
            call = export_call(self._ref, self._max_message_bytes)
            return await _receive(self._channel.channel, call, file, timeout, progress)


class AsyncImporting(ABC, Generic[S]):
    """A client that imports streams, and exports those of others."""

    _channel: AsyncChannel
    _limits: Limits

    @abstractmethod
    def _stream(self, reply: pb.OpenStreamResponse) -> S:
        """A stream that the server has opened."""

    async def import_stream(
        self,
        file: BinaryReader,
        *,
        projections: str = "",
        timeout: float = calls.DEFAULT_TRANSFER_TIMEOUT,
        progress: Progress | None = None,
    ) -> S:
        """Make a stream of the snapshot in a binary file, which is read to its end; it goes on to the bit.
        See ``sync.AttentionClient.import_stream``."""
        attempts = Attempts(checked_timeout(timeout))
        await self._channel.run(operations.server_info(self._limits))
        source = Source(file, projections, progress, most=self._limits.in_force)
        while True:
            try:
                reply = await _send(self._channel, source, attempts.begin())
                break
            except ServerUnavailable as error:
                if not source.rewind():
                    raise
                await self._channel.wait(attempts, error)
        return self._stream(reply.opened)

    async def export_stream(
        self,
        handle: str,
        file: BinaryWriter,
        *,
        timeout: float = calls.DEFAULT_TRANSFER_TIMEOUT,
        progress: Progress | None = None,
    ) -> int:
        """``AsyncStream.export`` of any stream of the server, by its handle."""
        ref = ref_of(handle)
        await self._channel.run(operations.server_info(self._limits))
        call = export_call(ref, self._limits.in_force)
        return await _receive(self._channel, call, file, timeout, progress)


async def _receive(
    channel: AsyncChannel, call: Call, file: BinaryWriter, timeout: float, progress: Progress | None
) -> int:
    attempts = Attempts(checked_timeout(timeout))
    while True:
        arriving = Arriving(progress)
        replies = channel.start(call, attempts.begin())
        try:
            while (reply := await replies.read()) is not grpc.aio.EOF:
                await asyncio.to_thread(write_all, file, arriving.take(reply))
            return arriving.end()
        except grpc.aio.AioRpcError as failure:
            error = channel.error(failure)
        except asyncio.CancelledError as cancelled:
            raise channel.cancelled(cancelled) from None
        finally:
            replies.cancel()
            del replies  # as in AsyncChannel: the error must not hold the connection
        if arriving.received:
            raise error
        await channel.wait(attempts, error)


async def _send(channel: AsyncChannel, source: Source, timeout: float) -> pb.ImportStreamResponse:
    """One try, in a thread and on a connection of its own: grpc.aio may lose the status of a call that the
    server ends while a request is on its way (grpc issue 36066), and with it why a snapshot was refused."""
    with closing(channel.waiting()) as twin:
        upload = Upload(twin, source, timeout)
        try:
            return await asyncio.to_thread(upload.run)
        finally:
            upload.cancel()
