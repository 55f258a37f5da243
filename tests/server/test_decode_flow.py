"""Credits: a client that does not take its results costs little, harms nobody, and loses its call."""

import asyncio
import gc
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np
import pytest
from processes import Start
from rawclient import Client, Failure, Tokens, item
from rawdecode import Decode, out, part, tokens_of

from rondel.decoder.spec import StreamSpec
from rondel.server.app import Server
from rondel.server.config import ServerConfig
from rondel.server.operation import Operation
from rondel.server.pending import Pending
from rondel.server.window import Window
from rondel.v1 import attention_pb2 as pb
from rondel.v1.wire import to_tensor

Connect = Callable[[str], Client]

# A row of one number is answered with 8,192 of them: 32 KiB.
WIDE = StreamSpec.uniform(layers=1, query_heads=32, kv_heads=1, head_dim=1, value_dim=256, max_length=64)
ROW_BYTES = 32 * 256 * 4


def question() -> pb.AttendRequest:
    return pb.AttendRequest(q=to_tensor(np.ones((1, 32, 1), np.float32)))


async def wide(decode: Decode, ref: int) -> pb.StreamRef:
    """A stream with one token."""
    stream = await decode.open(ref, WIDE)
    k, v = np.ones((1, 1, 1), np.float32), np.ones((1, 1, 256), np.float32)
    await decode.step(0, part(ref, 0, np.ones((1, 32, 1), np.float32), k, v))
    return stream


class Silent(Decode):
    """A client that reads, and tells of nothing that it has."""

    async def send(self, *operations: pb.DecodeOperation, tell: bool = False) -> None:
        await super().send(*operations, tell=tell)


def rss(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) << 10
    raise AssertionError("no VmRSS")


class TestWindow:
    def test_room_is_taken_before_and_settled_after(self) -> None:
        window = Window(100)
        window.expect(90)
        assert not window.has_room(20)
        window.settle(90, 30)
        assert window.bytes == 30
        assert window.has_room(20)
        window.sent(1, 30)
        assert window.bytes == 30
        assert window.received(1)
        assert window.bytes == 0

    def test_half_of_it_may_be_untold_of_and_any_result_has_room(self) -> None:
        window = Window(100)
        window.expect(50)
        assert window.has_room(10_000)
        window.expect(1)
        assert window.has_room(49)
        assert not window.has_room(50)

    def test_what_is_being_written_has_its_part_of_it(self) -> None:
        window = Window(100, copies=30)
        window.expect(51)
        assert window.has_room(19)
        assert not window.has_room(20)
        window = Window(100, copies=90)
        window.expect(50)
        assert window.has_room(10_000)
        window.expect(1)
        assert not window.has_room(1)

    def test_news_of_a_result_is_news_of_those_before_it(self) -> None:
        window = Window(1000)
        for op_id, size in ((5, 10), (2, 20), (9, 30)):
            window.expect(size)
            window.sent(op_id, size)
        assert window.received(2)
        assert window.bytes == 30
        assert not window.received(2)
        assert window.received(9)
        assert window.bytes == 0

    def test_what_was_sent_can_be_forgotten(self) -> None:
        window = Window(100)
        window.expect(30)
        window.expect(40)
        window.sent(1, 30)
        window.forget()
        assert window.bytes == 40


