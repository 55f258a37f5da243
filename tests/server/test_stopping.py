"""A stop is bounded, whatever is at work; and starts that fail."""

import asyncio
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np
import pytest
from processes import Start
from rawclient import Client, Failure, Tokens, item

from rondel.decoder.errors import Draining
from rondel.decoder.spec import StreamSpec
from rondel.server.app import Server
from rondel.server.config import ServerConfig
from rondel.server.models import Models
from rondel.v1 import attention_pb2 as pb
from rondel.v1.wire import to_tensor

Connect = Callable[[str], Client]


@pytest.mark.parametrize("piecewise", [True, False])
async def test_work_of_minutes_does_not_hold_up_the_end(
    start: Start, connect: Connect, piecewise: bool
) -> None:
    """Neither what only reads, and stops between two pieces, nor a kernel that nothing can stop."""
    process = start(drain_seconds=0.3)
    client = connect(process.address)
    spec = StreamSpec.uniform(layers=1, query_heads=1024, kv_heads=1, head_dim=1, max_length=202_000)
    stream = await client.open(spec)
    tokens = Tokens(np.random.default_rng(1), spec)
    for position in range(0, 200_000, 50_000):
        await client.append(stream, position, *tokens.kv(50_000))
    if piecewise:
        request = pb.AttendRequest(stream=stream, q=to_tensor(tokens.q(2000)))
        call = asyncio.ensure_future(client.attention.Attend(request))
    else:
        step = pb.StepRequest(items=[item(stream, 200_000, *tokens.qkv(2000))])
        call = asyncio.ensure_future(client.attention.Step(step))
    await asyncio.wait((call,), timeout=0.5)
    assert not call.done()
    code, seconds, log = await process.end(signal.SIGTERM)
    assert code == 0
    assert seconds < 3.5
    assert ("the attention worker is inside a long operation and is left behind" in log) != piecewise
    assert "Traceback" not in log
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    failed = Failure.of_call(caught.value)
    assert (failed.code, failed.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")


async def test_a_worker_that_is_left_behind_drops_what_waits(server: Server, client: Client) -> None:
    hold = threading.Event()
    held = asyncio.create_task(server.scheduler.run(lambda: hold.wait(20), cost=0))
    waiting = asyncio.ensure_future(client.info())
    while not server._door.inside:
        await asyncio.sleep(0.002)
    began = time.monotonic()
    await server.stop(drain_seconds=0.1)
    assert time.monotonic() - began < 3
    assert server.working
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await waiting
    assert Failure.of_call(caught.value).reason == "DRAINING"
    hold.set()
    assert await held
    await asyncio.wait_for(server.scheduler.ended.wait(), 5)
    assert not server.working


def test_a_model_is_given_up_between_two_layers(model_path: Path) -> None:
    models = Models(str(model_path))
    models.give_up()
    with pytest.raises(Draining):
        models.load()
    assert models.loaded is None


async def test_a_start_can_be_cancelled_while_the_model_is_read(
    model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = threading.Event()
    progress = Models._progress

    def slowly(models: Models, done: int, total: int) -> None:
        reading.set()
        models._unwanted.wait(20)
        progress(models, done, total)

    monkeypatch.setattr(Models, "_progress", slowly)
    starting = asyncio.create_task(
        Server.start(ServerConfig(port=0, budget_bytes=4 << 20, model=str(model_path)))
    )
    assert await asyncio.to_thread(reading.wait, 20)
    began = time.monotonic()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert time.monotonic() - began < 2


async def test_a_start_that_fails_says_why_and_nothing_else(start: Start, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = start(port=port)
        _, log = process.popen.communicate(timeout=20)
    assert process.popen.returncode == 1
    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use" in log
    for word in ("GRPC_VERBOSITY", "stopped", "serves on"):
        assert word not in log
    process = start(model=str(tmp_path))
    _, log = process.popen.communicate(timeout=20)
    assert process.popen.returncode == 1
    assert "ModelNotFound" in log
    assert "serves on" not in log
