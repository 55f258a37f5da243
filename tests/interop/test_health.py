"""The health service as probes on foreign stacks see it."""

from __future__ import annotations

import grpc
import pytest
from foreign import Connect, Refused, draining, given
from grpc_health.v1 import health_pb2 as pb

from rondel.client.cli.launch import ServerProcess, server

pytestmark = pytest.mark.interop

Status = pb.HealthCheckResponse
# Only reflection tells a Node.js client of a service whose .proto it does not have.
PROBES = ["node-reflection", "grpclib"]


@pytest.mark.parametrize("stack", PROBES)
def test_checks(running: ServerProcess, connect: Connect, stack: str) -> None:
    caller = connect(given(stack), running.address)
    for service in ("", "rondel.v1.AttentionService", "rondel.v1.GenerationService"):
        assert caller.call("Health/Check", pb.HealthCheckRequest(service=service)).status == Status.SERVING
    with pytest.raises(Refused) as refused:
        caller.call("Health/Check", pb.HealthCheckRequest(service="nothing"))
    assert refused.value.code == grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("stack", PROBES)
def test_a_watch_sees_the_server_stop(connect: Connect, stack: str) -> None:
    with server("--budget-bytes", str(64 << 20)) as process:
        caller, other = connect(given(stack), process.address), connect(given("node-protos"), process.address)
        generation = pb.HealthCheckRequest(service="rondel.v1.GenerationService")
        assert caller.call("Health/Check", generation).status == Status.NOT_SERVING  # it has no model
        for request, status in (("nothing", Status.SERVICE_UNKNOWN), ("", Status.SERVING)):
            caller.start("Health/Watch")
            caller.send(pb.HealthCheckRequest(service=request))
            assert caller.receive().status == status
            if status != Status.SERVING:
                caller.cancel()
        with draining(process, other):
            assert caller.receive().status == Status.NOT_SERVING
            assert caller.receive() is None
