"""The admin port: who may ask, what it answers, and that it answers when the rest does not."""

import asyncio
import json
import socket
import time
from collections.abc import Callable

import grpc
import pytest
from grpc_channelz.v1 import channelz_pb2, channelz_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from held import Held
from rawclient import Client
from scrape import page
from transports import listening

from rondel.decoder.errors import InvalidSpec
from rondel.server import admin
from rondel.server.app import Server
from rondel.server.config import ServerConfig
from rondel.server.health import LIVENESS

Connect = Callable[[str], Client]
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def config() -> ServerConfig:
    return ServerConfig(port=0, admin_port=0, budget_bytes=16 << 20)


async def test_probes_tell_ready_from_alive(server: Server, client: Client) -> None:
    health = health_pb2_grpc.HealthStub(client.channel)

    async def told() -> tuple[int, int]:
        asked = [health.Check(health_pb2.HealthCheckRequest(service=name)) for name in ("", LIVENESS)]
        return (await asked[0]).status, (await asked[1]).status

    assert [(await page(server, path))[0] for path in ("/readyz", "/healthz")] == [200, 200]
    assert await told() == (SERVING, SERVING)
    server.withdraw()
    assert [(await page(server, path))[0] for path in ("/readyz", "/healthz")] == [503, 200]
    assert await told() == (NOT_SERVING, SERVING)
    assert (await client.info()).version  # and all is still served


async def test_a_server_without_its_worker_must_be_restarted(server: Server, client: Client) -> None:
    watch = health_pb2_grpc.HealthStub(client.channel).Watch(health_pb2.HealthCheckRequest(service=LIVENESS))
    assert (await watch.read()).status == SERVING
    await server.scheduler.stop()
    assert (await asyncio.wait_for(watch.read(), 5)).status == NOT_SERVING
    assert [(await page(server, path))[0] for path in ("/readyz", "/healthz")] == [503, 503]
    watch.cancel()


async def test_an_event_loop_that_hangs_is_not_alive(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "_ANSWER_SECONDS", 0.1)
    asked = asyncio.ensure_future(page(server, "/healthz"))
    threads = asyncio.ensure_future(page(server, "/debug/threads"))
    await asyncio.sleep(0)
    time.sleep(0.5)
    status, text = await asked
    assert (status, text) == (503, "the event loop has not answered for 0.1 s\n")
    assert "test_an_event_loop_that_hangs_is_not_alive" in (await threads)[1]
    assert (await page(server, "/healthz"))[0] == 200


async def test_where_threads_and_tasks_are(server: Server, client: Client) -> None:
    async with Held(server):
        asked = [asyncio.ensure_future(client.info()) for _ in range(3)]
        while server._door.inside < 3:
            await asyncio.sleep(0.002)
        _, threads = await page(server, "/debug/threads")
        assert "thread rondel-attention" in threads
        assert "self.leave.wait" in threads
        _, tasks = await page(server, "/debug/tasks")
        waiting = [line for line in tasks.splitlines() if "Server._expire" in line]
        assert len(waiting) == 1
        assert waiting[0].split()[0] == "1"
    await asyncio.gather(*asked)


async def test_memory_can_be_trimmed(server: Server) -> None:
    status, text = await page(server, "/debug/trim", method="POST")
    assert status == 200
    told = json.loads(text)
    assert 0 < told["resident_after"] <= told["resident_before"] * 1.2
    assert (await page(server, "/debug/trim"))[0] == 404  # a page that a link can open changes nothing


async def test_pages_are_listed_and_others_are_not_found(server: Server) -> None:
    status, text = await page(server, "/")
    assert status == 200
    assert "GET /metrics\n" in text
    assert (await page(server, "/nothing"))[0] == 404
    assert (await page(server, "/metrics", method="POST"))[0] == 404


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "192.0.2.1", ""])
async def test_names_that_others_have_pointed_here_are_refused(server: Server, host: str) -> None:
    status, text = await page(server, "/metrics", host=host)
    assert status == 403
    assert "rondel" not in text


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:9", "[::1]:9"])
async def test_names_of_this_machine_are_not(server: Server, host: str) -> None:
    assert (await page(server, "/healthz", host=host))[0] == 200


async def test_clients_that_say_nothing_keep_nobody_waiting(server: Server) -> None:
    assert server.observatory.admin_address is not None
    host, _, port = server.observatory.admin_address.rpartition(":")
    idle = [socket.create_connection((host, int(port))) for _ in range(20)]
    assert (await page(server, "/healthz"))[0] == 200
    for each in idle:
        each.close()


@pytest.mark.parametrize("field", ["admin_port", "channelz_port"])
async def test_ports_that_are_taken_are_told(field: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = {field: taken.getsockname()[1]}
        with pytest.raises(InvalidSpec, match="cannot listen on") as caught:
            await Server.start(ServerConfig(port=0, budget_bytes=4 << 20, **ports))
    assert caught.value.field == field


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.org"])
def test_only_a_flag_opens_it_to_others(host: str) -> None:
    with pytest.raises(InvalidSpec, match="allow_public_admin") as caught:
        ServerConfig(admin_host=host)
    assert caught.value.field == "admin_host"
    assert ServerConfig(admin_host=host, allow_public_admin=True).admin_host == host


async def test_an_open_admin_port_answers_to_any_name() -> None:
    config = ServerConfig(
        port=0, admin_port=0, budget_bytes=4 << 20, admin_host="0.0.0.0", allow_public_admin=True
    )
    server = await Server.start(config)
    assert (await page(server, "/healthz", host="rondel-0.rondel"))[0] == 200
    await server.stop()


async def test_it_is_open_before_the_server_is_ready_and_closed_with_it() -> None:
    server = Server(ServerConfig(port=0, admin_port=0, budget_bytes=4 << 20))
    async with Held(server):
        beginning = asyncio.create_task(server.begin())
        while server.observatory.admin_address is None:
            await asyncio.sleep(0.002)
        assert (await page(server, "/readyz"))[0] == 503
        assert (await page(server, "/healthz"))[0] == 200
        assert not beginning.done()
    await beginning
    assert (await page(server, "/readyz"))[0] == 200
    await server.stop()
    with pytest.raises(OSError, match="refused"):
        await page(server, "/healthz")


async def test_channelz_tells_of_connections(connect: Connect) -> None:
    server = await Server.start(listening(ServerConfig(port=0, channelz_port=0, budget_bytes=4 << 20)))
    client = connect(server.address)
    await client.info()
    assert server.observatory.channelz_address is not None
    async with grpc.aio.insecure_channel(server.observatory.channelz_address) as channel:
        stub = channelz_pb2_grpc.ChannelzStub(channel)
        servers = (await stub.GetServers(channelz_pb2.GetServersRequest())).server
        assert max(each.data.calls_started for each in servers) >= 1
        with pytest.raises(grpc.aio.AioRpcError) as caught:  # streams are not served there, nor is it here
            await Client(channel).info()
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channelz_pb2_grpc.ChannelzStub(client.channel).GetServers(channelz_pb2.GetServersRequest())
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
    await server.stop()


async def test_reflection_can_be_turned_off(connect: Connect) -> None:
    server = await Server.start(listening(ServerConfig(port=0, budget_bytes=4 << 20, reflection=False)))
    stub = reflection_pb2_grpc.ServerReflectionStub(connect(server.address).channel)
    call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
    await server.stop()
