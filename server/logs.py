"""The log: text for people or JSON for machines, and no more of one kind of line than helps.

A line is a message and, with ``extra={"fields": {...}}``, named values. Handles are capabilities: no line
has a whole one (:func:`shortened`).
"""

from __future__ import annotations

import gc
import json
import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from rondel.server.config import ServerConfig

_SHOWN: Final = 8
_WINDOW_SECONDS: Final = 10.0
_PER_WINDOW: Final = 20
_MOST_KINDS: Final = 512


def configure(config: ServerConfig) -> None:
    """Sends the log to standard error. Once in a process, and before any object of grpc.aio exists: what
    configures logging later can deadlock with their finalisers (grpc/grpc 43421)."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if config.log_format == "json" else TextFormatter())
    handler.addFilter(Sparing())
    logging.basicConfig(handlers=[handler])
    set_level(config.log_level)


def set_level(name: str) -> None:
    """What is logged from now on. It may come at any time."""
    level = logging.getLevelNamesMapping()[name.upper()]
    # A level is set under logging's lock. A collection in there could wait, in the finaliser of an object of
    # grpc.aio, for a lock whose holder is about to log (grpc/grpc 43421 again).
    collects = gc.isenabled()
    gc.disable()
    try:
        logging.getLogger().setLevel(level)
        # What grpc says to its own developers it says while it holds that lock.
        logging.getLogger("grpc").setLevel(max(level, logging.INFO))
    finally:
        if collects:
            gc.enable()


def shortened(handle: str) -> str:
    """As much of a handle as tells streams apart in a log, and no more: whoever has it whole has the stream.
    A new handle has 24 characters of 6 random bits each."""
    return f"{handle[:_SHOWN]}…" if handle else ""


class JsonFormatter(logging.Formatter):
    """An object per line: time (RFC 3339), level, logger, message, fields, error."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """A line for people: a message never has more than one, whoever has sent the words in it."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is the base's
        line = super().formatMessage(record)
        for name, value in _fields(record).items():
            line += f" {name}={value}"
        return line.replace("\r", "\\r").replace("\n", "\\n")


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = dict(getattr(record, "fields", {}))
    if left_out := getattr(record, "left_out", 0):
        fields["left_out"] = left_out
    return fields


class Sparing(logging.Filter):
    """Lets 20 lines of a kind through in 10 seconds; the next that comes through has how many did not.

    It minds warnings and worse, and whatever names a kind with ``extra={"kind": ...}``. Other lines of a kind
    are those with the same logger, level and unformatted message.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._kinds: dict[object, list[float]] = {}
        """Per kind: the beginning of its window, lines in it, lines left out."""

    def filter(self, record: logging.LogRecord) -> bool:
        kind = getattr(record, "kind", None)
        if kind is None:
            if record.levelno < logging.WARNING:
                return True
            kind = (record.name, record.levelno, record.msg)
        now = self._clock()
        with self._lock:
            window = self._kinds.get(kind)
            if window is None:
                if len(self._kinds) >= _MOST_KINDS:
                    self._kinds.clear()
                window = self._kinds[kind] = [now, 0, 0]
            if now - window[0] >= _WINDOW_SECONDS:
                window[0], window[1] = now, 0
            if window[1] >= _PER_WINDOW:
                window[2] += 1
                return False
            window[1] += 1
            if window[2]:
                record.left_out = int(window[2])
                window[2] = 0
            return True
