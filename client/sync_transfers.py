"""Snapshots of remote streams to and from files, for clients that wait. The twins are in aio_transfers.py."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Generic

import grpc

from rondel.client import calls, operations
from rondel.client.calls import Attempts, Call
from rondel.client.channels import Channel
from rondel.client.checks import checked_timeout
from rondel.client.core import StreamCore
from rondel.client.limits import Limits
from rondel.client.running import Runner
from rondel.client.transfers import Arriving, Progress, S, Source, export_call, ref_of
from rondel.decoder.binary import BinaryReader, BinaryWriter, write_all
from rondel.decoder.errors import ServerUnavailable
from rondel.v1 import attention_pb2 as pb


class ExportedStream(StreamCore):
    """A stream that can be exported."""

    _channel: Runner

    def export(
        self,
        file: BinaryWriter,
        *,
        timeout: float = calls.DEFAULT_TRANSFER_TIMEOUT,
        progress: Progress | None = None,
    ) -> int:
        """Write the stream's snapshot to a binary file; its bytes. Others may change the stream meanwhile; a
        server without room for copies refuses that with SessionBusy.

        ``timeout`` is for the whole of it, in seconds; ``progress`` is called with bytes done and in all.
        After an error the file holds the beginning of a snapshot, which no import takes.
        """
        with self.alone():
            call = export_call(self._ref, self._max_message_bytes)
            return _receive(self._channel.channel, call, file, timeout, progress)


class Importing(ABC, Generic[S]):
    """A client that imports streams, and exports those of others."""

    _channel: Channel
    _limits: Limits

    @abstractmethod
    def _stream(self, reply: pb.OpenStreamResponse) -> S:
        """A stream that the server has opened."""

    def import_stream(
        self,
        file: BinaryReader,
        *,
        projections: str = "",
        timeout: float = calls.DEFAULT_TRANSFER_TIMEOUT,
        progress: Progress | None = None,
    ) -> S:
        """Make a stream of the snapshot in a binary file, which is read to its end; it goes on to the bit.

        ``projections`` as for ``open``; ``timeout`` is for the whole of it, in seconds; ``progress`` is
        called with bytes done and in all (0 = not known). Where the file can be read again a lost connection
        is tried again. Raises what ``open`` does, CorruptSnapshot and UnsupportedSnapshot.
        """
        attempts = Attempts(checked_timeout(timeout))
        self._channel.run(operations.server_info(self._limits))
        source = Source(file, projections, progress, most=self._limits.in_force)
        while True:
            try:
                reply = Upload(self._channel, source, attempts.begin()).run()
                break
            except ServerUnavailable as error:
                if not source.rewind():
                    raise
                self._channel.wait(attempts, error)
        return self._stream(reply.opened)

    def export_stream(
        self,
        handle: str,
        file: BinaryWriter,
        *,
        timeout: float = calls.DEFAULT_TRANSFER_TIMEOUT,
        progress: Progress | None = None,
    ) -> int:
        """``Stream.export`` of any stream of the server, by its handle."""
        ref = ref_of(handle)
        self._channel.run(operations.server_info(self._limits))
        return _receive(self._channel, export_call(ref, self._limits.in_force), file, timeout, progress)


def _receive(
    channel: Channel, call: Call, file: BinaryWriter, timeout: float, progress: Progress | None
) -> int:
    attempts = Attempts(checked_timeout(timeout))
    while True:
        arriving = Arriving(progress)
        replies = channel.start(call, attempts.begin())
        try:
            for reply in replies:
                write_all(file, arriving.take(reply))
            return arriving.end()
        except grpc.RpcError as failure:
            error = channel.error(failure)
        finally:
            replies.cancel()  # after an error of the file's, or Ctrl-C
        if arriving.received:
            raise error
        channel.wait(attempts, error)


class Upload:
    """One try of an import. The file is read in the thread that runs it; gRPC's own only hands over what it
    is given. Another thread may cancel it."""

    def __init__(self, channel: Channel, source: Source, timeout: float) -> None:
        self._channel = channel
        self._source = source
        self._timeout = timeout
        self._wanted: SimpleQueue[bool] = SimpleQueue()  # False = nothing more is
        self._given: SimpleQueue[pb.ImportStreamRequest | None] = SimpleQueue()

    def run(self) -> pb.ImportStreamResponse:
        """The reply. Raises what it means when there is none, and what the file raises."""
        call = self._channel.upload(calls.IMPORT)(self._requests(), timeout=self._timeout)
        call.add_done_callback(lambda _: self.cancel())
        try:
            while self._wanted.get():
                request = self._source.next()
                self._given.put(request)
                if request is None:
                    break
            else:
                # Cancelled, or the server has ended the call, and then its status is here.
                call.cancel()
            reply: pb.ImportStreamResponse = call.result()
            return reply
        except grpc.RpcError as failure:
            raise self._channel.error(failure) from None
        except grpc.FutureCancelledError:
            target = self._channel.target
            raise ServerUnavailable(f"the import to {target} was cancelled", target=target) from None
        finally:
            call.cancel()
            self._given.put(None)

    def cancel(self) -> None:
        """Have :meth:`run` end as soon as the file lets it."""
        self._wanted.put(False)

    def _requests(self) -> Iterator[pb.ImportStreamRequest]:
        while True:
            self._wanted.put(True)
            request = self._given.get()
            if request is None:
                return
            yield request
