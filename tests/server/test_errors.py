"""From errors to statuses."""

import ast
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import grpc
import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from rondel.decoder import errors
from rondel.server.errors import CODES, MAX_DETAILS, code_of, known, to_status

D = TypeVar("D", bound=Message)


def tree(cls: type[errors.RondelError] = errors.RondelError) -> Iterator[type[errors.RondelError]]:
    yield cls
    for child in cls.__subclasses__():
        yield from tree(child)


def detail(status: status_pb2.Status, cls: type[D]) -> D:
    for packed in status.details:
        found = cls()
        if packed.Unpack(found):
            return found
    raise AssertionError(f"no {cls.__name__} in {status}")


def test_every_class_is_in_the_table() -> None:
    """The message names those that were forgotten; until then they are sent as their parents are."""
    ours = [cls for cls in tree() if cls.__module__ == errors.__name__]
    assert [cls.__name__ for cls in ours if cls not in CODES] == []


def test_a_class_that_the_table_lacks_is_treated_as_its_parent() -> None:
    class Newer(errors.StreamNotFound):
        reason = "NEWER"

    class Newest(errors.RondelError):
        reason = "NEWEST"

    assert code_of(Newer("x")) == grpc.StatusCode.NOT_FOUND
    assert code_of(Newest("x")) == grpc.StatusCode.INTERNAL
    info = detail(to_status(Newest("x")), error_details_pb2.ErrorInfo)
    assert info.reason == "NEWEST"


ROOT = Path(__file__).parent.parent.parent
SOURCES = [*ROOT.glob("server/*.py"), *ROOT.glob("proto/rondel/v1/*.py"), *ROOT.glob("decoder/**/*.py")]


@pytest.mark.parametrize("name", ["InvalidRequest", "InvalidSpec", "InvalidShape", "InvalidLayer"])
def test_errors_about_a_field_name_it_wherever_they_are_raised(name: str) -> None:
    silent = []
    raised = 0
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == name:
                raised += 1
                if "field" not in {keyword.arg for keyword in node.keywords}:
                    silent.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert raised
    assert silent == []


@pytest.mark.parametrize(
    ("error", "field"),
    [
        (errors.InvalidSpec("no", field="window"), "window"),
        (errors.InvalidShape("no", field="k", got="a", expected="b"), "k"),
        (errors.InvalidRequest("no", field="request_id"), "request_id"),
        (errors.ValueRange("no", array="q"), "q"),
        (errors.InvalidLayer("no", field="layer", layers=3), "layer"),
    ],
)
def test_a_bad_field_is_named(error: errors.RondelError, field: str) -> None:
    status = to_status(error)
    (violation,) = detail(status, error_details_pb2.BadRequest).field_violations
    assert (violation.field, violation.description) == (field, "no")
    assert detail(status, error_details_pb2.ErrorInfo).metadata["field"] == field


def test_reason_and_facts_are_sent() -> None:
    status = to_status(errors.SequenceGap("got 9, expected 4", expected=4))
    info = detail(status, error_details_pb2.ErrorInfo)
    assert (info.reason, info.domain, dict(info.metadata)) == ("SEQUENCE_GAP", "rondel", {"expected": "4"})
    assert status.message == "got 9, expected 4"
    back = errors.from_reason(info.reason, status.message, dict(info.metadata))
    assert isinstance(back, errors.SequenceGap)
    assert back.expected == 4


def test_overload_says_when_to_come_back() -> None:
    status = to_status(errors.Overloaded("full", retry_after_ms=1250))
    assert detail(status, error_details_pb2.RetryInfo).retry_delay.ToMilliseconds() == 1250


def test_a_full_arena_is_a_quota_failure() -> None:
    status = to_status(errors.BudgetExceeded("no room", requested=10, available=5))
    assert detail(status, error_details_pb2.QuotaFailure).violations[0].description == "no room"


@pytest.mark.parametrize("text", ["x" * 100_000, "é" * 50_000, "\ud800" * 10_000, "🦆" * 10_000])
def test_long_texts_do_not_drown_the_error(text: str) -> None:
    facts = {f"fact{n}": text for n in range(50)}
    status = to_status(errors.InvalidShape(text, field=text, got=text, expected=text, **facts))
    assert status.ByteSize() <= MAX_DETAILS
    assert detail(status, error_details_pb2.ErrorInfo).reason == "INVALID_SHAPE"


def test_unknown_errors_stay_inside(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "rondel.server"):
        try:
            raise RuntimeError("the password is swordfish")
        except RuntimeError as error:
            ours = known(error)
    status = to_status(ours)
    assert code_of(ours) == grpc.StatusCode.INTERNAL
    assert b"swordfish" not in status.SerializeToString()
    info = detail(status, error_details_pb2.ErrorInfo)
    assert info.metadata["error_id"] in caplog.text
    assert "swordfish" in caplog.text
    assert "Traceback" in caplog.text
