"""How Decode calls end: clients that leave, servers that stop; and what becomes of the streams."""

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
from held import Held
from processes import Start
from rawclient import SPEC, Client, Tokens
from rawdecode import Decode, out, part, tokens_of
from transports import environment

from rondel.decoder.cache.arena import Arena
from rondel.decoder.session import DecoderSession
from rondel.server.app import Server
from rondel.v1 import attention_pb2 as pb

Connect = Callable[[str], Client]
TESTS = Path(__file__).parent.parent


async def nobody_inside(server: Server) -> None:
    """Returns when no call is at work; the test's time limit is the failure."""
    while server._door.inside:
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("end", ["cancel", "half-close", "channel"])
async def test_only_a_close_ends_a_stream(
    server: Server, client: Client, connect: Connect, tokens: Tokens, end: str
) -> None:
    k, v = tokens.kv(5)
    other = connect(server.address)
    async with Decode(other) as decode:
        kept, closed = await decode.open(1), await decode.open(2)
        await decode.ask(decode.op(1, append=tokens_of(0, k, v)), decode.op(2, close=pb.CloseStreamRequest()))
        if end == "cancel":
            decode.call.cancel()
        elif end == "half-close":
            await decode.call.done_writing()
            await decode.ended()
        else:
            await other.channel.close()
        await nobody_inside(server)
    assert (await client.get(kept)).committed_length == 5
    assert (await client.info()).streams == 1
    with pytest.raises(grpc.aio.AioRpcError):
        await client.get(closed)


async def test_what_a_client_that_left_had_sent_is_not_begun(
    server: Server, client: Client, connect: Connect, tokens: Tokens
) -> None:
    k, v = tokens.kv(1)
    async with Decode(connect(server.address)) as decode:
        stream = await decode.open(1)
        async with Held(server) as held:
            await held.queued(decode.send(decode.op(1, append=tokens_of(0, k, v))), 1)
            decode.call.cancel()
            await nobody_inside(server)
    assert (await client.get(stream)).high_water == 0
    assert server.scheduler.waiting_bytes == 0


async def test_a_call_s_deadline_ends_it_and_leaves_the_streams(
    server: Server, client: Client, connect: Connect, tokens: Tokens
) -> None:
    async with Decode(connect(server.address), timeout=0.3) as decode:
        stream = await decode.open(1)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await decode.ended()
        assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    await nobody_inside(server)
    assert (await client.get(stream)).committed_length == 0


async def test_a_stopping_server_answers_what_it_has_read(
    server: Server, client: Client, tokens: Tokens
) -> None:
    q, k, v = tokens.qkv(1)
    async with Decode(client) as decode, Decode(client) as idle:
        await decode.ask(*(decode.opening(ref) for ref in range(1, 9)))
        async with Held(server) as held:
            steps = [decode.stepping(0, part(ref, 0, q, k, v)) for ref in range(1, 9)]
            await held.queued(decode.send(*steps), 1)
            stopping = asyncio.create_task(server.stop(drain_seconds=10))
            while decode.away is None or idle.away is None:
                await asyncio.sleep(0.002)
            assert decode.away.last_op_id == steps[-1].op_id
            assert idle.away.last_op_id == 0
        for result in await decode.wait(step.op_id for step in steps):
            out(result.step.results[0])
        for call in (decode, idle):
            await call.ended()
            assert await call.call.code() == grpc.StatusCode.OK
        await stopping


async def test_a_stop_does_not_wait_longer_than_it_may(
    server: Server, client: Client, tokens: Tokens
) -> None:
    q, k, v = tokens.qkv(1)
    async with Decode(client) as decode:
        await decode.open(1)
        async with Held(server) as held:
            await held.queued(decode.send(decode.stepping(0, part(1, 0, q, k, v))), 1)
            stopping = asyncio.create_task(server.stop(drain_seconds=0.2))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await decode.ended()
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        await stopping


