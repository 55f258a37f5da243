"""Clients on foreign gRPC stacks, in processes of their own, told by lines of JSON what to call."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import grpc
import pytest
from google import rpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2

from rondel.client.cli.launch import ServerProcess
from rondel.v1 import attention_pb2, generation_pb2

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
GRPCLIB: Final = ROOT / ".venv-interop/bin/python"
GENERATED: Final = ROOT / "build/interop"
STACKS: Final = ("node-protos", "node-reflection", "grpclib")

_SERVICES: Final = {
    service.name: service
    for file in (attention_pb2, generation_pb2, health_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
}


@dataclass(eq=False)
class Refused(Exception):
    """The call failed; what the foreign stack made of its status."""

    code: grpc.StatusCode
    message: str
    details: list[dict[str, Any]]

    def detail(self, name: str) -> dict[str, Any]:
        """The google.rpc detail of that name."""
        (found,) = (detail for detail in self.details if detail["@type"].endswith(f"/google.rpc.{name}"))
        return found

    @property
    def reason(self) -> str:
        assert self.detail("ErrorInfo")["domain"] == "rondel"
        return str(self.detail("ErrorInfo")["reason"])

    @property
    def facts(self) -> dict[str, str]:
        return dict(self.detail("ErrorInfo")["metadata"])


class Caller:
    """One foreign client. Methods are named ``Service/Method``, messages are those of this process."""

    def __init__(self, stack: str, target: str, **secrets: str) -> None:
        settings: dict[str, Any] = {"target": target, **secrets}
        environment = dict(os.environ)
        if stack == "grpclib":
            command = [str(GRPCLIB), str(HERE / "grpclib_caller.py")]
            environment["PYTHONPATH"] = str(GENERATED)
        else:
            command = ["node", str(HERE / "caller.mjs")]
            if stack == "node-protos":
                # The details of errors are not our contract: their protos are Google's.
                settings["roots"] = [str(ROOT / "proto"), str(Path(rpc.__path__[0]).parents[1])]
        self._process = subprocess.Popen(
            [*command, json.dumps(settings)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._method: MethodDescriptor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The end of its input ends it.
        try:
            _, words = self._process.communicate(timeout=20)
            assert kind is not None or self._process.returncode == 0, words
        finally:
            self._process.kill()
            self._process.communicate()

    def call(self, name: str, request: Message) -> Any:
        """The one reply to one request. Raises Refused."""
        (reply,) = self.stream(name, request)
        return reply

    def stream(self, name: str, *requests: Message) -> list[Any]:
        """All replies to all requests, which are sent without waiting. Raises Refused."""
        method = _method(name)
        answer = self._command(op="call", method=_path(method), requests=[_said(r) for r in requests])
        if answer["error"] is not None:
            raise _refused(answer["error"])
        return [_heard(method, reply) for reply in answer["replies"]]

    def start(self, name: str) -> None:
        """Begins a streaming call, which the following methods are about."""
        self._method = _method(name)
        self._command(op="start", method=_path(self._method))

    def send(self, request: Message) -> None:
        self._command(op="send", request=_said(request))

    def receive(self) -> Any:
        """The next reply, or None at the end of the call. Raises Refused."""
        answer = self._command(op="receive")
        if "reply" in answer:
            assert self._method is not None
            return _heard(self._method, answer["reply"])
        if answer["end"] is not None:
            raise _refused(answer["end"])
        return None

    def finish(self) -> None:
        """No more requests."""
        self._command(op="finish")

    def cancel(self) -> None:
        self._command(op="cancel")

    def _command(self, **command: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise AssertionError(self._last_words()) from None
        line = self._process.stdout.readline()
        assert line, self._last_words()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        return self._process.communicate(timeout=20)[1] or "it ended and said nothing"


Connect = Callable[..., Caller]
"""Makes callers that end with the test: ``connect(stack, target)``."""


@contextmanager
def draining(process: ServerProcess, caller: Caller) -> Iterator[None]:
    """The server drains while the block runs, and its connections stay: a call of ``caller`` is at work.

    Without that a stack may find the connection gone before it has told what came last.
    """
    caller.start("AttentionService/ImportStream")
    caller.send(attention_pb2.ImportStreamRequest(data=b"\x89RNDL"))
    caller.call(
        "AttentionService/GetServerInfo", attention_pb2.GetServerInfoRequest()
    )  # so the other has arrived
    with ThreadPoolExecutor() as pool:
        stopped = pool.submit(process.stop)
        try:
            yield
        finally:
            caller.finish()
        with pytest.raises(Refused) as refused:
            caller.receive()
        assert refused.value.reason == "CORRUPT_SNAPSHOT"
        assert stopped.result() == 0


def given(stack: str) -> str:
    """The stack, if it is installed; else the test fails: nothing here is skipped in silence."""
    needed = (GRPCLIB, GENERATED) if stack == "grpclib" else (HERE / "node_modules",)
    for path in needed:
        if not path.exists():
            pytest.fail(f"{path.relative_to(ROOT)} is missing: run `make test-interop`")
    if stack != "grpclib" and shutil.which("node") is None:
        pytest.fail("there is no Node.js: install version 18 or newer, with npm")
    return stack


def _method(name: str) -> MethodDescriptor:
    service, _, method = name.partition("/")
    return _SERVICES[service].methods_by_name[method]


def _path(method: MethodDescriptor) -> str:
    return f"{method.containing_service.full_name}/{method.name}"


def _said(message: Message) -> dict[str, Any]:
    return MessageToDict(message, preserving_proto_field_name=True)


def _heard(method: MethodDescriptor, reply: dict[str, Any]) -> Message:
    return ParseDict(reply, GetMessageClass(method.output_type)())


def _refused(error: dict[str, Any]) -> Refused:
    code = next(code for code in grpc.StatusCode if code.value[0] == error["code"])
    return Refused(code, error["message"], error["details"])
