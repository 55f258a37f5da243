"""Watching calls changes nothing about them."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from rawclient import Client, Failure, Tokens, item
from rawdecode import Decode, part
from transports import listening

from rondel.server.account import Account
from rondel.server.app import Server
from rondel.server.config import ServerConfig
from rondel.server.insight import _note_end
from rondel.v1 import attention_pb2 as pb

Connect = Callable[[str], Client]


class Broken:
    """A watcher, and a listener, that fails at everything."""

    def __getattr__(self, name: str) -> Any:
        def fail(*_: object) -> None:
            raise ZeroDivisionError(name)

        return fail

    def close(self, seconds: float) -> None:
        """The end of a server is no call."""


class BrokenLater(Broken):
    def begin(self, *_: object) -> Broken:
        return Broken()


@pytest.mark.parametrize("watcher", [Broken(), BrokenLater()])
async def test_a_watcher_that_fails_harms_no_call(
    connect: Connect, tokens: Tokens, caplog: pytest.LogCaptureFixture, watcher: Any
) -> None:
    server = await Server.start(listening(ServerConfig(port=0, budget_bytes=4 << 20)), tracing=watcher)
    client = connect(server.address)
    stream = await client.open()
    (result,) = await client.step(0, item(stream, 0, *tokens.qkv(1)))
    assert result.layer_length == 1
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.get(pb.StreamRef(handle="nobody"))
    assert Failure.of_call(caught.value).reason == "STREAM_NOT_FOUND"
    exported = client.attention.ExportStream(pb.ExportStreamRequest(stream=stream))
    requests = [pb.ImportStreamRequest(data=piece.data) async for piece in exported]
    assert (await client.attention.ImportStream(iter(requests))).opened.handle
    async with Decode(client) as call:
        await call.open(1)
        (result,) = await call.step(0, part(1, 0, *tokens.qkv(2)))
        assert result.layer_length == 2
    await server.stop()
    assert "watching a call has failed" in caplog.text


class Context:
    def __init__(self, remaining: float | None) -> None:
        self.time_remaining = lambda: remaining


@pytest.mark.parametrize(
    ("remaining", "code"),
    [
        (None, grpc.StatusCode.CANCELLED),
        (30.0, grpc.StatusCode.CANCELLED),
        (0.0, grpc.StatusCode.DEADLINE_EXCEEDED),
        (0.01, grpc.StatusCode.DEADLINE_EXCEEDED),
    ],
)
def test_a_caller_that_has_left_was_late_if_its_deadline_is_here(
    remaining: float | None, code: grpc.StatusCode
) -> None:
    account = Account("service", "method", "peer", 0.0, reason="A_REASON")
    _note_end(account, Context(remaining), asyncio.CancelledError())
    assert (account.code, account.reason) == (code, "")
