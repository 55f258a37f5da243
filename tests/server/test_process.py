"""Servers and clients in processes of their own: signals and kills."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from processes import Start
from rawclient import Client, Tokens
from transports import environment

from rondel.server.app import Server
from rondel.v1 import attention_pb2 as pb

Connect = Callable[[str], Client]
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_it_cleanly_with_watches_and_streams_open(
    start: Start, connect: Connect, tokens: Tokens, number: int
) -> None:
    process = start()
    client = connect(process.address)
    stream = await client.open()
    await client.append(stream, 0, *tokens.kv(5))
    watches = [
        health_pb2_grpc.HealthStub(client.channel).Watch(health_pb2.HealthCheckRequest()) for _ in range(3)
    ]
    for watch in watches:
        assert (await watch.read()).status == SERVING
    code, seconds, log = await process.end(number)
    assert code == 0, log
    assert seconds < 4
    assert "serves on" in log
    assert "tier" in log
    assert "stopped" in log
    assert "Traceback" not in log
    for watch in watches:
        assert (await watch.read()).status == NOT_SERVING
        assert await watch.read() is grpc.aio.EOF


async def test_a_server_that_was_killed_reads_as_unavailable(start: Start, connect: Connect) -> None:
    process = start()
    client = connect(process.address)
    await client.info()
    await process.end(signal.SIGKILL)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.info()
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


TESTS = Path(__file__).parent.parent
KILLED = textwrap.dedent(
    """
    import asyncio, sys
    import grpc, numpy as np
    sys.path[:0] = sys.argv[2:]
    from rawclient import Client, Tokens, item
    from transports import channel_by_environment

    async def main():
        async with channel_by_environment(sys.argv[1]) as channel:
            client = Client(channel)
            tokens = Tokens(np.random.default_rng(7))
            streams = [await client.open() for _ in range(4)]
            print(*[s.handle for s in streams], flush=True)
            lengths = [0] * 4
            async def drive(n):
                while True:
                    k, v = tokens.kv(8)
                    q = tokens.q(8)
                    for layer in range(3):
                        await client.step(layer, item(streams[n], lengths[n], q, k[layer], v[layer]))
                    lengths[n] += 8
            await asyncio.gather(*(drive(n) for n in range(4)))

    asyncio.run(main())
    """
)


async def test_clients_killed_in_the_middle_of_steps_harm_nobody(
    server: Server, client: Client, tokens: Tokens
) -> None:
    mine = await client.open()
    k, v = tokens.kv(400)
    await client.append(mine, 0, k, v)
    q = tokens.q(1)
    before = await client.attend(mine, 0, q)
    for round_ in range(3):
        child = subprocess.Popen(
            [sys.executable, "-c", KILLED, server.address, str(TESTS / "server"), str(TESTS / "support")],
            env={**os.environ, **environment()},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        handles = (await asyncio.to_thread(child.stdout.readline)).split()
        streams = [pb.StreamRef(handle=handle) for handle in handles]
        while (await client.get(streams[0])).committed_length < 40 + 8 * round_:
            await asyncio.sleep(0.01)
        os.kill(child.pid, signal.SIGKILL)
        child.communicate()
        while server._door.inside:
            await asyncio.sleep(0.01)
        for stream in streams:  # kept, at whole chunks, and usable by whoever has the handle
            state = await client.get(stream)
            assert {length % 8 for length in state.layer_lengths} == {0}
            length = state.committed_length
            reply = await client.attention.TruncateStream(
                pb.TruncateStreamRequest(stream=stream, length=length)
            )
            await client.append(stream, length, *tokens.kv(3), generation=reply.generation)
            await client.close(stream)
    np.testing.assert_array_equal(await client.attend(mine, 0, q), before)
    assert (await client.info()).streams == 1
