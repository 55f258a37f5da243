"""A short run of `make fuzz`, and that it sees what it looks for."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import grpc
import grpc.aio
import pytest
import pytest_asyncio
import shots
import wire
from fuzz import Fuzz
from fuzz_run import victim
from protocomments import METHODS, documented_reasons
from shots import CONNECTION, WEIGHTS, Shot
from targets import SORTS

from rondel.server.app import Server
from rondel.server.config import ServerConfig
from rondel.v1 import attention_pb2 as pb


def test_every_method_is_aimed_at() -> None:
    assert {*METHODS, CONNECTION} == set(WEIGHTS)


def test_a_seed_and_a_number_say_all_of_a_call() -> None:
    drawn = []
    for seed in (7, 7, 8):
        aimed = [Shot.aimed(seed, number) for number in range(300)]
        for shot in aimed:
            shot.load()
        drawn.append([(shot.method, shot.sort, shot.manner, shot.requests) for shot in aimed])
    assert drawn[0] == drawn[1] != drawn[2]


async def test_a_server_bears_what_no_client_should_send(tmp_path: Path) -> None:
    with victim(tmp_path, idle_lease_seconds=2.0) as server:
        before = server.vitals()
        fuzz = Fuzz(server.address, 1, alive=lambda: server.alive)
        found = await fuzz.run(seconds=60.0, calls=330)
        assert found.faults == 0, found.told
        assert found.calls == 330
        assert set(found.endings) == set(WEIGHTS)
        reasons = {reason for endings in found.endings.values() for reason in endings}
        assert {"OK", "INVALID_REQUEST", "INVALID_SHAPE", "INVALID_SPEC", "CORRUPT_SNAPSHOT"} <= reasons
        after = await asyncio.to_thread(server.settled, before, 30.0)
        assert after.tasks <= before.tasks  # of a server that has just begun one more may be at work
        assert (after.streams, after.reserved) == (0, 0)
        assert server.stop() == 0
        assert server.complaints() == []


def test_what_a_method_fails_with_is_read_from_the_protos() -> None:
    step = documented_reasons("Step")
    assert {"PROJECTION_NOT_FOUND", "WINDOW_EVICTED", "CHUNK_TOO_LONG", "STREAM_CLOSED"} <= step
    assert not {"CORRUPT_SNAPSHOT", "INVALID_SPEC", "MODEL_NOT_FOUND"} & step
    assert "BUDGET_EXCEEDED" in documented_reasons("ImportStream")  # as OpenStream does
    always = {"INVALID_REQUEST", "OVERLOADED", "DRAINING", "DEADLINE_EXPIRED"}
    assert documented_reasons("ListModels") == always


class Mischief(grpc.GenericRpcHandler):
    """A server that passes calls on to another, and does something wrong with Attend."""

    def __init__(self, target: str, how: str) -> None:
        self._channel = grpc.aio.insecure_channel(target)
        self._how = how
        self.crashed = False
        self.over = asyncio.Event()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        method = str(details.method)
        if method.endswith("/ExportStream"):
            return grpc.unary_stream_rpc_method_handler(self._streamed)  # type: ignore[arg-type]

        async def passed_on(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
            if method.endswith("/Attend"):
                await self._mischief(request, context)
            try:
                reply: bytes = await self._channel.unary_unary(method)(request)
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details() or "", tuple(error.trailing_metadata()))
            return reply

        return grpc.unary_unary_rpc_method_handler(passed_on)  # type: ignore[arg-type]

    async def _streamed(self, request: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        async for reply in self._channel.unary_stream("/rondel.v1.AttentionService/ExportStream")(request):
            yield reply

    async def _mischief(self, request: bytes, context: grpc.aio.ServicerContext) -> None:
        match self._how:
            case "silent":
                await self.over.wait()
            case "untold":
                await context.abort(grpc.StatusCode.INTERNAL, "boom")
            case "gone":
                self.crashed = True
                await context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
            case "changing":
                # The stream that is named first loses a token, whatever the request is.
                handle = request[4:28].decode(errors="replace")
                truncate = pb.TruncateStreamRequest(stream=pb.StreamRef(handle=handle), length=9)
                path = "/rondel.v1.AttentionService/TruncateStream"
                with suppress(grpc.aio.AioRpcError):
                    await self._channel.unary_unary(path)(truncate.SerializeToString())

    async def close(self) -> None:
        self.over.set()
        await self._channel.close()


@pytest_asyncio.fixture
async def mischief(request: pytest.FixtureRequest) -> AsyncIterator[Fuzz]:
    behind = await Server.start(ServerConfig(port=0, budget_bytes=64 << 20))
    handler = Mischief(behind.address, request.param)
    front = grpc.aio.server()
    front.add_generic_rpc_handlers([handler])
    port = front.add_insecure_port("127.0.0.1:0")
    await front.start()
    methods = frozenset({"Attend"})
    target = f"127.0.0.1:{port}"
    yield Fuzz(target, 3, attackers=1, alive=lambda: not handler.crashed, methods=methods)
    await handler.close()
    await front.stop(1.0)
    await behind.stop(drain_seconds=0.5)


@pytest.fixture(autouse=True)
def only_short_streams(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "mischief" in request.fixturenames:
        monkeypatch.setattr(shots, "SORTS", SORTS[2:3])
        monkeypatch.setattr(wire, "PATIENCE", 0.5)


@pytest.mark.parametrize(
    ("mischief", "kind"),
    [("silent", "hangs"), ("untold", "undocumented"), ("gone", "crashes"), ("changing", "changed")],
    indirect=["mischief"],
)
async def test_what_it_looks_for_is_found(mischief: Fuzz, kind: str) -> None:
    found = await mischief.run(seconds=60.0, calls=60)
    assert found.calls >= 1
    assert getattr(found, kind) >= 1, found
    assert found.faults == getattr(found, kind), found.told
    assert "--seed 3 --call " in found.told[0]
