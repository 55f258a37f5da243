"""Health that can fail: a worker that is inside one operation for too long."""

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from held import Held
from rawclient import Client, Failure

from rondel.server.app import SERVICES, Server
from rondel.server.config import ServerConfig
from rondel.server.health import Health

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def config() -> ServerConfig:
    return ServerConfig(port=0, budget_bytes=16 << 20, stuck_seconds=0.3)


async def test_a_stuck_worker_is_not_serving_until_it_goes_on(
    client: Client, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    stub = health_pb2_grpc.HealthStub(client.channel)
    watches = [stub.Watch(health_pb2.HealthCheckRequest(service=name)) for name in ("", SERVICES[0])]
    assert [(await watch.read()).status for watch in watches] == [SERVING, SERVING]
    async with Held(server):
        for watch in watches:
            assert (await asyncio.wait_for(watch.read(), 20)).status == NOT_SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.info()
        failed = Failure.of_call(caught.value)
        assert (failed.code, failed.reason) == (grpc.StatusCode.UNAVAILABLE, "OVERLOADED")
        assert "inside one operation" in failed.message
    for watch in watches:
        assert (await asyncio.wait_for(watch.read(), 20)).status == SERVING
        watch.cancel()
    assert (await client.info()).limits.max_queue_ms == 5000
    assert "the attention worker has been inside one operation for" in caplog.text


async def test_many_short_operations_are_not_a_stuck_worker(client: Client, server: Server) -> None:
    end = asyncio.get_running_loop().time() + 0.8
    while asyncio.get_running_loop().time() < end:
        await asyncio.gather(*(client.info() for _ in range(20)))
        assert server._health._status("") == SERVING


def test_a_service_serves_again_when_all_causes_are_gone() -> None:
    health = Health({"": True, "a": True, "b": False})
    health.begin()
    health.fail("one", ["", "a"])
    health.fail("two", [""])
    health.recover("one")
    assert [health._status(name) for name in ("", "a", "b")] == [NOT_SERVING, SERVING, NOT_SERVING]
    health.recover("two")
    assert [health._status(name) for name in ("", "a", "b")] == [SERVING, SERVING, NOT_SERVING]
    health.end()
    health.recover("two")
    assert health._status("") == NOT_SERVING