@pytest.mark.alone
async def test_sigterm_with_two_hundred_calls_and_a_watch(
    start: Start, connect: Connect, tokens: Tokens, tmp_path: Path
) -> None:
    """Exit code 0 within the bound; on the same file, every stream goes on."""
    path = str(tmp_path / "arena")
    process = start(arena_file=path, drain_seconds=5.0)
    client = connect(process.address)
    watch = health_pb2_grpc.HealthStub(client.channel).Watch(health_pb2.HealthCheckRequest())
    await watch.read()
    q, k, v = tokens.qkv(1)
    calls = [Decode(client) for _ in range(200)]

    async def begin(decode: Decode) -> pb.StreamRef:
        await decode.__aenter__()
        stream = await decode.open(1)
        await decode.ask(*(decode.stepping(layer, part(1, 0, q, k, v)) for layer in range(SPEC.layers)))
        return stream

    streams = await asyncio.gather(*map(begin, calls))
    code, seconds, log = await process.end(signal.SIGTERM)
    assert (code, "Traceback" in log) == (0, False), log
    assert seconds < 5.0 + 2.0
    assert "are ended after" not in log
    for decode in calls:
        await decode.ended()
        assert decode.away is not None
        await decode.__aexit__()
    client = connect(start(arena_file=path).address)
    async with Decode(client) as decode:
        attach = [
            decode.op(ref, attach=pb.AttachStreamRequest(stream=stream))
            for ref, stream in enumerate(streams, 1)
        ]
        for result in await decode.ask(*attach):
            assert result.attach.stream.committed_length == 1
            assert result.attach.stream.generation == 2


KILLED = textwrap.dedent(
    """
    import asyncio, sys
    import numpy as np
    sys.path[:0] = sys.argv[2:]
    from rawclient import Client, Tokens
    from rawdecode import Decode, part
    from transports import channel_by_environment

    async def main():
        async with channel_by_environment(sys.argv[1]) as channel:
            tokens = Tokens(np.random.default_rng(7))
            async with Decode(Client(channel)) as decode:
                streams = [await decode.open(ref) for ref in range(1, 9)]
                print(*[stream.handle for stream in streams], flush=True)
                length = 0
                while True:
                    k, v = tokens.kv(2)
                    q = tokens.q(2)
                    for layer in range(3):
                        parts = (part(ref, length, q, k[layer], v[layer]) for ref in range(1, 9))
                        await decode.step(layer, *parts)
                    length += 2

    asyncio.run(main())
    """
)


async def test_clients_killed_in_the_middle_of_operations_harm_nobody(
    server: Server, client: Client, tokens: Tokens
) -> None:
    """Another one attaches, and goes on as if a stream had never been anybody else's."""
    for round_ in range(2):
        child = subprocess.Popen(
            [sys.executable, "-c", KILLED, server.address, str(TESTS / "server"), str(TESTS / "support")],
            env={**os.environ, **environment()},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        handles = (await asyncio.to_thread(child.stdout.readline)).split()
        streams = [pb.StreamRef(handle=handle) for handle in handles]
        while (await client.get(streams[0])).committed_length < 20 + 2 * round_:
            await asyncio.sleep(0.005)
        os.kill(child.pid, signal.SIGKILL)
        child.communicate()
        await nobody_inside(server)
        length = (await client.get(streams[0])).committed_length
        again, q = Tokens(np.random.default_rng(7)), np.empty(0)
        with DecoderSession(SPEC, Arena(64 << 20)) as session:
            for _ in range(0, length, 2):
                session.append_all(*again.kv(2))
                q = again.q(2)
            want = session.attend(1, q)
        async with Decode(client) as decode:
            for ref, stream in enumerate(streams, 1):
                attach = decode.op(ref, attach=pb.AttachStreamRequest(stream=stream))
                (result,) = await decode.ask(attach)
                state = result.attach.stream
                assert list(state.layer_lengths) == [state.committed_length] * SPEC.layers
                assert abs(state.committed_length - length) <= 2
                if state.committed_length == length:
                    answer = await client.attend(stream, 1, q, length - 2, generation=state.generation)
                    np.testing.assert_array_equal(answer, want)
                (closed,) = await decode.ask(decode.op(ref, close=pb.CloseStreamRequest()))
                assert not closed.status.code
    assert (await client.info()).streams == 0