class TestNarrow:
    @pytest.fixture
    def config(self) -> ServerConfig:
        return ServerConfig(
            port=0, budget_bytes=64 << 20, decode_window_bytes=8 * ROW_BYTES, stall_timeout_seconds=1.0
        )

    async def test_a_client_that_tells_nothing_gets_the_window_and_no_more(
        self, server: Server, client: Client, connect: Connect, tokens: Tokens
    ) -> None:
        async with Silent(client) as decode:
            stream = await wide(decode, 1)
            began = time.monotonic()
            await decode.send(*(decode.op(1, attend=question()) for _ in range(40)))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await decode.ended()
            failed = Failure.of_call(caught.value)
            assert (failed.code, failed.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXPIRED")
            assert "nobody has taken the call's results" in failed.message
            assert 0.9 < time.monotonic() - began < 10
            attended = [result for result in decode.results.values() if result.HasField("attend")]
            assert 3 <= len(attended) <= 8  # the step before them counts, too
        other = connect(server.address)
        assert (await other.get(stream)).committed_length == 1

    async def test_so_does_one_that_asks_one_thing_at_a_time(self, client: Client) -> None:
        """It ran out of room while the call waited for its next message, and nobody looked at the clock."""
        async with Silent(client) as decode:
            await wide(decode, 1)

            async def ask_on() -> None:
                for _ in range(20):
                    await asyncio.wait_for(decode.ask(decode.op(1, attend=question())), 10)

            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await ask_on()
            assert Failure.of_call(caught.value).reason == "DEADLINE_EXPIRED"
            assert 3 <= len(decode.results) <= 2 + 8

    async def test_news_lets_it_go_on(self, client: Client) -> None:
        async with Silent(client) as decode:
            await wide(decode, 1)
            attends = [decode.op(1, attend=question()) for _ in range(100)]
            await decode.send(*attends)
            while len(decode.results) < 102:
                (result,) = await decode.wait([decode.order[-1]])
                await decode.call.write(pb.DecodeRequest(received_op_id=result.op_id))
                await asyncio.sleep(0.002)
            assert all(len(decode.results[op.op_id].attend.out.data) == ROW_BYTES for op in attends)

    async def test_a_result_larger_than_the_window_is_sent(self, client: Client) -> None:
        async with Decode(client) as decode:
            await wide(decode, 1)
            k, v = np.ones((1, 20, 1, 1), np.float32), np.ones((1, 20, 1, 256), np.float32)
            await decode.ask(decode.op(1, append=tokens_of(1, k, v)))
            request = pb.AttendRequest(q=to_tensor(np.ones((20, 32, 1), np.float32)))
            for _ in range(3):
                (result,) = await decode.ask(decode.op(1, attend=request))
                assert len(result.attend.out.data) == 20 * ROW_BYTES

    async def test_after_half_closing_what_is_written_counts_as_taken(self, client: Client) -> None:
        """Nothing can be told any more, and nothing is lost."""
        async with Silent(client) as decode:
            await wide(decode, 1)
            attends = [decode.op(1, attend=question()) for _ in range(60)]
            await decode.send(*attends)
            await decode.call.done_writing()
            await decode.wait(op.op_id for op in attends)
            await decode.ended()

    async def test_others_are_served_meanwhile(
        self, client: Client, server: Server, connect: Connect, tokens: Tokens
    ) -> None:
        async with Silent(client) as decode, Decode(connect(server.address)) as other:
            await wide(decode, 1)
            await decode.send(*(decode.op(1, attend=question()) for _ in range(40)))
            await other.open(1)
            stream = await client.open()
            for position in range(20):
                out((await other.step(0, part(1, position, *tokens.qkv(1))))[0])
                (result,) = await client.step(0, item(stream, position, *tokens.qkv(1)))
                out(result)
            assert len(decode.results) <= 2 + 8


async def test_a_client_may_send_all_its_operations_before_it_reads_any_result(client: Client) -> None:
    """As one does that writes in a loop and reads in the next. A server that waits for it to read has both
    waiting for ever."""
    async with Decode(client) as decode:
        await wide(decode, 1)
        k, v = np.ones((1, 20, 1, 1), np.float32), np.ones((1, 20, 1, 256), np.float32)
        await decode.ask(decode.op(1, append=tokens_of(1, k, v)))
        decode.awake.clear()
        large = pb.AttendRequest(q=to_tensor(np.ones((20, 32, 1), np.float32)))
        asked = [decode.op(1, attend=large) for _ in range(3)]
        asked += [
            decode.op(1, append=tokens_of(1, k, v)) for _ in range(200)
        ]  # 4 MiB; they have these tokens
        for each in asked:
            await asyncio.wait_for(decode.call.write(pb.DecodeRequest(operations=[each])), 10)
        decode.awake.set()
        results = await asyncio.wait_for(decode.wait(each.op_id for each in asked), 30)
        assert not any(result.status.code for result in results)
        assert results[-1].append.duplicate


async def test_what_an_operation_took_is_free_when_it_is_answered(client: Client, server: Server) -> None:
    """Not when the garbage collector comes by: hundreds of large results were there twice until then. And not
    when the next operation comes."""
    async with Decode(client) as decode:
        await wide(decode, 1)
        gc.collect()
        gc.disable()
        try:
            for _ in range(20):
                failing = pb.AttendRequest(q=question().q, layer=7)
                await decode.ask(*(decode.op(1, attend=each) for each in (question(), failing)))
            while not server.scheduler._worker._idle:
                await asyncio.sleep(0.001)
            kinds = [type(each) for each in gc.get_objects()]
        finally:
            gc.enable()
        assert kinds.count(Pending) + kinds.count(Operation) == 0


async def test_readers_that_stop_cost_the_server_no_more_than_the_window(
    start: Start, connect: Connect, tokens: Tokens
) -> None:
    """Thirty calls, each asking for 8 MiB and reading none of it: with a window of 256 KiB that is 8 MiB."""
    process = start(decode_window_bytes=1 << 18, stall_timeout_seconds=1.5)
    client = connect(process.address)
    calls = [Decode(client) for _ in range(30)]
    for decode in calls:
        await decode.__aenter__()
        await wide(decode, 1)
    reading = Decode(client)
    await reading.__aenter__()
    await wide(reading, 1)
    await reading.ask(*(reading.op(1, attend=question()) for _ in range(4)))
    before = rss(process.popen.pid)
    for decode in calls:
        decode.awake.clear()
        raw = [decode.op(1, attend=question()) for _ in range(256)]
        await decode.call.write(pb.DecodeRequest(operations=raw))
    for _ in range(20):
        assert len(await reading.ask(*(reading.op(1, attend=question()) for _ in range(4)))) == 4
    assert rss(process.popen.pid) - before < 30 * (1 << 18) + (12 << 20)
    for decode in calls:
        decode.awake.set()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await decode.ended()
        assert Failure.of_call(caught.value).reason == "DEADLINE_EXPIRED"
    assert len(await reading.ask(reading.op(1, attend=question()))) == 1
    await reading.__aexit__()
