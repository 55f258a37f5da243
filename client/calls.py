"""What sync.py and aio.py have in common below the streams: methods, deadlines, retries, channel options."""

from __future__ import annotations

import random
import time
from collections.abc import Container, Generator
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, cast

from google.protobuf.message import Message

from rondel.decoder.errors import DeadlineExpired, Draining, RondelError, ServerUnavailable
from rondel.v1 import attention_pb2 as pb
from rondel.v1 import generation_pb2 as gen
from rondel.v1.tenant_pb2 import ListStreamsRequest, ListStreamsResponse

Request = TypeVar("Request", bound=Message)
Reply = TypeVar("Reply", bound=Message)
Result = TypeVar("Result")

DEFAULT_TIMEOUT: Final = 30.0
"""Seconds for a call, its retries included, unless the client was made with another number."""

DEFAULT_GENERATION_TIMEOUT: Final = 600.0
"""Seconds for a whole generation."""

DEFAULT_TRANSFER_TIMEOUT: Final = 600.0
"""Seconds for a whole export or import."""

DEFAULT_MAX_MESSAGE_BYTES: Final = 16 << 20
"""Largest message that a client sends or takes unless it was made with another number; a server's default."""

ATTEMPTS: Final = 6
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0

_CHANNEL_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    # Idle streams stay usable through firewalls; servers of ours allow a ping every ten seconds.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # A channel looks for a lost server again more often than a call is tried, so a server that has come
    # back is found within the tries of one call. The default waits up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
)


def channel_options(max_message_bytes: int) -> tuple[tuple[str, int], ...]:
    """What a channel is made with."""
    return (
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        *_CHANNEL_OPTIONS,
    )


class Raw:
    """Bytes that are a message already."""

    @staticmethod
    def SerializeToString(raw: bytes) -> bytes:  # noqa: N802 - protobuf's name
        """The bytes."""
        return raw

    @staticmethod
    def FromString(raw: bytes) -> bytes:  # noqa: N802
        """The bytes."""
        return raw


@dataclass(frozen=True, slots=True)
class Method(Generic[Request, Reply]):
    """A method of the contract."""

    path: str
    request: type[Request]
    reply: type[Reply]


_ATTENTION: Final = "/rondel.v1.AttentionService"
_GENERATION: Final = "/rondel.v1.GenerationService"

OPEN: Final = Method(f"{_ATTENTION}/OpenStream", pb.OpenStreamRequest, pb.OpenStreamResponse)
APPEND: Final = Method(f"{_ATTENTION}/AppendToken", pb.AppendTokenRequest, pb.AppendTokenResponse)
ATTEND: Final = Method(f"{_ATTENTION}/Attend", pb.AttendRequest, pb.AttendResponse)
STEP: Final = Method(f"{_ATTENTION}/Step", pb.StepRequest, pb.StepResponse)
FORK: Final = Method(f"{_ATTENTION}/ForkStream", pb.ForkStreamRequest, pb.ForkStreamResponse)
ATTACH: Final = Method(f"{_ATTENTION}/AttachStream", pb.AttachStreamRequest, pb.AttachStreamResponse)
TRUNCATE: Final = Method(f"{_ATTENTION}/TruncateStream", pb.TruncateStreamRequest, pb.TruncateStreamResponse)
SEAL: Final = Method(f"{_ATTENTION}/SealStream", pb.SealStreamRequest, pb.SealStreamResponse)
GET: Final = Method(f"{_ATTENTION}/GetStream", pb.GetStreamRequest, pb.GetStreamResponse)
LIST: Final = Method(f"{_ATTENTION}/ListStreams", ListStreamsRequest, ListStreamsResponse)
CLOSE: Final = Method(f"{_ATTENTION}/CloseStream", pb.CloseStreamRequest, pb.CloseStreamResponse)
EXPORT: Final = Method(f"{_ATTENTION}/ExportStream", pb.ExportStreamRequest, pb.ExportStreamResponse)
IMPORT: Final = Method(f"{_ATTENTION}/ImportStream", pb.ImportStreamRequest, pb.ImportStreamResponse)
INFO: Final = Method(f"{_ATTENTION}/GetServerInfo", pb.GetServerInfoRequest, pb.GetServerInfoResponse)
DECODE: Final = Method(f"{_ATTENTION}/Decode", cast(Any, Raw), cast(Any, Raw))
"""Its messages are put together and taken apart elsewhere."""
GENERATE: Final = Method(f"{_GENERATION}/Generate", gen.GenerateRequest, gen.GenerateResponse)
MODELS: Final = Method(f"{_GENERATION}/ListModels", gen.ListModelsRequest, gen.ListModelsResponse)

KINDS: Final = {
    OPEN.path: "open",
    ATTACH.path: "attach",
    STEP.path: "step",
    APPEND.path: "append",
    ATTEND.path: "attend",
    TRUNCATE.path: "truncate",
    SEAL.path: "seal",
    CLOSE.path: "close",
}
"""What a Decode call can do, by the unary method that does it."""
ALONE: Final = (CLOSE, TRUNCATE)
"""For these no stream is attached to: carried out over a connection that was lost, they are answered again by
their request_id; but after a truncate nobody can attach in the generation before it."""


@dataclass(slots=True)
class Call:
    """A request that is to be sent, and by which method."""

    method: Method[Any, Any]
    request: Message
    deadline: float | None = None
    """Until when it may be tried, on ``time.monotonic``. None = whoever sends it sets it."""


class Detached(Exception):
    """Streams must be attached to before the call can be made: the connection is another one than that which
    they were used on."""

    def __init__(self, handles: Container[str]) -> None:
        super().__init__("streams are not attached to")
        self.handles = handles


Steps = Generator[Call, Message, Result]
"""An operation without its input and output: yields calls, is sent their replies, returns its result.

sync.py and aio.py drive it; a failed call is thrown in, as a RondelError or as Detached. So each operation is
written once.
"""


def ask(method: Method[Request, Reply], request: Request, deadline: float | None = None) -> Steps[Reply]:
    """One call, as a step of an operation."""
    return cast(Reply, (yield Call(method, request, deadline)))


class Attempts:
    """The tries of one call: what time is left, and whether a failure may be tried again.

    Only an unreachable server is tried again. That is safe for every request that we send: those that
    change a stream say where they belong or carry a request id, so the server knows one it has seen.
    """

    lasting = False
    """Try until the deadline, and also a server that is about to stop, for it may be started anew."""

    def __init__(self, timeout: float, deadline: float | None = None) -> None:
        self.deadline = time.monotonic() + timeout if deadline is None else deadline
        """When there is no time left, on ``time.monotonic``."""
        self._timeout = timeout
        self._made = 0

    def begin(self) -> float:
        """Count a try; the seconds it may take. Raises DeadlineExpired."""
        left = self.left()
        self._made += 1
        return left

    def left(self) -> float:
        """The seconds until the deadline. Raises DeadlineExpired."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise DeadlineExpired(f"no answer within {self._timeout:g} s", timeout=f"{self._timeout:g}")
        return left

    def pause(self, error: RondelError) -> float:
        """Seconds to wait before the next try; raises ``error`` when there is to be none."""
        if self.lasting:
            again = isinstance(error, ServerUnavailable | Draining)
        else:
            again = isinstance(error, ServerUnavailable) and self._made < ATTEMPTS
        if not again:
            raise error
        longest: float = min(FIRST_PAUSE * 2 ** min(self._made - 1, 10), LONGEST_PAUSE)
        pause = longest * random.uniform(0.5, 1.0)  # clients of one server must not come back in step
        if time.monotonic() + pause >= self.deadline:
            raise error
        return pause
