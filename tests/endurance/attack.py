"""One call of a fuzzer: what is sent, how it ended, and whether it may have ended so."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
import grpc.aio
from corpus import valid
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2, status_pb2
from mutations import mutated
from protocomments import METHODS, all_errors, documented_reasons
from targets import SORTS, Sort

from rondel.server.errors import CODES
from rondel.v1 import attention_pb2 as pb

PATIENCE: Final = 20.0
"""Deadline of a call in seconds. Nothing that is sent needs a second, but the machine may be busy."""
GRACE: Final = 10.0
"""What an answer may be late by, beyond the deadline, before it counts as a hang of our own side's making."""

CONNECTION: Final = "(connection)"
"""Not a method: bytes that are no gRPC, on a connection of their own."""

WEIGHTS: Final = {
    "AppendToken": 6,
    "Attend": 6,
    "Step": 8,
    "OpenStream": 5,
    "ForkStream": 4,
    "TruncateStream": 3,
    "ImportStream": 5,
    "Generate": 3,
    "GetStream": 2,
    "ExportStream": 2,
    "SealStream": 1,
    "CloseStream": 1,
    "GetServerInfo": 1,
    "ListModels": 1,
    CONNECTION: 1,
}
OPEN: Final = "H" * 24
CLOSED: Final = "C" * 24
"""Handles stand in for those of this run: what a seed does must not depend on them."""
BEGINNINGS: Final = (
    b"",
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000"),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000 ffffff0104000000 01"),
    bytes.fromhex("16030100c8010000c40303"),
)
"""HTTP/1, HTTP/2 up to its preface, its settings and a frame longer than allowed, TLS."""
CHANGING: Final = {"AppendToken", "Step", "ForkStream", "TruncateStream", "SealStream", "CloseStream"}
"""Those that may change the stream they name when they succeed (of a fork's origin what it shares)."""

_KNOWN: Final = all_errors()
_DOCUMENTED: Final = {name: documented_reasons(name) for name in METHODS}


@dataclass(slots=True)
class Shot:
    """A call that is to be made. A seed and a number say which."""

    number: int
    method: str
    sort: Sort
    rng: random.Random
    requests: list[bytes] = field(default_factory=list)
    manner: str = "whole"
    """``whole``; ``half`` = a client stream that is cancelled in the middle, ``idle`` = one that stops."""

    @classmethod
    def aimed(cls, seed: int, number: int) -> Shot:
        """The shot of this number; its requests are made when the stream is known."""
        rng = random.Random(f"{seed}/{number}")
        method = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        return cls(number, method, rng.choice(SORTS), rng)

    def load(self) -> None:
        """Make the requests, for a stream that is named when they are sent."""
        rng = self.rng
        if self.method == CONNECTION:
            self.requests = [rng.choice(BEGINNINGS) + rng.randbytes(rng.choice((0, 9, 100, 20_000)))]
            return
        stream = pb.StreamRef(handle=CLOSED if rng.random() < 0.03 else OPEN)
        messages = valid(self.method, self.sort, stream, rng)
        others = [valid(other, self.sort, stream, rng)[0] for other in rng.sample(list(METHODS), 2)]
        donors = [other.SerializeToString() for other in others]
        if rng.random() < 0.97:
            self.requests = mutated(messages, donors, rng)
        else:  # that they are good is what all this stands on
            self.requests = [message.SerializeToString() for message in messages]
        if METHODS[self.method].client_streaming and rng.random() < 0.4:
            self.manner = rng.choice(("half", "idle"))

    def aim(self, stream: str, closed: str) -> None:
        """Put handles where there is still one in the requests."""
        for stand_in, handle in ((OPEN, stream), (CLOSED, closed)):
            self.requests = [raw.replace(stand_in.encode(), handle.encode()) for raw in self.requests]


