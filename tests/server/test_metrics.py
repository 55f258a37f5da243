"""What is counted is what happened: a real server, real calls, and the text that a scraper gets."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from held import Held
from rawclient import Client, Tokens, ask, item
from rawdecode import Decode, part, tokens_of
from scrape import Samples, scrape
from transports import listening, tenant

from rondel import __version__
from rondel.decoder import kernels
from rondel.server.app import Server
from rondel.server.config import ServerConfig
from rondel.server.metrics import Metrics
from rondel.server.rpc_metrics import code_name
from rondel.v1 import attention_pb2 as pb
from rondel.v1 import generation_pb2

Connect = Callable[[str], Client]
REASONS = ("INVALID_REQUEST", "STREAM_NOT_FOUND")
ATTENTION = "rondel.v1.AttentionService"


@pytest.fixture
def config() -> ServerConfig:
    return ServerConfig(port=0, admin_port=0, budget_bytes=64 << 20, queue_bytes=10_000)


def label() -> str:
    """Of the tenant that a server takes us for: a certificate's name is in no configuration."""
    return "other" if tenant() else "default"


def rpc(samples: Samples, name: str, method: str, kind: str = "unary", **labels: str) -> float:
    return samples(
        f"grpc_server_{name}", grpc_type=kind, grpc_service=ATTENTION, grpc_method=method, **labels
    )


async def test_calls_are_counted_by_the_names_of_grpc_prometheus(
    server: Server, client: Client, tokens: Tokens
) -> None:
    stream = await client.open()
    for position in range(3):
        await client.step(0, item(stream, position, *tokens.qkv(1)))
    with pytest.raises(grpc.aio.AioRpcError):
        await client.get(pb.StreamRef(handle="unknown"))
    pieces = [piece async for piece in client.attention.ExportStream(pb.ExportStreamRequest(stream=stream))]
    samples = await scrape(server)
    assert rpc(samples, "started_total", "Step") == 3
    assert rpc(samples, "handled_total", "Step", grpc_code="OK") == 3
    assert rpc(samples, "msg_received_total", "Step") == rpc(samples, "msg_sent_total", "Step") == 3
    assert rpc(samples, "handling_seconds_count", "Step") == 3
    assert 0 < rpc(samples, "handling_seconds_sum", "Step") < 60
    assert rpc(samples, "handled_total", "GetStream", grpc_code="NotFound") == 1
    assert rpc(samples, "handled_total", "GetStream", grpc_code="OK") == 0
    assert rpc(samples, "msg_sent_total", "GetStream") == 0
    assert rpc(samples, "msg_sent_total", "ExportStream", "server_stream") == len(pieces) > 0
    assert rpc(samples, "msg_received_total", "ExportStream", "server_stream") == 1
    assert samples("rondel_errors_total", reason="STREAM_NOT_FOUND") == 1
    assert {samples.kinds[f"grpc_server_{name}"] for name in ("started", "handled")} == {"counter"}
    assert samples.kinds["grpc_server_handling_seconds"] == "histogram"


async def test_messages_of_an_import_are_counted_as_they_come(
    server: Server, client: Client, tokens: Tokens
) -> None:
    stream = await client.open()
    await client.append(stream, 0, *tokens.kv(20))
    exported = client.attention.ExportStream(pb.ExportStreamRequest(stream=stream, max_data_bytes=1000))
    requests = [pb.ImportStreamRequest(data=piece.data) async for piece in exported]
    call = client.attention.ImportStream()
    for request in requests[:-1]:
        await call.write(request)
    name = ("msg_received_total", "ImportStream", "client_stream")
    while rpc(await scrape(server), *name) < len(requests) - 1:
        await asyncio.sleep(0.01)
    await call.write(requests[-1])
    await call.done_writing()
    await call
    samples = await scrape(server)
    assert rpc(samples, *name) == len(requests) > 2
    assert rpc(samples, "handled_total", "ImportStream", "client_stream", grpc_code="OK") == 1


