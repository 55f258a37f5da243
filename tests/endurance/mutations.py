"""Messages that are not what they should be: fields with hostile values, and bytes that are no message."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from rondel.v1 import tensor_pb2

_F: Final = FieldDescriptor
INTEGERS: Final = (
    *(0, 1, -1, 2, 7, 127, 128, 255, 256, 1000, 65535, 65536, 2**24, 2**24 + 1),
    *(2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**48, 2**48 + 1, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1),
    *(-2, -(2**31), -(2**31) - 1, -(2**63)),
)
FLOATS: Final = (
    *(0.0, -0.0, 1.0, -1.0, math.nan, math.inf, -math.inf, 5e-324, 1e-45, 1e-30, 1e15, 2e15, 1e38, 3.5e38),
    *(1e300, -1e300, 1e4, 1e4 + 1),
)
TEXTS: Final = (
    *("", "x", "nobody's", "\0", "\n", "x" * 128, "x" * 129, "é" * 65, "\U0010ffff" * 40, "x" * 5000),
    *("../../etc/passwd", "%s%n", "a\0b"),
)
_NUMBERS: Final = tuple(
    np.float32(value).tobytes()
    for value in (math.nan, math.inf, -math.inf, 1e-45, 1e-30, 3.4e38, 1.1e15, -1.1e15, 6e4, -0.0)
)
_RANGES: Final = {
    _F.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    _F.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    _F.CPPTYPE_UINT32: (0, 2**32 - 1),
    _F.CPPTYPE_UINT64: (0, 2**64 - 1),
    _F.CPPTYPE_ENUM: (-(2**31), 2**31 - 1),
}
MOST_BYTES: Final = 1 << 20
"""Larger messages are rare: they would take the time of hundreds of small ones."""


def mutated(messages: list[Message], donors: list[bytes], rng: random.Random) -> list[bytes]:
    """The bytes of a call's requests, with one to eight things wrong. ``donors``: other messages."""
    messages = [_copy(message) for message in messages]
    level = rng.choices(("fields", "bytes", "both"), (55, 25, 20))[0]
    if level != "bytes":
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            if len(messages) > 1 and rng.random() < 0.2:
                _rearranged(messages, rng)
            else:
                _hostile_field(rng.choice(messages), rng)
    raw = [message.SerializeToString() for message in messages]
    if level != "fields":
        chosen = rng.randrange(len(raw))
        for _ in range(rng.choice((1, 1, 1, 2, 5))):
            raw[chosen] = rng.choice(_BYTES)(raw[chosen], donors, rng)
    return raw


def _copy(message: Message) -> Message:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def _rearranged(messages: list[Message], rng: random.Random) -> None:
    """A client stream out of order, with a part missing or twice."""
    match rng.randrange(4):
        case 0:
            rng.shuffle(messages)
        case 1:
            del messages[rng.randrange(len(messages))]
        case 2:
            messages.insert(rng.randrange(len(messages)), _copy(rng.choice(messages)))
        case _:
            del messages[rng.randrange(1, len(messages)) :]


def _hostile_field(message: Message, rng: random.Random) -> None:
    """Give one field, anywhere inside, a value that it should not have."""
    fields = list(_fields(message))
    if not fields:  # it has none: what is wrong with it must be its bytes
        return
    owner, field = rng.choice(fields)
    if field.is_repeated:
        _hostile_list(owner, field, rng)
    elif field.message_type is None:
        setattr(owner, field.name, _value(field, rng))
    elif isinstance(getattr(owner, field.name), tensor_pb2.Tensor) and rng.random() < 0.8:
        _hostile_tensor(getattr(owner, field.name), rng)
    elif rng.random() < 0.5:
        owner.ClearField(field.name)
    else:
        getattr(owner, field.name).SetInParent()


def _fields(message: Message, depth: int = 0) -> Iterator[tuple[Message, FieldDescriptor]]:
    """Every field of a message and of what is set in it; of what is not set the field itself."""
    for field in message.DESCRIPTOR.fields:
        yield message, field
        if field.message_type is None or depth > 8:
            continue
        value = getattr(message, field.name)
        if field.is_repeated:
            for part in value:
                yield from _fields(part, depth + 1)
        elif message.HasField(field.name):
            yield from _fields(value, depth + 1)


def _value(field: FieldDescriptor, rng: random.Random) -> Any:
    if field.cpp_type in _RANGES:
        low, high = _RANGES[field.cpp_type]
        return rng.choice([number for number in INTEGERS if low <= number <= high])
    if field.cpp_type in (_F.CPPTYPE_DOUBLE, _F.CPPTYPE_FLOAT):
        return rng.choice(FLOATS)
    if field.cpp_type == _F.CPPTYPE_BOOL:
        return rng.random() < 0.5
    text = rng.choice(TEXTS)
    return text.encode() if field.type == _F.TYPE_BYTES else text


def _hostile_list(owner: Message, field: FieldDescriptor, rng: random.Random) -> None:
    values = getattr(owner, field.name)
    many = rng.choice((2, 3, 1025, 2000))
    match rng.randrange(5):
        case 0:
            owner.ClearField(field.name)
        case 1 if values:
            del values[rng.randrange(len(values))]
        case 2 if field.message_type is None:
            values.extend([_value(field, rng)] * many)
        case 3 if values:
            part = values[rng.randrange(len(values))]
            most = many if not isinstance(part, Message) or part.ByteSize() * many < MOST_BYTES else 2
            values.extend([part] * most)
        case _ if field.message_type is None:
            values.insert(rng.randint(0, len(values)), _value(field, rng))
        case _:
            values.add()


