"""A line in the log for a call that has ended."""

from __future__ import annotations

import logging
import time
from typing import Any, Final

import grpc

from rondel.server.account import Account
from rondel.server.logs import shortened

log: Final = logging.getLogger("rondel.calls")

_SERIOUS: Final = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.DATA_LOSS)


class CallLog:
    """A watcher that logs calls: ``all``, those that ``failed``, or ``none``."""

    def __init__(self, which: str) -> None:
        self.which = which

    def begin(self, method: object, account: Account, metadata: object) -> None:
        """A line comes at the end."""

    def answered(self, account: Account, request: Any, response: Any) -> None:
        """A line comes at the end."""

    def end(self, account: Account, listener: object) -> None:
        good = account.code is grpc.StatusCode.OK
        if self.which == "none" or (good and self.which == "failed"):
            return
        level = logging.WARNING if account.code in _SERIOUS else logging.INFO
        if log.isEnabledFor(level):
            # Whoever wants all lines gets them; failures alone are told sparingly: a client can make many.
            kind = None if self.which == "all" else (account.method, account.code)
            extra = {"fields": fields_of(account), "kind": kind}
            log.log(level, "%s ended as %s", account.method, account.code.name, extra=extra)


def fields_of(account: Account) -> dict[str, object]:
    """What a line tells of a call besides its message."""
    fields: dict[str, object] = {
        "service": account.service,
        "method": account.method,
        "code": account.code.name,
        "seconds": round(time.monotonic() - account.began, 6),
        "peer": account.peer,
        "messages_received": account.messages_received,
        "messages_sent": account.messages_sent,
        "bytes_received": account.bytes_received,
        "bytes_sent": account.bytes_sent,
        "queue_ms": round(account.queue_seconds * 1000, 3),
        "kernel_ms": round(account.kernel_seconds * 1000, 3),
    }
    if account.reason:
        fields["reason"] = account.reason
    if account.tenant:
        fields["tenant"] = account.tenant
    if handle := _handle(account.request):
        fields["stream"] = shortened(handle)
    if account.trace_id:
        fields["trace_id"] = account.trace_id
    return fields


def _handle(request: Any) -> str:
    """The handle that a request names, if it names one stream."""
    descriptor = getattr(request, "DESCRIPTOR", None)
    if descriptor is None or "stream" not in descriptor.fields_by_name:
        return ""
    return str(getattr(request.stream, "handle", ""))
