"""How large the parts of a request may be. The protos say the same in words; a test compares the two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from rondel.decoder.errors import InvalidRequest
from rondel.decoder.lm.chat import MAX_MESSAGES
from rondel.decoder.lm.stops import MAX_STOPS
from rondel.decoder.options import MAX_RANGES
from rondel.decoder.snapshot import PIECE_BYTES
from rondel.decoder.spec import MAX_DIM, MAX_LAYERS
from rondel.v1.wire import MAX_AXES

KIB: Final = 1 << 10
MAX_ID_BYTES: Final = 128
MAX_NAME_BYTES: Final = 256
MAX_PROMPT_BYTES: Final = 4 << 20
METADATA_BYTES: Final = 16 << 10
"""Of all the metadata of a call: names, values and 32 more for each, as HTTP/2 counts."""
PIECE_FRAME: Final = 512
"""More than a message with a piece of a snapshot has besides it: lengths, and two names."""

BY_MESSAGE: Final = "by the message"
"""No bound but that of the message which the field is in."""

FIELDS: Final[Mapping[str, int | str]] = {
    "rondel.v1.StreamRef.handle": MAX_ID_BYTES,
    "rondel.v1.OpenStreamRequest.request_id": MAX_ID_BYTES,
    "rondel.v1.OpenStreamRequest.projections": MAX_ID_BYTES,
    "rondel.v1.OpenStreamRequest.from_prefix": MAX_ID_BYTES,
    "rondel.v1.ForkStreamRequest.request_id": MAX_ID_BYTES,
    "rondel.v1.ForkStreamRequest.prefix_name": MAX_ID_BYTES,
    "rondel.v1.TruncateStreamRequest.request_id": MAX_ID_BYTES,
    "rondel.v1.AttachStreamRequest.request_id": MAX_ID_BYTES,
    "rondel.v1.CloseStreamRequest.request_id": MAX_ID_BYTES,
    "rondel.v1.ImportStreamRequest.request_id": MAX_ID_BYTES,
    "rondel.v1.ImportStreamRequest.projections": MAX_ID_BYTES,
    "rondel.v1.ImportStreamRequest.data": PIECE_BYTES,
    "rondel.v1.ListStreamsRequest.page_token": MAX_ID_BYTES,
    "rondel.v1.StreamSpec.groups": MAX_LAYERS,
    "rondel.v1.LayerGroup.layers": MAX_LAYERS,
    "rondel.v1.DivisorScaling.divisors": MAX_DIM // 2,
    "rondel.v1.StepRequest.items": "max_step_items",
    "rondel.v1.DecodeRequest.operations": "max_step_items",
    "rondel.v1.KeyRanges.ranges": MAX_RANGES,
    "rondel.v1.Tensor.shape": MAX_AXES,
    "rondel.v1.Tensor.data": BY_MESSAGE,
    "rondel.v1.GenerateRequest.model": MAX_NAME_BYTES,
    "rondel.v1.GenerateRequest.text": MAX_PROMPT_BYTES,
    "rondel.v1.GenerateRequest.stop": MAX_STOPS,
    "rondel.v1.Chat.messages": MAX_MESSAGES,
    "rondel.v1.ChatMessage.content": BY_MESSAGE,
    "rondel.v1.TokenIds.ids": BY_MESSAGE,
}
"""Every text, bytes and repeated field of a request: bytes of UTF-8, or number of items."""

MESSAGES: Final[Mapping[str, int]] = {
    "rondel.v1.OpenStreamRequest": 1024 * KIB,
    "rondel.v1.ForkStreamRequest": 4 * KIB,
    "rondel.v1.TruncateStreamRequest": 4 * KIB,
    "rondel.v1.AttachStreamRequest": 4 * KIB,
    "rondel.v1.SealStreamRequest": 4 * KIB,
    "rondel.v1.GetStreamRequest": 4 * KIB,
    "rondel.v1.ListStreamsRequest": 4 * KIB,
    "rondel.v1.CloseStreamRequest": 4 * KIB,
    "rondel.v1.ExportStreamRequest": 4 * KIB,
    "rondel.v1.ImportStreamRequest": PIECE_BYTES + PIECE_FRAME,
    "rondel.v1.GetServerInfoRequest": 4 * KIB,
    "rondel.v1.ListModelsRequest": 4 * KIB,
    "rondel.v1.GenerateRequest": MAX_PROMPT_BYTES + 64 * KIB,
}
"""Bytes of requests that carry no tensors; the others have the server's ``max_message_bytes``."""


def check_size(message: Descriptor, size: int) -> None:
    """Refuses, before it is parsed, what has more bytes than any such request. Raises InvalidRequest."""
    most = MESSAGES.get(message.full_name)
    if most is not None and size > most:
        raise InvalidRequest(
            f"a {message.name} has at most {most} bytes, got {size}",
            field="prompt" if message.name == "GenerateRequest" else message.name,
        )


def check_items(what: str, field: str, count: int, most: int) -> None:
    """Refuses a list of none, or of too many. Raises InvalidRequest."""
    if not 1 <= count <= most:
        raise InvalidRequest(f"a {what} has 1 to {most} {field}, got {count}", field=field)


def check_id(name: str, value: str) -> None:
    """Refuses a handle or request id that is too long. Raises InvalidRequest."""
    _check_bytes(name, value, MAX_ID_BYTES)


def bounded_texts(message: Descriptor) -> tuple[tuple[str, int], ...]:
    """The message's own single text fields, with the bytes that each may have."""
    bounds = ((field.name, FIELDS[field.full_name]) for field in message.fields if _is_text(field))
    return tuple((name, most) for name, most in bounds if isinstance(most, int))


def check_texts(message: Message, texts: tuple[tuple[str, int], ...]) -> None:
    """Refuses a message with one of these texts too long. Raises InvalidRequest."""
    for name, most in texts:
        _check_bytes(name, getattr(message, name), most)


def _is_text(field: FieldDescriptor) -> bool:
    return field.type == FieldDescriptor.TYPE_STRING and not field.is_repeated


def _check_bytes(name: str, value: str, most: int) -> None:
    size = len(value.encode())
    if size > most:
        raise InvalidRequest(f"{name} has at most {most} bytes, got {size}", field=name)
