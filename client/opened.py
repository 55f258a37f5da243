"""What a client has opened on its server and must see closed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rondel.v1 import attention_pb2 as pb

if TYPE_CHECKING:
    from rondel.client.core import StreamCore


class Opened(dict[str, "StreamCore"]):
    """Streams by their handle, and Opens whose answer nobody heard.

    Each of those may have made a stream, which would lie there until its lease ends. They are asked again
    before the next Open, and at the end, so that it can be closed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unanswered: list[pb.OpenStreamRequest] = []