async def test_calls_that_nobody_waits_for_are_cancelled_or_late(server: Server, client: Client) -> None:
    async with Held(server):
        call = client.attention.GetServerInfo(pb.GetServerInfoRequest())
        while not server._door.inside:
            await asyncio.sleep(0.002)
        call.cancel()
        with pytest.raises(grpc.aio.AioRpcError):
            await client.attention.GetServerInfo(pb.GetServerInfoRequest(), timeout=0.2)
        while server._door.inside:
            await asyncio.sleep(0.002)
    samples = await scrape(server)
    codes = ("Canceled", "DeadlineExceeded")  # which of them is a matter of milliseconds
    counts = [rpc(samples, "handled_total", "GetServerInfo", grpc_code=code) for code in codes]
    assert counts in ([1, 1], [2, 0])


def test_codes_are_spelled_as_go_does() -> None:
    names = [code_name(code) for code in grpc.StatusCode]
    assert names[:6] == ["OK", "Canceled", "Unknown", "InvalidArgument", "DeadlineExceeded", "NotFound"]
    assert "FailedPrecondition" in names


async def test_tokens_duplicates_gaps_and_items(server: Server, client: Client, tokens: Tokens) -> None:
    one, other = await client.open(), await client.open()
    k, v = tokens.kv(5)
    await client.append(one, 0, k, v)  # 5 tokens for each of 3 layers
    await client.append(one, 0, k, v)  # again
    q, k1, v1 = tokens.qkv(2)
    again = item(other, 0, q, k1, v1)
    await client.step(0, item(one, 5, *tokens.qkv(1)), again)  # 1 + 2
    gap = item(one, 99, *tokens.qkv(1))
    results = await client.step(0, again, gap, item(pb.StreamRef(handle="nobody"), 0, q, k1, v1))
    assert [result.duplicate for result in results] == [True, False, False]
    with pytest.raises(grpc.aio.AioRpcError):
        await client.append(one, 77, k, v)
    samples = await scrape(server)
    assert samples("rondel_tokens_stored_total", tenant=label()) == 15 + 3
    assert samples("rondel_duplicates_total", tenant=label()) == 2
    assert samples("rondel_gaps_total", tenant=label()) == 2
    assert samples("rondel_errors_total", reason="SEQUENCE_GAP") == 2
    assert samples("rondel_errors_total", reason="STREAM_NOT_FOUND") == 1
    assert samples("rondel_step_items_count") == 2
    assert samples("rondel_step_items_sum") == 5


async def test_operations_are_timed_and_those_left_out_are_counted(server: Server, client: Client) -> None:
    async with Held(server):
        call = asyncio.ensure_future(client.info())
        late = asyncio.ensure_future(client.attention.GetServerInfo(pb.GetServerInfoRequest(), timeout=0.2))
        while server._door.inside < 2:
            await asyncio.sleep(0.002)
        await asyncio.wait((late,))
        call.cancel()
        while server._door.inside:
            await asyncio.sleep(0.002)
        waiting = asyncio.ensure_future(client.info())
        while not server._door.inside:
            await asyncio.sleep(0.002)
        await asyncio.sleep(0.05)
    await waiting
    assert isinstance(late.exception(), grpc.aio.AioRpcError)
    samples = await scrape(server)
    left_out = samples("rondel_operations_cancelled_total", tenant=label()) + samples(
        "rondel_operations_expired_total", tenant=label()
    )
    assert left_out == 2
    assert samples("rondel_queue_wait_seconds_sum", worker="attention", tenant=label()) > 0.05
    assert samples("rondel_kernel_seconds_sum", worker="attention") > 0.05
    begun = samples("rondel_queue_wait_seconds_count", worker="attention", tenant=label())
    assert 1 <= begun <= samples("rondel_batch_operations_sum", worker="attention")


