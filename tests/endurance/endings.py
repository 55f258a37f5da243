"""How a call of a fuzzer ended, and whether it may have ended so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2, status_pb2
from protocomments import METHODS, all_errors, documented_reasons
from shots import Shot

from rondel.server.errors import CODES
from rondel.v1 import attention_pb2 as pb

_KNOWN: Final = all_errors()
_DOCUMENTED: Final = {name: documented_reasons(name) for name in METHODS}
_KINDS: Final = {
    "open": "OpenStream",
    "attach": "AttachStream",
    "step": "Step",
    "append": "AppendToken",
    "attend": "Attend",
    "truncate": "TruncateStream",
    "seal": "SealStream",
    "close": "CloseStream",
}
"""Operations of Decode, and the methods that they are as."""
OUR_DOING: Final = {
    ("idle", grpc.StatusCode.DEADLINE_EXCEEDED),
    ("half", grpc.StatusCode.CANCELLED),
}
"""How calls end that we leave in the middle."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a call ended."""

    reason: str
    """``OK``, the reason of the error, or the name of a code without one."""
    accepted: bool
    """Whether anything may have been carried out."""
    undocumented: str | None = None
    hung: bool = False
    made: tuple[str, ...] = ()
    """Handles of streams that it has made."""

    def after(self, replies: Ending) -> Ending:
        """This ending of a call that had replies before."""
        return replace(
            self,
            accepted=self.accepted or replies.accepted,
            undocumented=self.undocumented or replies.undocumented,
            made=replies.made,
        )


def refused(shot: Shot, error: Any) -> Ending:
    """An error of the call: one that the contract names, or the consequence of what we have done."""
    code, details = error.code(), error.details() or ""
    trailers = dict(error.trailing_metadata() or ())
    raw = trailers.get("grpc-status-details-bin")
    # Of the requests before the one at fault some may have been carried out.
    some = shot.method == "Decode" and len(shot.requests) > 1
    if (shot.manner, code) in OUR_DOING:
        return Ending(code.name, True)
    if raw is None:
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return Ending(code.name, True, hung=True)
        # gRPC's own answer to a message above the limit, which the contract names.
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
            return Ending(code.name, False)
        return Ending(code.name, True, f"{code.name} without details: {details[:200]}")
    status = status_pb2.Status.FromString(raw)
    if status.code != code.value[0] or status.message != details:
        return Ending(code.name, False, f"{code.name} {details!r} with details of {status.code}")
    reason, wrong = reason_of(shot.method, status)
    return Ending(reason, some, wrong)


def reason_of(method: str, status: status_pb2.Status) -> tuple[str, str | None]:
    """The reason of an error, and why a method may not fail with it, or None."""
    info = error_details_pb2.ErrorInfo()
    if not status.details or not status.details[0].Unpack(info) or info.domain != "rondel":
        return "NO_REASON", f"code {status.code} without ErrorInfo: {status.message[:200]}"
    if info.reason not in _KNOWN:
        return info.reason, f"{info.reason} is the reason of no error"
    code: int = next(CODES[cls] for cls in _KNOWN[info.reason].__mro__ if cls in CODES).value[0]
    if status.code != code:
        return info.reason, f"{info.reason} has code {status.code}, the table says {code}"
    if info.reason not in _DOCUMENTED[method]:
        return info.reason, f"{info.reason} is not said to be an error of {method}: {status.message}"
    return info.reason, None


def answered(shot: Shot, replies: Sequence[bytes]) -> Ending:
    """Replies: messages of the contract, errors of items and operations among them."""
    method = METHODS[shot.method]
    made: list[str] = []
    reasons: list[str] = []
    kinds = _kinds_sent(shot) if shot.method == "Decode" else {}
    accepted = False
    for raw in replies:
        try:
            reply: Any = GetMessageClass(method.output_type).FromString(raw)
        except DecodeError as error:
            return Ending("OK", True, f"the reply is no {method.output_type.name}: {error}")
        for name, status, handle in _parts(shot.method, reply, kinds):
            reason, wrong = ("OK", None) if not status.code else reason_of(name, status)
            if wrong is not None:
                return Ending(reason, True, wrong)
            reasons.append(reason)
            accepted |= reason == "OK" or _carried_out(status)
            if handle:
                made.append(handle)
    return Ending(reasons[0] if reasons and not accepted else "OK", accepted, made=tuple(made))


def _carried_out(status: status_pb2.Status) -> bool:
    """Whether an error only stands for a result that was larger than the caller takes."""
    info = error_details_pb2.ErrorInfo()
    status.details[0].Unpack(info)
    return info.metadata.get("field") == "max_response_bytes"


def _parts(method: str, reply: Any, kinds: dict[int, str]) -> Iterator[tuple[str, status_pb2.Status, str]]:
    """Of each part of a reply: the method that it is as, its status, the handle of a stream that was made."""
    match reply:
        case pb.StepResponse():
            for result in reply.results:
                yield "Step", result.status, ""
        case pb.DecodeResponse():
            for result in reply.results:
                yield kinds.get(result.op_id, method), result.status, result.open.handle
                yield from _parts(method, result.step, kinds)
        case pb.OpenStreamResponse():
            yield method, status_pb2.Status(), reply.handle
        case pb.ForkStreamResponse():
            yield method, status_pb2.Status(), reply.stream.handle
        case pb.ImportStreamResponse():
            yield method, status_pb2.Status(), reply.opened.handle
        case _:
            yield method, status_pb2.Status(), ""


def _kinds_sent(shot: Shot) -> dict[int, str]:
    """The methods that the operations of a Decode call are as, by op_id, as far as they can be read: of the
    first with that number, as the message of a second one is refused whole."""
    kinds: dict[int, str] = {}
    for raw in shot.requests:
        try:
            operations = pb.DecodeRequest.FromString(raw).operations
        except DecodeError:
            break
        for operation in operations:
            kinds.setdefault(operation.op_id, _KINDS.get(operation.WhichOneof("operation") or "", "Decode"))
    return kinds
