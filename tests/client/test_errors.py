"""Every error that a server can report is raised by the client as the class that it was there."""

from __future__ import annotations

import re

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from rondel.client.errors import from_call, item_error
from rondel.decoder.errors import (
    BY_REASON,
    DeadlineExpired,
    InvalidRequest,
    QuotaExceeded,
    RondelError,
    ServerInternal,
    ServerUnavailable,
)
from rondel.server.errors import DETAILS_KEY, code_of, to_status

FACTS = {"got": "a", "expected": 7, "limit": 8, "current": 9, "requested": 10, "available": 11, "layers": 12}


@pytest.mark.parametrize("reason", sorted(BY_REASON))
def test_every_reason_makes_the_round_trip(reason: str) -> None:
    sent = BY_REASON[reason]("what happened", **FACTS)
    status = to_status(sent)
    trailing = ((DETAILS_KEY, status.SerializeToString()), ("other", "x"))
    for got in (
        from_call(code_of(sent), status.message, trailing, target="here"),
        item_error(status),
    ):
        assert type(got) is type(sent)
        assert got.message == "what happened"
        assert {name: str(value) for name, value in got.facts.items()} == {
            name: str(value) for name, value in FACTS.items()
        }
        assert str(got) == "what happened"


def test_numbers_come_back_as_numbers() -> None:
    got = item_error(to_status(BY_REASON["CHUNK_TOO_LONG"]("m", limit=65)))
    assert getattr(got, "limit", None) == 65


@pytest.mark.parametrize(
    ("code", "details", "kind", "text"),
    [
        (grpc.StatusCode.UNAVAILABLE, "refused", ServerUnavailable, "here: refused"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", DeadlineExpired, "in time"),
        (grpc.StatusCode.CANCELLED, "", ServerUnavailable, "cancelled"),
        (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "Received message larger than max (9 vs. 5)",
            QuotaExceeded,
            "(9 vs. 5)",
        ),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "no", QuotaExceeded, "refused"),
        (grpc.StatusCode.UNIMPLEMENTED, "Method not found!", InvalidRequest, "no Rondel server"),
        (grpc.StatusCode.INTERNAL, "boom", ServerInternal, "INTERNAL: boom"),
        (None, None, ServerInternal, "no status"),
    ],
)
def test_bare_codes(
    code: grpc.StatusCode | None, details: str | None, kind: type[RondelError], text: str
) -> None:
    got = from_call(code, details, None, target="here")
    assert type(got) is kind
    assert re.search(re.escape(text), got.message)


def test_details_that_are_not_ours_fall_back_to_the_code() -> None:
    for value in (b"\xff\xff\xff", status_pb2.Status(code=14).SerializeToString()):
        got = from_call(grpc.StatusCode.UNAVAILABLE, "gone", ((DETAILS_KEY, value),), target="here")
        assert type(got) is ServerUnavailable


def test_reason_of_a_newer_server_is_kept() -> None:
    info = error_details_pb2.ErrorInfo(
        reason="BRAND_NEW", domain="rondel", metadata={"message": "m", "self": "s", "limit": "1"}
    )
    status = status_pb2.Status(code=9, message="something new")
    status.details.add().Pack(info)
    got = item_error(status)
    assert type(got) is RondelError
    assert (got.message, got.facts) == ("something new", {"reason": "BRAND_NEW", "limit": "1"})
