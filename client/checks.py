"""What a caller gives to a client, checked before anything is sent."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

import numpy as np

from rondel.client.values import Array
from rondel.decoder.errors import InvalidRequest, InvalidShape, InvalidSpec, SequenceGap
from rondel.decoder.spec import StreamSpec

MAX_POSITION: Final = (1 << 63) - 1
MAX_UNIX_PATH: Final = 107
"""Bytes that the system has room for in the address of a unix socket."""
_ONE: Final = (str, bytes, bytearray, memoryview)
"""One value to whoever gives it, a sequence to Python."""

MAX_TIMEOUT: Final = 1e8
LEAST_MESSAGE_BYTES: Final = 1024
MOST_MESSAGE_BYTES: Final = 1 << 30


def checked_target(target: object) -> str:
    """An address that a client may be made with. Raises InvalidSpec."""
    expected = f"host:port with a port from 1 to 65535, or unix:/path of at most {MAX_UNIX_PATH} bytes"
    if isinstance(target, str) and target.isprintable():
        scheme, _, path = target.partition(":")
        host, _, port = target.rpartition(":")
        if scheme == "unix":
            fits = 1 <= len(path.encode()) <= MAX_UNIX_PATH
        else:
            fits = bool(host) and " " not in host and port.isdecimal() and port.isascii()
            fits = fits and len(port) <= 5 and 1 <= int(port) <= 65535
        if fits:
            return target
    raise InvalidSpec(f"target must be {expected}, got {_clip(target)}", field="target")


def checked_timeout(timeout: object) -> float:
    """A timeout in seconds that a client or a call may be made with. Raises InvalidSpec."""
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= MAX_TIMEOUT:
        raise InvalidSpec(
            f"timeout must be a number of seconds above 0 and at most {MAX_TIMEOUT:g}, got {_clip(timeout)}",
            field="timeout",
        )
    return float(timeout)


def checked_message_bytes(size: object) -> int:
    """A message limit that a client may be made with. Raises InvalidSpec."""
    if (
        isinstance(size, bool)
        or not isinstance(size, int)
        or not LEAST_MESSAGE_BYTES <= size <= MOST_MESSAGE_BYTES
    ):
        raise InvalidSpec(
            f"max_message_bytes must be an integer from {LEAST_MESSAGE_BYTES} to {MOST_MESSAGE_BYTES}, "
            f"got {_clip(size)}",
            field="max_message_bytes",
        )
    return size


def checked_spec(spec: object) -> StreamSpec:
    """What a stream may be opened with. Raises InvalidSpec."""
    if not isinstance(spec, StreamSpec):
        raise InvalidSpec(f"spec must be a StreamSpec, got {_clip(spec)}", field="spec")
    return spec


def checked_count(name: str, value: object, least: int) -> int:
    """An integer, of Python or NumPy, from ``least`` on. Raises InvalidRequest."""
    number = _index(name, value)
    if number < least:
        raise InvalidRequest(f"{name} must be an integer from {least} on, got {number}", field=name)
    return number


def checked_limit(value: object) -> int | None:
    """A ``max_new_tokens``, as far as a message can say it; None = no limit. Raises InvalidRequest."""
    return None if value is None else min(checked_count("max_new_tokens", value, 0), MAX_POSITION)


def checked_position(name: str, value: object, held: int) -> int:
    """A position or length in a stream or layer that holds so many tokens, as far as a message can say it.

    Raises:
        InvalidRequest: it is no integer.
        SequenceGap: no stream can have it.
    """
    number = _index(name, value)
    if not 0 <= number <= MAX_POSITION:
        raise SequenceGap(f"{name} must be from 0 to {held}, got {_clip(number)}", expected=held)
    return number


def checked_array(name: str, x: object, shape: tuple[int | None, ...]) -> Array:
    """A float32 or float16 array of a shape (None = any size). Its values are the server's to judge.

    Raises:
        InvalidShape: it is another thing, or of another type or shape.
    """
    if (
        isinstance(x, np.ndarray)
        and x.dtype.newbyteorder("=") in (np.float32, np.float16)
        and x.ndim == len(shape)
        and all(want is None or want == got for want, got in zip(shape, x.shape, strict=True))
    ):
        return x
    got = f"{x.dtype} {list(x.shape)}" if isinstance(x, np.ndarray) else type(x).__name__
    expected = "float32 or float16 [" + ", ".join("n" if n is None else str(n) for n in shape) + "]"
    raise InvalidShape(f"{name} must be {expected}, got {got}", got=got, expected=expected)


def checked_text(name: str, text: object) -> str:
    """A text that a message can hold. Raises InvalidRequest."""
    if not isinstance(text, str) or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise InvalidRequest(f"{name} must be a text, got {_clip(text)}", field=name)
    return text


def checked_texts(name: str, texts: object) -> list[str]:
    """A sequence of texts; one text alone is not taken for its letters. Raises InvalidRequest."""
    if isinstance(texts, _ONE) or not isinstance(texts, Iterable):
        raise InvalidRequest(f"{name} must be a sequence of texts, got {_clip(texts)}", field=name)
    listed = list(texts)
    for text in listed:
        if not isinstance(text, str):
            raise InvalidRequest(f"{name} must be a sequence of texts, got {_clip(text)} in it", field=name)
    return listed


def checked_list(name: str, values: object) -> list[Any]:
    """A sequence of anything but letters. Raises InvalidRequest."""
    if isinstance(values, _ONE) or not isinstance(values, Iterable):
        raise InvalidRequest(f"{name} must be a sequence, got {_clip(values)}", field=name)
    return list(values)


def _index(name: str, value: object) -> int:
    if not isinstance(value, bool):
        with suppress(TypeError):
            return operator.index(value)  # type: ignore[arg-type]  # what is no index raises TypeError
    raise InvalidRequest(f"{name} must be an integer, got {_clip(value)}", field=name)


def _clip(value: object) -> str:
    """A value as an error may show it."""
    try:
        text = repr(value)
    except ValueError:  # an integer of too many digits
        return f"a very large {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:60]}…"
