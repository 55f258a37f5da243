"""The one table from error classes to status codes, and the google.rpc.Status made from it."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from typing import Final

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from rondel.decoder import errors

log = logging.getLogger("rondel.server")

DOMAIN: Final = "rondel"
DETAILS_KEY: Final = "grpc-status-details-bin"

# Status and details travel in trailing headers, which peers and proxies cap at 8 KiB after base64 and
# percent-encoding; a longer trailer would replace the error by a meaningless one.
MAX_DETAILS: Final = 3500
_MAX_MESSAGE: Final = 512
_MAX_FACT: Final = 128
_MAX_FACTS: Final = 12

_Code = grpc.StatusCode

CODES: Final[Mapping[type[errors.RondelError], grpc.StatusCode]] = {
    # Also what a class gets that this table and all its parents but this one lack: see code_of.
    errors.RondelError: _Code.INTERNAL,
    errors.InvalidSpec: _Code.INVALID_ARGUMENT,
    errors.InvalidShape: _Code.INVALID_ARGUMENT,
    errors.ValueRange: _Code.INVALID_ARGUMENT,
    errors.InvalidLayer: _Code.INVALID_ARGUMENT,
    errors.InvalidRequest: _Code.INVALID_ARGUMENT,
    errors.StreamNotFound: _Code.NOT_FOUND,
    errors.StreamClosed: _Code.NOT_FOUND,
    errors.StreamDamaged: _Code.DATA_LOSS,
    errors.StreamSealed: _Code.FAILED_PRECONDITION,
    errors.SessionBusy: _Code.ABORTED,
    errors.SequenceGap: _Code.OUT_OF_RANGE,
    errors.PositionConflict: _Code.ALREADY_EXISTS,
    errors.DuplicateTooOld: _Code.FAILED_PRECONDITION,
    errors.StaleGeneration: _Code.ABORTED,
    errors.ChunkTooLong: _Code.FAILED_PRECONDITION,
    errors.LengthExceeded: _Code.OUT_OF_RANGE,
    errors.WindowEvicted: _Code.OUT_OF_RANGE,
    errors.RollbackTooDeep: _Code.OUT_OF_RANGE,
    errors.BudgetExceeded: _Code.RESOURCE_EXHAUSTED,
    errors.QuotaExceeded: _Code.RESOURCE_EXHAUSTED,
    errors.CorruptSnapshot: _Code.INVALID_ARGUMENT,
    errors.UnsupportedSnapshot: _Code.FAILED_PRECONDITION,
    errors.ArenaFileError: _Code.FAILED_PRECONDITION,
    errors.ArenaFileBusy: _Code.FAILED_PRECONDITION,
    errors.CorruptArena: _Code.FAILED_PRECONDITION,
    errors.UnsupportedArena: _Code.FAILED_PRECONDITION,
    errors.Unauthenticated: _Code.UNAUTHENTICATED,
    errors.PermissionDenied: _Code.PERMISSION_DENIED,
    errors.Overloaded: _Code.UNAVAILABLE,
    errors.Draining: _Code.UNAVAILABLE,
    errors.DeadlineExpired: _Code.DEADLINE_EXCEEDED,
    errors.UnsupportedTier: _Code.FAILED_PRECONDITION,
    errors.ForkedProcess: _Code.FAILED_PRECONDITION,
    errors.ModelError: _Code.FAILED_PRECONDITION,
    errors.ModelNotFound: _Code.NOT_FOUND,
    errors.CorruptModel: _Code.FAILED_PRECONDITION,
    errors.UnsupportedModel: _Code.FAILED_PRECONDITION,
    errors.DownloadFailed: _Code.UNAVAILABLE,
    errors.ProjectionNotFound: _Code.NOT_FOUND,
    errors.ServerUnavailable: _Code.UNAVAILABLE,
    errors.ServerInternal: _Code.INTERNAL,
}

_ABOUT_FIELDS: Final = (
    errors.InvalidSpec,
    errors.InvalidShape,
    errors.InvalidRequest,
    errors.ValueRange,
    errors.InvalidLayer,
)


def known(error: Exception) -> errors.RondelError:
    """The error itself if it is ours; else a ServerInternal whose id finds the traceback in the log."""
    if isinstance(error, errors.RondelError):
        return error
    error_id = secrets.token_hex(8)
    log.error("unexpected error %s", error_id, exc_info=error)
    return errors.ServerInternal(f"the server failed; its log has it as {error_id}", error_id=error_id)


def code_of(error: errors.RondelError) -> grpc.StatusCode:
    """The status code of an error's class, or of the nearest class above it that the table has."""
    return next(CODES[cls] for cls in type(error).__mro__ if cls in CODES)


def to_status(error: errors.RondelError) -> status_pb2.Status:
    """The status of an error: code, text, ErrorInfo and what its kind calls for, in MAX_DETAILS bytes."""
    code: int = code_of(error).value[0]
    status = status_pb2.Status(code=code, message=_clip(error.message, _MAX_MESSAGE))
    facts = [*_named(error).items()][:_MAX_FACTS]
    info = error_details_pb2.ErrorInfo(
        reason=error.reason,
        domain=DOMAIN,
        metadata={name: _clip(str(value), _MAX_FACT) for name, value in facts},
    )
    for detail in (info, *_extra(error, status.message)):
        packed = status.details.add()
        packed.Pack(detail)
        if status.ByteSize() > MAX_DETAILS:
            del status.details[-1]
            break
    return status


def _named(error: errors.RondelError) -> dict[str, errors.Fact]:
    """The facts, with the field at fault first in errors that are about a field."""
    facts = dict(error.facts)
    if not isinstance(error, _ABOUT_FIELDS):
        return facts
    field = facts.pop("field", facts.get("array", ""))
    return {"field": field, **facts} if field else facts


def _extra(error: errors.RondelError, message: str) -> list[Message]:
    match error:
        case _ if isinstance(error, _ABOUT_FIELDS):
            return [_violation(str(_named(error).get("field", "")), message)]
        case errors.BudgetExceeded():
            return [_quota_failure("server", message)]
        case errors.QuotaExceeded():
            # A quota with a name is the tenant's own.
            failure = _quota_failure("tenant" if "quota" in error.facts else "server", message)
            return [failure, _retry_info(error.retry_after_ms)] if error.retry_after_ms else [failure]
        case errors.Overloaded():
            return [_retry_info(error.retry_after_ms)]
        case _:
            return []


def _quota_failure(subject: str, message: str) -> error_details_pb2.QuotaFailure:
    quota = error_details_pb2.QuotaFailure.Violation(subject=subject, description=message)
    return error_details_pb2.QuotaFailure(violations=[quota])


def _retry_info(milliseconds: int) -> error_details_pb2.RetryInfo:
    delay = Duration()
    delay.FromMilliseconds(milliseconds)
    return error_details_pb2.RetryInfo(retry_delay=delay)


def _violation(field: str, message: str) -> error_details_pb2.BadRequest:
    violation = error_details_pb2.BadRequest.FieldViolation(
        field=_clip(field, _MAX_FACT), description=message
    )
    return error_details_pb2.BadRequest(field_violations=[violation])


def _clip(text: str, limit: int) -> str:
    """The text without unprintable surrogates, cut to ``limit`` bytes of UTF-8 between characters."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= limit:
        return raw.decode("utf-8")
    return raw[: limit - 3].decode("utf-8", "ignore") + "…"
