"""One call of a fuzzer: what is sent."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

from corpus import valid
from mutations import mutated
from protocomments import METHODS
from targets import SORTS, Sort

from rondel.v1 import attention_pb2 as pb

CONNECTION: Final = "(connection)"
"""Not a method: bytes that are no gRPC, on a connection of their own."""

WEIGHTS: Final = {
    "AppendToken": 6,
    "Attend": 6,
    "Step": 8,
    "Decode": 10,
    "AttachStream": 2,
    "OpenStream": 5,
    "ForkStream": 4,
    "TruncateStream": 3,
    "ImportStream": 5,
    "Generate": 3,
    "GetStream": 2,
    "ExportStream": 2,
    "SealStream": 1,
    "CloseStream": 1,
    "ListStreams": 2,
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
CHANGING: Final = {
    *("AppendToken", "Step", "Decode", "AttachStream", "ForkStream", "TruncateStream", "SealStream"),
    "CloseStream",
}
"""Those that may change the stream they name when they succeed (of a fork's origin what it shares)."""


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

    @property
    def streamed(self) -> bool:
        """Whether there may be any number of requests."""
        return self.method != CONNECTION and METHODS[self.method].client_streaming

    @classmethod
    def aimed(cls, seed: int, number: int) -> Shot:
        """The shot of this number."""
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
        if self.streamed and rng.random() < 0.4:
            self.manner = rng.choice(("half", "idle"))

    def aim(self, stream: str, closed: str) -> None:
        """Put handles where there is still one in the requests."""
        for stand_in, handle in ((OPEN, stream), (CLOSED, closed)):
            self.requests = [raw.replace(stand_in.encode(), handle.encode()) for raw in self.requests]
