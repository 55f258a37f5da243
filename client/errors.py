"""Statuses of gRPC to the errors of ``rondel.decoder.errors``: a remote call raises what a local one does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from rondel.decoder.errors import (
    DeadlineExpired,
    Fact,
    InvalidRequest,
    PermissionDenied,
    QuotaExceeded,
    RondelError,
    ServerInternal,
    ServerUnavailable,
    Unauthenticated,
    from_reason,
)

DOMAIN: Final = "rondel"
"""The ``ErrorInfo.domain`` of errors that a Rondel server raised on purpose."""

DETAILS_KEY: Final = "grpc-status-details-bin"
"""The trailing metadata in which gRPC sends a ``google.rpc.Status``."""


def from_call(
    code: grpc.StatusCode | None,
    details: str | None,
    trailing: Iterable[tuple[str, str | bytes]] | None,
    *,
    target: str,
) -> RondelError:
    """The error for a call that failed: the server's own class, or what the bare status code says."""
    for key, value in trailing or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            try:
                found = from_status(status_pb2.Status.FromString(value))
            except DecodeError:
                continue  # not ours: the code still says what to raise
            if found is not None:
                return found
    return _from_code(code, details or "no details", target)


def from_status(status: status_pb2.Status) -> RondelError | None:
    """The error that a ``google.rpc.Status`` carries; None when no Rondel server put one in."""
    info = error_details_pb2.ErrorInfo()
    for detail in status.details:
        if detail.Is(info.DESCRIPTOR):
            detail.Unpack(info)
            if info.domain == DOMAIN:
                # A newer server's facts must not run into the constructor's own parameters.
                facts: dict[str, Fact] = {
                    name: value for name, value in info.metadata.items() if name not in ("message", "self")
                }
                return from_reason(info.reason, status.message, facts)
    return None


def item_error(status: status_pb2.Status) -> RondelError:
    """The error of one item of a reply, whose status is not OK."""
    return from_status(status) or ServerInternal(
        f"an item failed with status {status.code}: {status.message}"
    )


def _from_code(code: grpc.StatusCode | None, details: str, target: str) -> RondelError:
    match code:
        case grpc.StatusCode.UNAVAILABLE:
            return ServerUnavailable(f"no answer from the server at {target}: {details}", target=target)
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return DeadlineExpired(f"the server at {target} did not answer in time: {details}", target=target)
        case grpc.StatusCode.CANCELLED:
            return ServerUnavailable(f"the call to {target} was cancelled: {details}", target=target)
        case grpc.StatusCode.RESOURCE_EXHAUSTED if "larger than max" in details:
            return _too_large(details, target)
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return QuotaExceeded(f"the server at {target} refused: {details}", target=target)
        case grpc.StatusCode.UNAUTHENTICATED:
            return Unauthenticated(f"the server at {target} does not know us: {details}", target=target)
        case grpc.StatusCode.PERMISSION_DENIED:
            return PermissionDenied(f"the server at {target} does not let us: {details}", target=target)
        case grpc.StatusCode.UNIMPLEMENTED:
            return InvalidRequest(f"{target} is no Rondel server of this version: {details}", target=target)
        case _:
            name = "no status" if code is None else code.name
            return ServerInternal(f"the server at {target} failed with {name}: {details}", target=target)


def _too_large(details: str, target: str) -> QuotaExceeded:
    # gRPC says whose limit it was, at the beginning or in brackets.
    ours = "CLIENT:" in details
    refused = f"the client of {target} refused" if ours else f"the server at {target} refused"
    cure = "make the client with a larger" if ours else "start the server with a larger"
    return QuotaExceeded(
        f"{refused} a message as too large ({details}); send or ask for fewer tokens at a time, or {cure} "
        "max_message_bytes",
        target=target,
        side="client" if ours else "server",
    )
