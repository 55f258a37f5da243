"""Sends what a fuzzer sends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import grpc
import grpc.aio
from endings import Ending, answered, refused
from protocomments import METHODS
from shots import CONNECTION, Shot

PATIENCE: Final = 20.0
"""Deadline of a call in seconds. Nothing that is sent needs a second, but the machine may be busy."""
GRACE: Final = 10.0
"""What an answer may be late by, beyond the deadline, before the call counts as one that does not end."""
IDLE_SECONDS: Final = 0.3
"""Deadline of a call whose caller stops in the middle."""


class Wire:
    """Sends bytes by method: asyncio for all but client streams, of which grpc.aio may lose the status when
    the server ends them early (grpc issue 36066)."""

    def __init__(self, target: str) -> None:
        options = [("grpc.max_receive_message_length", 64 << 20), ("grpc.max_send_message_length", 64 << 20)]
        self._target = target
        self.channel = grpc.aio.insecure_channel(target, options=options)
        self._waiting = grpc.insecure_channel(target, options=options)

    async def close(self) -> None:
        await self.channel.close()
        self._waiting.close()

    async def send(self, shot: Shot) -> Ending:
        """Make the call and judge its ending."""
        if shot.method == CONNECTION:
            await self._connect(shot.requests[0])
            return Ending("CLOSED", False)
        method = METHODS[shot.method]
        path = f"/{method.containing_service.full_name}/{method.name}"
        replies: list[bytes] = []
        try:
            async with asyncio.timeout(PATIENCE + GRACE):
                if shot.streamed:
                    await asyncio.to_thread(self._stream, path, shot, replies)
                elif method.server_streaming:
                    stream = self.channel.unary_stream(path)(shot.requests[0], timeout=PATIENCE)
                    async for reply in stream:
                        replies.append(reply)  # noqa: PERF401 - to have those that came before an error
                else:
                    call = self.channel.unary_unary(path)
                    replies.append(await call(shot.requests[0], timeout=PATIENCE))
        except (grpc.RpcError, grpc.aio.AioRpcError) as error:
            return refused(shot, error).after(answered(shot, replies))
        except TimeoutError:
            return Ending("NO_END", True, hung=True)
        return answered(shot, replies)

    async def _connect(self, raw: bytes) -> None:
        """Send bytes that are no gRPC, wait a moment for what comes of it, and hang up."""
        host, _, port = self._target.rpartition(":")
        with suppress(OSError, TimeoutError):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(raw)
            async with asyncio.timeout(0.05):
                await reader.read(1000)
            writer.close()
            await writer.wait_closed()

    def _stream(self, path: str, shot: Shot, replies: list[bytes]) -> None:
        """A client stream: all of it, or a half with nothing, or a cancellation, after it."""
        whole = shot.manner == "whole"
        half = shot.requests if whole else shot.requests[: len(shot.requests) // 2 + 1]
        requests = _Halting(half, ends=whole)
        timeout = IDLE_SECONDS if shot.manner == "idle" else PATIENCE
        both = METHODS[shot.method].server_streaming
        call: Any = (
            self._waiting.stream_stream(path)(iter(requests), timeout=timeout)
            if both
            else self._waiting.stream_unary(path).future(iter(requests), timeout=timeout)
        )
        call.add_done_callback(lambda _: requests.sent.set())  # it may be ended before all was taken
        try:
            if shot.manner == "half":
                requests.sent.wait(PATIENCE)
                call.cancel()
            if both:
                replies.extend(call)
            else:
                replies.append(call.result())
        except grpc.FutureCancelledError:
            return
        finally:
            requests.go_on()


class _Halting:
    """Requests, and then the end of them or nothing more."""

    def __init__(self, requests: list[bytes], *, ends: bool) -> None:
        self._requests = requests
        self.sent = threading.Event()
        self._over = threading.Event()
        if ends:
            self._over.set()

    def __iter__(self) -> Iterator[bytes]:
        yield from self._requests
        self.sent.set()
        self._over.wait()

    def go_on(self) -> None:
        self._over.set()
