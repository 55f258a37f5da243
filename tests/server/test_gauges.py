"""Numbers that are read when somebody asks are those of the server, whoever keeps it busy."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from held import Held
from rawclient import SPEC, Client, Tokens
from scrape import scrape
from transports import listening, tenant

from rondel.server import gauges
from rondel.server.app import Server
from rondel.server.config import ServerConfig
from rondel.v1 import attention_pb2 as pb
from rondel.v1.specs import spec_to_message

Connect = Callable[[str], Client]


@pytest.fixture
def config() -> ServerConfig:
    return ServerConfig(port=0, admin_port=0, budget_bytes=64 << 20, queue_bytes=10_000)


def label() -> str:
    """Of the tenant that a server takes us for: a certificate's name is in no configuration."""
    return "other" if tenant() else "default"


async def test_memory_and_streams_are_read_from_the_server_itself(
    server: Server, client: Client, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gauges, "_FRESH", 0.0)
    streams = [await client.open() for _ in range(5)]
    for stream in streams:
        await client.append(stream, 0, *tokens.kv(3))
    samples = await scrape(server)
    memory = server.arena.stats()
    for kind in ("budget", "reserved", "resident", "shared"):
        assert samples("rondel_arena_bytes", kind=kind) == getattr(memory, kind)
    states = [await client.get(stream) for stream in streams]
    for kind in ("reserved", "resident", "shared"):
        wanted = sum(getattr(state, f"bytes_{kind}") for state in states)
        assert samples("rondel_stream_bytes", kind=kind, tenant=label()) == wanted
    assert samples("rondel_streams", tenant=label()) == 5
    assert samples("rondel_queue_bytes", worker="attention") == 0
    for stream in streams:
        await client.close(stream)
    samples = await scrape(server)
    assert samples("rondel_streams", tenant=label()) == 0
    assert samples("rondel_stream_bytes", kind="resident", tenant=label()) == 0
    assert samples("rondel_arena_bytes", kind="reserved") == 0


async def test_a_scrape_does_not_wait_for_a_busy_worker(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gauges, "_FRESH", 0.0)
    monkeypatch.setattr(gauges, "_PATIENCE", 0.05)
    await client.open()
    while (await scrape(server))("rondel_streams", tenant=label()) < 1:
        pass
    async with Held(server):
        await asyncio.sleep(0.3)
        samples = await scrape(server)
        assert samples("rondel_streams", tenant=label()) == 1
        assert samples("rondel_gauges_age_seconds") > 0.2
    while (await scrape(server))("rondel_gauges_age_seconds") > 0.2:
        await asyncio.sleep(0.01)


async def test_expired_streams_are_counted(connect: Connect) -> None:
    config = ServerConfig(port=0, admin_port=0, budget_bytes=4 << 20, idle_lease_seconds=0.05)
    server = await Server.start(listening(config))
    client = connect(server.address)
    await client.open()
    await client.open()
    while (samples := await scrape(server))("rondel_streams_expired_total") < 2:
        await asyncio.sleep(0.02)
    assert samples("rondel_streams_expired_total") == 2
    await server.stop()


async def test_tenants_are_counted_apart(connect: Connect, tokens: Tokens, tmp_path: Path) -> None:
    file = tmp_path / "tenants.toml"
    names = ("red", "blue")
    file.write_text(
        "".join(f'[tenants.{name}]\ntokens = [{{ token = "the-token-of-{name}" }}]\n' for name in names)
        + "max_streams = 1\n"
    )
    config = ServerConfig(
        port=None, unix_path=str(tmp_path / "s"), admin_port=0, budget_bytes=8 << 20, tenants_file=str(file)
    )
    server = await Server.start(config)
    client = connect(server.address)

    async def opened(name: str) -> pb.OpenStreamResponse:
        metadata = [("authorization", f"Bearer the-token-of-{name}")]
        return await client.attention.OpenStream(
            pb.OpenStreamRequest(spec=spec_to_message(SPEC)), metadata=metadata
        )

    for name in ("red", "red", "blue"):
        await opened(name)
    for name in ("blue", "nobody"):  # whose quota is one stream, and who has no token
        with pytest.raises(grpc.aio.AioRpcError):
            await opened(name)
    samples = await scrape(server)
    assert [samples("rondel_streams", tenant=name) for name in names] == [2, 1]
    reserved = [samples("rondel_stream_bytes", tenant=name, kind="reserved") for name in names]
    assert reserved[0] == 2 * reserved[1] > 0
    assert samples.labels("rondel_tokens_stored_total", "tenant") == set(names)
    assert samples("rondel_refused_total", reason="quota_exceeded", tenant="blue") == 1
    assert samples("rondel_refused_total", reason="unauthenticated", tenant="default") == 1
    code = {"grpc_service": "rondel.v1.AttentionService", "grpc_code": "Unauthenticated"}
    assert samples("grpc_server_handled_total", grpc_type="unary", grpc_method="OpenStream", **code) == 1
    await server.stop()