def _hostile_tensor(tensor: tensor_pb2.Tensor, rng: random.Random) -> None:
    """Shape, type and bytes that do not belong together, numbers that are none, sizes beyond all bounds."""
    match rng.randrange(9):
        case 0 if tensor.shape:
            tensor.shape[rng.randrange(len(tensor.shape))] = rng.choice(
                [number for number in INTEGERS if -(2**63) <= number < 2**63]
            )
        case 1:
            del tensor.shape[:]
            tensor.shape.extend(rng.choice(([2**31 - 1] * 3, [2**16] * 4, [0] * 3, [1] * 9, [-1, -1, 4], [])))
        case 2:
            tensor.dtype = rng.choice((0, 1, 2, 3, 4, 5, 6, 99, -1))
        case 3:
            tensor.data = tensor.data[: rng.randrange(len(tensor.data) + 1)]
        case 4:
            tensor.data += bytes(rng.choice((1, 2, 4, 4096)))
        case 5 | 6 if len(tensor.data) >= 4:
            at = 4 * rng.randrange(len(tensor.data) // 4)
            bits = rng.choice(
                ("0000c07f", "0000807f", "000080ff", "01000000", "ffff7f7f", "5f70f458", "00000080")
            )
            tensor.data = tensor.data[:at] + bytes.fromhex(bits) + tensor.data[at + 4 :]
        case 7 if len(tensor.shape) > 1:
            shape = list(tensor.shape)
            rng.shuffle(shape)
            tensor.shape[:] = shape
        case _:
            # A shape and bytes that do belong together, but not here.
            rows = rng.choice((0, 1, 2, 33, 700))
            row = math.prod(tensor.shape[1:]) * 4 if len(tensor.shape) > 1 else 4
            rows = min(rows, MOST_BYTES // max(1, row)) if rng.random() < 0.95 else rows
            tensor.dtype = tensor_pb2.DTYPE_FLOAT32
            if 0 <= row * rows <= 20 << 20:
                tensor.shape[:] = [rows, *tensor.shape[1:]]
                tensor.data = bytes(row * rows)


# Bytes. Each takes the bytes, those of other messages, and where its choices come from.


def _flipped(raw: bytes, donors: list[bytes], rng: random.Random) -> bytes:
    if not raw:
        return b"\x80"
    # Near the beginning are the tags and lengths; further on are numbers of tensors.
    at = rng.randrange(min(len(raw), 64)) if rng.random() < 0.7 else rng.randrange(len(raw))
    return raw[:at] + bytes([raw[at] ^ 1 << rng.randrange(8)]) + raw[at + 1 :]


def _cut(raw: bytes, donors: list[bytes], rng: random.Random) -> bytes:
    return raw[: rng.randrange(len(raw) + 1)]


def _spliced(raw: bytes, donors: list[bytes], rng: random.Random) -> bytes:
    donor, at = rng.choice(donors), rng.randrange(len(raw) + 1)
    begin = rng.randrange(len(donor) + 1)
    return raw[:at] + donor[begin : begin + rng.choice((1, 5, 40, 4000))] + raw[at + rng.choice((0, 1, 8)) :]


def _joined(raw: bytes, donors: list[bytes], rng: random.Random) -> bytes:
    """Two messages behind each other are one: the later fields win, lists are joined."""
    return raw + rng.choice((raw, rng.choice(donors)))


def _length_lie(raw: bytes, donors: list[bytes], rng: random.Random) -> bytes:
    """Another length in front of a text, a list or a nested message."""
    places = [at for at in range(1, min(len(raw), 400)) if raw[at - 1] & 7 == 2]
    if not places:
        return raw + b"\x0a\xff\xff\xff\xff\x0f"
    at = rng.choice(places)
    lie = rng.choice((0, 1, raw[at] ^ 1, 127, len(raw), 2**31 - 1, 2**32, 2**63, 2**64 - 1))
    return raw[:at] + varint(lie) + raw[at + 1 :]


def _unknown(raw: bytes, donors: list[bytes], rng: random.Random) -> bytes:
    """Fields that the contract does not have, of every wire type, and types that there are not."""
    number = rng.choice((0, 1, 3, 15, 16, 999, 19000, 2**29 - 1, 2**29))
    kind = rng.randrange(8)
    content = {
        0: varint(rng.getrandbits(64)),
        1: rng.randbytes(8),
        2: varint(20) + rng.randbytes(20),
        5: rng.randbytes(4),
    }.get(kind, b"")
    field = varint(number << 3 | kind) + content
    return field + raw if rng.random() < 0.5 else raw + field


def _nested(raw: bytes, donors: list[bytes], rng: random.Random) -> bytes:
    """Messages, or groups, within each other, far deeper than any reader goes."""
    depth = rng.choice((3, 90, 110, 5000))
    if rng.random() < 0.5:
        return raw + b"\x0b" * depth + b"\x0c" * rng.choice((depth, depth - 1, 0))
    inside = b""
    for _ in range(min(depth, 300)):
        inside = b"\x0a" + varint(len(inside)) + inside
    return raw + inside


def _long_varint(raw: bytes, donors: list[bytes], rng: random.Random) -> bytes:
    return raw + varint(rng.choice((1, 2, 3, 4)) << 3) + b"\xff" * rng.choice((9, 10, 11, 40)) + b"\x01"


def _rubbish(raw: bytes, donors: list[bytes], rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice((0, 1, 2, 10, 100, 1000, 5000)))


_BYTES: Final[tuple[Callable[[bytes, list[bytes], random.Random], bytes], ...]] = (
    *(_flipped, _flipped, _flipped, _cut, _spliced, _spliced, _joined, _length_lie, _length_lie),
    *(_unknown, _nested, _long_varint, _rubbish),
)


def varint(number: int) -> bytes:
    """As protobuf writes it."""
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])