@dataclass(frozen=True, slots=True)
class Ending:
    """How a call ended."""

    reason: str
    """``OK``, the reason of the error, or the name of a code without one."""
    accepted: bool
    """Whether anything may have been carried out."""
    undocumented: str | None = None
    hung: bool = False
    made: tuple[str, ...] = ()
    """Handles of streams that it has made."""


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
        try:
            async with asyncio.timeout(PATIENCE + GRACE):
                if method.client_streaming:
                    replies = await asyncio.to_thread(self._upload, path, shot)
                elif method.server_streaming:
                    call = self.channel.unary_stream(path)(shot.requests[0], timeout=PATIENCE)
                    replies = [reply async for reply in call]
                else:
                    replies = [await self.channel.unary_unary(path)(shot.requests[0], timeout=PATIENCE)]
        except (grpc.RpcError, grpc.aio.AioRpcError) as error:
            return _refused(shot, error)
        except TimeoutError:
            return Ending("NO_END", True, hung=True)
        return _answered(method, replies)

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

    def _upload(self, path: str, shot: Shot) -> list[bytes]:
        whole = shot.manner == "whole"
        requests = shot.requests if whole else shot.requests[: len(shot.requests) // 2 + 1]
        stopped = _Halting(requests, ends=whole)
        call = self._waiting.stream_unary(path).future(
            iter(stopped), timeout=0.3 if shot.manner == "idle" else PATIENCE
        )
        call.add_done_callback(lambda _: stopped.sent.set())  # it may be ended before all was taken
        try:
            if shot.manner == "half":
                stopped.sent.wait(PATIENCE)
                call.cancel()
            return [call.result()]
        except grpc.FutureCancelledError:
            return []
        finally:
            stopped.go_on()


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


def _refused(shot: Shot, error: Any) -> Ending:
    """An error of the call: one that the contract names, or the consequence of what we have done."""
    code, details = error.code(), error.details() or ""
    trailers = dict(error.trailing_metadata() or ())
    raw = trailers.get("grpc-status-details-bin")
    if raw is None:
        if shot.manner == "idle" and code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return Ending(code.name, True)
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return Ending(code.name, True, hung=True)
        # gRPC's own answer to a message above the limit, which the contract names.
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
            return Ending(code.name, False)
        return Ending(code.name, True, f"{code.name} without details: {details[:200]}")
    status = status_pb2.Status.FromString(raw)
    if status.code != code.value[0] or status.message != details:
        return Ending(code.name, False, f"{code.name} {details!r} with details of {status.code}")
    reason, wrong = reason_of(shot.method, status)
    return Ending(reason, False, wrong)


def reason_of(method: str, status: status_pb2.Status) -> tuple[str, str | None]:
    """The reason of an error, and why a method may not fail with it, or None."""
    info = error_details_pb2.ErrorInfo()
    if not status.details or not status.details[0].Unpack(info) or info.domain != "rondel":
        return "NO_REASON", f"code {status.code} without ErrorInfo: {status.message[:200]}"
    if info.reason not in _KNOWN:
        return info.reason, f"{info.reason} is the reason of no error"
    code: int = next(CODES[cls] for cls in _KNOWN[info.reason].__mro__ if cls in CODES).value[0]
    if status.code != code:
        return info.reason, f"{info.reason} has code {status.code}, the table says {code}"
    if info.reason not in _DOCUMENTED[method]:
        return info.reason, f"{info.reason} is not among what {method} is said to fail with: {status.message}"
    return info.reason, None


def _answered(method: MethodDescriptor, replies: list[bytes]) -> Ending:
    """Replies: messages of the contract, errors of items among them."""
    made: list[str] = []
    reasons: list[str] = []
    for raw in replies:
        try:
            reply: Any = GetMessageClass(method.output_type).FromString(raw)
        except DecodeError as error:
            return Ending("OK", True, f"the reply is no {method.output_type.name}: {error}")
        match reply:
            case pb.OpenStreamResponse():
                made.append(reply.handle)
            case pb.ForkStreamResponse():
                made.append(reply.stream.handle)
            case pb.ImportStreamResponse():
                made.append(reply.opened.handle)
            case pb.StepResponse():
                for result in reply.results:
                    if result.status.code:
                        reason, wrong = reason_of("Step", result.status)
                        if wrong is not None:
                            return Ending(reason, True, wrong)
                        reasons.append(reason)
                    else:
                        reasons.append("OK")
    refused = bool(reasons) and "OK" not in reasons
    return Ending(reasons[0] if refused else "OK", not refused, made=tuple(made))
