"""Calls a gRPC server through grpclib, another HTTP/2 and gRPC: commands as caller.mjs takes them.

Runs where there is neither grpcio nor Rondel, on code that grpclib's own plugin generated from proto/.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import ssl
import sys
from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict
from google.rpc import error_details_pb2  # noqa: F401 - what the details of errors are decoded with
from grpclib.client import Channel, StreamStreamMethod, StreamUnaryMethod
from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError
from grpclib.health.v1.health_grpc import HealthStub

from rondel.v1.attention_grpc import AttentionServiceStub
from rondel.v1.generation_grpc import GenerationServiceStub


def connected(target: str, ca: str = "", cert: str = "", key: str = "", **_: Any) -> Channel:
    context = None
    if ca:
        context = ssl.create_default_context(cafile=ca)
        context.set_alpn_protocols(["h2"])
        if cert:
            context.load_cert_chain(cert, key)
    if target.startswith("unix:"):
        return Channel(path=target.removeprefix("unix:"))
    host, _, port = target.rpartition(":")
    return Channel(host, int(port), ssl=context)


class Caller:
    def __init__(self, settings: dict[str, Any]) -> None:
        self.channel = connected(**settings)
        self._metadata = {"authorization": f"Bearer {settings['token']}"} if settings.get("token") else {}
        self._stubs = {
            "rondel.v1.AttentionService": AttentionServiceStub(self.channel),
            "rondel.v1.GenerationService": GenerationServiceStub(self.channel),
            "grpc.health.v1.Health": HealthStub(self.channel),
        }
        self._held: Any = None

    async def command(self, op: str, **parts: Any) -> dict[str, Any]:
        answer: dict[str, Any] = await getattr(self, f"_{op}")(**parts)
        return answer

    async def _call(self, method: str, requests: list[dict[str, Any]]) -> dict[str, Any]:
        await self._start(method)
        replies: list[dict[str, Any]] = []
        try:
            for request in requests:
                await self._send(request)
            await self._finish()
        except GRPCError as error:  # refused before everything was sent
            return {"replies": replies, "error": failure(error)}
        while "reply" in (event := await self._receive()):
            replies.append(event["reply"])
        return {"replies": replies, "error": event["end"]}

    async def _start(self, method: str) -> dict[str, Any]:
        service, _, name = method.partition("/")
        self._method = getattr(self._stubs[service], name)
        self._many = isinstance(self._method, StreamUnaryMethod | StreamStreamMethod)
        self._held = self._method.open(metadata=self._metadata)
        await self._held.__aenter__()
        await self._held.send_request()
        self._arrived: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        # As they come: once the connection is gone grpclib gives out nothing that had arrived before.
        self._reading = asyncio.create_task(self._read(self._held, self._arrived))
        return {}

    async def _send(self, request: dict[str, Any]) -> dict[str, Any]:
        # Where a method takes one request grpclib wants the end of sending said with it.
        await self._held.send_message(ParseDict(request, self._method.request_type()), end=not self._many)
        return {}

    async def _finish(self) -> dict[str, Any]:
        if self._many:
            await self._held.end()
        return {}

    async def _receive(self) -> dict[str, Any]:
        if (event := await self._arrived.get()) is None:
            await self._reading  # raises what went wrong
            raise EOFError("the call has ended, and its end was told")
        return event

    async def _read(self, stream: Any, arrived: asyncio.Queue[dict[str, Any] | None]) -> None:
        try:
            while (message := await stream.recv_message()) is not None:
                await arrived.put({"reply": MessageToDict(message, preserving_proto_field_name=True)})
            await stream.recv_trailing_metadata()
            await stream.__aexit__(None, None, None)
            await arrived.put({"end": None})
        except GRPCError as error:
            await arrived.put({"end": failure(error)})
        except StreamTerminatedError as error:  # cancelled, or the connection is gone
            await arrived.put(
                {"end": {"code": Status.UNAVAILABLE.value, "message": str(error), "details": []}}
            )
        finally:
            await arrived.put(None)

    async def _cancel(self) -> dict[str, Any]:
        await self._held.cancel()
        return {}


def failure(error: GRPCError) -> dict[str, Any]:
    details = [
        {
            "@type": f"type.googleapis.com/{detail.DESCRIPTOR.full_name}",
            **MessageToDict(detail, preserving_proto_field_name=True),
        }
        for detail in error.details or ()
    ]
    return {"code": error.status.value, "message": error.message, "details": details}


async def main() -> None:
    caller = Caller(json.loads(sys.argv[1]))
    try:
        while line := await asyncio.to_thread(sys.stdin.readline):
            sys.stdout.write(json.dumps(await caller.command(**json.loads(line))) + "\n")
            sys.stdout.flush()
    finally:
        caller.channel.close()


if __name__ == "__main__":
    for absent in ("grpc", "rondel.decoder"):
        try:
            importlib.import_module(absent)
        except ImportError:
            continue
        raise SystemExit(f"{absent} is here: this would not be another stack")
    asyncio.run(main())
