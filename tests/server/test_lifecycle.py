"""Starting, listening, health, overload, clients that vanish, stopping."""

import asyncio
import socket
import stat
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from rawclient import Client, Failure, Tokens, item
from transports import channel_to, listening

from rondel.decoder.errors import InvalidSpec
from rondel.server.app import SERVICES, Server
from rondel.server.config import ServerConfig

Connect = Callable[[str], Client]
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def health(client: Client) -> health_pb2_grpc.HealthStub:
    return health_pb2_grpc.HealthStub(client.channel)


async def status_of(client: Client, service: str = "") -> int:
    return (await health(client).Check(health_pb2.HealthCheckRequest(service=service))).status


@pytest.mark.every_transport
async def test_health_without_a_model(client: Client) -> None:
    attention, generation = SERVICES
    assert await status_of(client) == await status_of(client, attention) == SERVING
    assert await status_of(client, generation) == NOT_SERVING


async def test_health_with_a_model(connect: Connect, model_path: Path) -> None:
    config = ServerConfig(port=0, budget_bytes=4 << 20, model=str(model_path))
    server = await Server.start(listening(config))
    client = connect(server.address)
    for service in ("", *SERVICES):
        assert await status_of(client, service) == SERVING
    await server.stop()


async def test_health_of_an_unknown_service(client: Client) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await status_of(client, "rondel.v9.Nothing")
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    watch = health(client).Watch(health_pb2.HealthCheckRequest(service="rondel.v9.Nothing"))
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    watch.cancel()


async def test_health_fails_when_the_worker_is_gone(client: Client, server: Server) -> None:
    watch = health(client).Watch(health_pb2.HealthCheckRequest(service=SERVICES[0]))
    assert (await watch.read()).status == SERVING
    await server.scheduler.stop()
    assert (await asyncio.wait_for(watch.read(), 5)).status == NOT_SERVING
    assert await status_of(client) == NOT_SERVING
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.info()
    assert Failure.of_call(caught.value).code == grpc.StatusCode.UNAVAILABLE
    watch.cancel()


@pytest.mark.every_transport
async def test_reflection_lists_the_services(client: Client) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(client.channel)
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="rondel.v1.StepRequest"),
    ]
    replies = [reply async for reply in stub.ServerReflectionInfo(iter(requests))]
    names = {service.name for service in replies[0].list_services_response.service}
    assert {*SERVICES, "grpc.health.v1.Health"} <= names
    assert replies[1].file_descriptor_response.file_descriptor_proto


@pytest.mark.parametrize(
    ("case", "field", "words"),
    [
        ("port", "port", "port {port}: Address already in use"),
        ("host", "host", "Cannot assign requested address"),
        ("name", "host", "cannot listen on no.such.host.invalid port 0"),
        ("file", "unix_path", "a file that is no socket is in the way"),
        ("folder", "unix_path", "a file that is no socket is in the way"),
        ("nowhere", "unix_path", "is no directory"),
    ],
)
async def test_what_is_in_the_way_is_told(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    case: str,
    field: str,
    words: str,
) -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    (tmp_path / "file").write_text("precious")
    (tmp_path / "folder").mkdir()
    options: dict[str, dict[str, object]] = {
        "port": {"port": port},
        "host": {"port": 0, "host": "203.0.113.7", "allow_insecure_bind": True},
        "name": {"port": 0, "host": "no.such.host.invalid", "allow_insecure_bind": True},
        "file": {"port": None, "unix_path": str(tmp_path / "file")},
        "folder": {"port": None, "unix_path": str(tmp_path / "folder")},
        "nowhere": {"port": None, "unix_path": str(tmp_path / "no" / "where")},
    }
    config = ServerConfig(budget_bytes=4 << 20, **options[case])  # type: ignore[arg-type]
    with taken, caplog.at_level("INFO"), pytest.raises(InvalidSpec) as caught:
        await Server.start(config)
    assert words.format(port=port) in caught.value.message
    assert caught.value.field == field
    assert "GRPC_VERBOSITY" not in caught.value.message
    assert "stopped" not in caplog.text
    assert (tmp_path / "file").read_text() == "precious"


async def test_a_unix_socket_is_for_its_owner(tmp_path: Path, connect: Connect, tokens: Tokens) -> None:
    path = tmp_path / "rondel.sock"
    config = ServerConfig(port=None, unix_path=str(path), budget_bytes=16 << 20)
    server = await Server.start(config)
    assert server.addresses == (f"unix:{path}",)
    assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
    client = connect(server.address)
    stream = await client.open()
    (result,) = await client.step(0, item(stream, 0, *tokens.qkv(1)))
    assert result.status.code == 0
    with pytest.raises(InvalidSpec, match="another server listens"):
        await Server.start(config)
    assert (await client.get(stream)).layer_lengths[0] == 1
    await server.stop()
    again = await Server.start(config)  # what is left of a dead server's socket is no hindrance
    await again.stop()


# Who has a certificate is a tenant of its own, and who comes by the socket is nobody's.
@pytest.mark.only_transport("tcp", "tls", "unix")
async def test_both_kinds_of_address_lead_to_the_same_streams(tmp_path: Path, connect: Connect) -> None:
    config = ServerConfig(port=0, unix_path=str(tmp_path / "s"), budget_bytes=16 << 20)
    server = await Server.start(listening(config))
    tcp, unix = (connect(address) for address in server.addresses)
    stream = await tcp.open()
    assert (await unix.get(stream)).committed_length == 0
    await server.stop()


async def test_stopping_twice_is_harmless_and_frees_everything(server: Server, client: Client) -> None:
    await client.open()
    await asyncio.gather(server.stop(drain_seconds=1), server.stop(drain_seconds=1))
    assert server.arena.stats().reserved == 0


@pytest.mark.alone
async def test_idle_connections_do_not_starve_others(server: Server, connect: Connect) -> None:
    client = connect(server.address)
    watches = [health(client).Watch(health_pb2.HealthCheckRequest()) for _ in range(200)]
    for watch in watches:
        await watch.read()
    began = time.monotonic()
    await client.info()
    assert time.monotonic() - began < 1.0
    for watch in watches:
        watch.cancel()


@pytest.mark.slow
async def test_frequent_pings_on_an_idle_connection_are_tolerated(server: Server) -> None:
    """A client that pings every 10 s is not sent away: the third ping too many would end its connection."""
    options = [
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    async with channel_to(server.address, options=options) as channel:
        client = Client(channel)
        await client.info()
        state = channel.get_state()
        assert state == grpc.ChannelConnectivity.READY
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(channel.wait_for_state_change(state), 65)
        assert await status_of(client) == SERVING