async def test_what_a_decode_call_does_counts_as_it_goes(
    server: Server, client: Client, tokens: Tokens
) -> None:
    async with Decode(client) as call:
        await call.open(1)
        step = part(1, 0, *tokens.qkv(2))
        await call.step(0, step)
        await call.step(0, step)
        await call.ask(call.op(9, append=tokens_of(0, *tokens.kv(1))))  # no such stream
        samples = await scrape(server)
    kind = "bidi_stream"
    assert rpc(samples, "msg_received_total", "Decode", kind) == 4
    assert rpc(samples, "msg_sent_total", "Decode", kind) == 5  # with the hello
    assert rpc(samples, "started_total", "Decode", kind) == 1
    assert rpc(samples, "handling_seconds_count", "Decode", kind) == 0
    assert samples("rondel_tokens_stored_total", tenant=label()) == 2
    assert samples("rondel_duplicates_total", tenant=label()) == 1
    assert sum(samples("rondel_errors_total", reason=reason) for reason in REASONS) == 1


async def test_refusals_are_counted_by_reason(server: Server, client: Client, tokens: Tokens) -> None:
    stream = await client.open()
    k, v = tokens.kv(12)
    async with Held(server) as held:
        first = await held.queued(client.append(stream, 0, k, v), 5_001)
        with pytest.raises(grpc.aio.AioRpcError):
            await client.append(stream, 0, k, v)
    await first
    samples = await scrape(server)
    assert samples("rondel_refused_total", reason="overloaded", tenant=label()) == 1
    assert rpc(samples, "handled_total", "AppendToken", grpc_code="Unavailable") == 1


async def test_a_generation_counts_for_its_own_worker(connect: Connect, model_path: Path) -> None:
    config = ServerConfig(port=0, admin_port=0, budget_bytes=8 << 20, model=str(model_path))
    server = await Server.start(listening(config))
    before = (await scrape(server))("rondel_kernel_seconds_count", worker="generation")
    client = connect(server.address)
    request = generation_pb2.GenerateRequest(text="hello", max_tokens=4)
    answer = await ask(client, request)
    samples = await scrape(server)
    assert samples("rondel_kernel_seconds_count", worker="generation") > before
    assert (
        samples(
            "grpc_server_msg_sent_total",
            grpc_type="server_stream",
            grpc_service="rondel.v1.GenerationService",
            grpc_method="Generate",
        )
        == len(answer.tokens) + 2
    )
    await server.stop()


async def test_what_runs_is_told(server: Server) -> None:
    samples = await scrape(server)
    assert samples("rondel_build_info", version=__version__, tier=kernels.TIER) == 1
    assert samples("process_resident_memory_bytes") > 1 << 20
    assert samples("process_open_fds") > 3
    assert samples("rondel_reload_success") == 1


def test_tenants_that_no_configuration_has_count_as_one() -> None:
    tenants = ["red", "blue"]
    metrics = Metrics(version="1", tier="base", tenants=lambda: tenants)
    observer = metrics.worker("attention")
    for number in range(100):
        observer.stored(1, f"made-up-{number}")
    observer.stored(5, "red")
    observer.refused("quota", "green")
    tenants.append("green")  # the configuration was read again
    observer.stored(7, "green")
    from prometheus_client import generate_latest

    samples = Samples(generate_latest(metrics.registry).decode())
    assert samples.labels("rondel_tokens_stored_total", "tenant") == {"red", "blue", "green", "other"}
    assert samples("rondel_tokens_stored_total", tenant="other") == 100
    assert samples("rondel_tokens_stored_total", tenant="red") == 5
    assert samples("rondel_refused_total", reason="quota", tenant="other") == 1


async def test_without_an_admin_port_nothing_is_counted_or_opened() -> None:
    server = await Server.start(ServerConfig(port=0, budget_bytes=4 << 20))
    assert server.observatory.metrics is None
    assert server.observatory.admin_address is None
    await server.stop()


async def test_two_servers_in_a_process_count_apart(connect: Connect, tokens: Tokens) -> None:
    config = ServerConfig(port=0, admin_port=0, budget_bytes=4 << 20)
    servers = [await Server.start(listening(config)) for _ in range(2)]
    client = connect(servers[0].address)
    stream = await client.open()
    await client.append(stream, 0, *tokens.kv(1))
    stored = [(await scrape(server))("rondel_tokens_stored_total", tenant=label()) for server in servers]
    assert stored == [3, 0]
    for server in servers:
        await server.stop()
