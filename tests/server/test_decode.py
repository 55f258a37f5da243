"""Decode calls: the answers are those of sessions in this process, whatever goes on beside them."""

import asyncio
from collections.abc import Callable

import grpc
import numpy as np
import pytest
from held import Held
from rawclient import SPEC, Client, Tokens, item
from rawdecode import Decode, out, part, tokens_of
from transports import listening

from rondel.decoder.batch import Step, StepResult
from rondel.decoder.cache.arena import Arena
from rondel.decoder.session import DecoderSession
from rondel.server import stepping
from rondel.server.app import Server
from rondel.server.config import ServerConfig
from rondel.server.door import Door
from rondel.server.insight import Insight
from rondel.server.observer import Observer
from rondel.server.tally import Tally
from rondel.v1 import attention_pb2 as pb
from rondel.v1.wire import from_tensor, to_tensor

Connect = Callable[[str], Client]


@pytest.fixture
def arena() -> Arena:
    return Arena(budget=128 << 20)


async def test_the_server_says_what_it_is_first(client: Client) -> None:
    info = await client.info()
    async with Decode(client) as decode:
        assert decode.hello.limits == info.limits
        assert (decode.hello.epoch, decode.hello.start_id) == (info.epoch, info.start_id)
        assert info.limits.decode_window_bytes == 4 << 20


@pytest.mark.every_transport
async def test_every_kind_of_operation(client: Client, tokens: Tokens, arena: Arena) -> None:
    session = DecoderSession(SPEC, arena)
    k, v = tokens.kv(20)
    q = tokens.q(20)
    async with Decode(client) as decode:
        (opened,) = await decode.ask(decode.opening(7, request_id="mine"))
        stream = pb.StreamRef(handle=opened.open.handle, epoch=opened.open.epoch)
        (appended,) = await decode.ask(decode.op(7, append=tokens_of(0, k[:, :9], v[:, :9])))
        session.append_all(k[:, :9], v[:, :9])
        assert (appended.append.committed_length, appended.append.layer_length) == (9, 9)
        for layer in range(SPEC.layers):
            rows = slice(9, 12)
            (result,) = await decode.step(
                layer, part(7, 9, q[rows], k[layer, rows], v[layer, rows], lse=True)
            )
            want, lse = session.step(layer, q[rows], k[layer, rows], v[layer, rows], return_lse=True)
            np.testing.assert_array_equal(out(result), want)
            np.testing.assert_array_equal(from_tensor(result.lse, name="lse"), lse)
            assert result.committed_length == session.length
        request = pb.AttendRequest(layer=1, q=to_tensor(q[:2]), position=4, top_k=3)
        (attended,) = await decode.ask(decode.op(7, attend=request))
        np.testing.assert_array_equal(
            from_tensor(attended.attend.out, name="out"), session.attend(1, q[:2], position=4)
        )
        assert len(attended.attend.top_positions) == 2 * 4 * 3
        (cut,) = await decode.ask(decode.op(7, truncate=pb.TruncateStreamRequest(length=11)))
        assert (cut.truncate.generation, cut.truncate.committed_length) == (1, 11)
        (sealed,) = await decode.ask(decode.op(7, seal=pb.SealStreamRequest(generation=1)))
        assert sealed.seal.committed_length == 11
        (released,) = await decode.ask(decode.op(7, release=pb.DecodeRelease()))
        assert (released.status.code, released.WhichOneof("result")) == (0, None)
        (taken,) = await decode.ask(decode.op(7, attach=pb.AttachStreamRequest(stream=stream)))
        assert taken.attach.stream.handle == stream.handle
        (closed,) = await decode.ask(decode.op(7, close=pb.CloseStreamRequest()))
        assert closed.close.committed_length == 11
        assert closed.close.bytes_released > 0
    assert (await client.info()).streams == 0


async def test_operations_may_follow_the_one_that_binds_their_stream_at_once(
    client: Client, tokens: Tokens, arena: Arena
) -> None:
    session = DecoderSession(SPEC, arena)
    k, v = tokens.kv(8)
    q = tokens.q(8)
    async with Decode(client) as decode:
        operations = [decode.opening(1)]
        for position in range(8):
            row = slice(position, position + 1)
            operations += [
                decode.stepping(layer, part(1, position, q[row], k[layer, row], v[layer, row]))
                for layer in range(SPEC.layers)
            ]
        operations.append(decode.op(1, close=pb.CloseStreamRequest()))
        results = await decode.ask(*operations)
        for number, result in enumerate(results[1:-1]):
            position, layer = divmod(number, SPEC.layers)
            row = slice(position, position + 1)
            want = session.step(layer, q[row], k[layer, row], v[layer, row])
            np.testing.assert_array_equal(out(result.step.results[0]), want)
        assert results[-1].close.committed_length == 8


async def test_many_streams_over_one_call(client: Client, arena: Arena) -> None:
    """Random operations on forty streams, a few messages on their way at any time."""
    rng = np.random.default_rng(5)
    sessions = [DecoderSession(SPEC, arena) for _ in range(40)]
    tokens = [Tokens(np.random.default_rng(seed)) for seed in range(40)]
    wanted: dict[int, list[tuple[int, np.ndarray]]] = {}
    async with Decode(client) as decode:
        await decode.ask(*(decode.opening(ref + 1) for ref in range(40)))
        for _ in range(60):
            operations = []
            for _ in range(int(rng.integers(1, 4))):
                layer = int(rng.integers(SPEC.layers))
                items = []
                answers = []
                for ref in rng.permutation(40)[: int(rng.integers(1, 12))].tolist():
                    count = int(rng.integers(1, 4))
                    session, position = sessions[ref], sessions[ref].layer_length(layer)
                    if position + count > session.length + 9:
                        continue
                    q, k, v = tokens[ref].qkv(count)
                    items.append(part(ref + 1, position, q, k, v))
                    answers.append((ref, session.step(layer, q, k, v)))
                if items:
                    operations.append(decode.stepping(layer, *items))
                    wanted[decode.op_id] = answers
            await decode.send(*operations)
        results = await decode.wait(wanted)
        for result in results:
            for step, (_, want) in zip(result.step.results, wanted[result.op_id], strict=True):
                np.testing.assert_array_equal(out(step), want)
        assert sum(session.length for session in sessions) > 0


async def test_calls_and_streams_go_into_one_native_call(
    server: Server, client: Client, connect: Connect, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    carry_out = stepping.run_steps

    def counted(steps: list[Step]) -> list[StepResult | Exception]:
        sizes.append(len(steps))
        return carry_out(steps)

    monkeypatch.setattr(stepping, "run_steps", counted)
    q, k, v = tokens.qkv(1)
    unary = [await client.open() for _ in range(2)]
    async with Decode(client) as one, Decode(connect(server.address)) as other:
        for ref in (1, 2, 3):
            await one.open(ref)
            await other.open(ref)
        async with Held(server) as held:
            calls = [await held.queued(client.step(0, item(stream, 0, q, k, v)), 1) for stream in unary]
            for decode in (one, other):
                steps = [decode.stepping(0, part(ref, 0, q, k, v)) for ref in (1, 2, 3)]
                await held.queued(decode.send(*steps), 3)
        await asyncio.gather(*calls)
        for decode in (one, other):
            results = await decode.wait(range(4, 7))
            assert {out(result.step.results[0]).tobytes() for result in results} == {
                out((await calls[0])[0]).tobytes()
            }
    assert sizes == [8]


async def test_results_come_together_when_they_are_there_together(
    server: Server, client: Client, tokens: Tokens
) -> None:
    q, k, v = tokens.qkv(1)
    async with Decode(client) as decode:
        await decode.ask(*(decode.opening(ref) for ref in range(1, 51)))
        before = decode.messages
        async with Held(server) as held:
            steps = [decode.stepping(0, part(ref, 0, q, k, v)) for ref in range(1, 51)]
            await held.queued(decode.send(*steps), 50)
        await decode.wait(step.op_id for step in steps)
        assert decode.messages - before <= 3


async def test_the_end_of_what_a_client_sends_is_waited_for(client: Client, tokens: Tokens) -> None:
    """Everything that it has sent is answered, then the call ends; its streams stay."""
    async with Decode(client) as decode:
        stream = await decode.open(1)
        k, v = tokens.kv(6)
        steps = [decode.op(1, append=tokens_of(at, k[:, at : at + 1], v[:, at : at + 1])) for at in range(6)]
        await decode.send(*steps)
        await decode.call.done_writing()
        await decode.wait(step.op_id for step in steps)
        await decode.ended()
        assert await decode.call.code() == grpc.StatusCode.OK
    assert (await client.get(stream)).committed_length == 6


async def test_bytes_of_an_unknown_field_change_nothing(client: Client) -> None:
    """What a later version may send beside what we know."""
    async with Decode(client) as decode:
        raw = pb.DecodeRequest(operations=[decode.opening(1)]).SerializeToString() + b"\xfa\x07\x03abc"
        request = pb.DecodeRequest.FromString(raw)
        await decode.call.write(request)
        (result,) = await decode.wait([1])
        assert result.open.handle


class Counts(Observer):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, object]] = []

    def stored(self, tokens: int, tenant: str) -> None:
        self.told.append(("stored", tokens))

    def repeated(self, tenant: str) -> None:
        self.told.append(("repeated", 1))

    def gap(self, tenant: str) -> None:
        self.told.append(("gap", 1))

    def failed(self, reason: str) -> None:
        self.told.append(("failed", reason))


async def test_operations_are_counted_as_calls_are(
    config: ServerConfig, connect: Connect, tokens: Tokens
) -> None:
    server, counts = Server(listening(config)), Counts()
    server._door = Door(server.security, Insight([Tally(counts)]))
    await server.begin()
    q, k, v = tokens.qkv(2)
    layers = tokens.kv(2)
    async with Decode(connect(server.address)) as decode:
        await decode.open(1)
        await decode.ask(decode.op(1, append=tokens_of(0, *layers)))
        await decode.ask(decode.op(1, append=tokens_of(0, *layers)))
        await decode.step(0, part(1, 2, q, k, v), part(1, 4, q, k, v))
        await decode.ask(decode.op(1, append=tokens_of(9, *layers)))
        await decode.ask(decode.op(2, release=pb.DecodeRelease()))
    await server.stop()
    assert counts.told == [
        ("stored", 6),
        ("repeated", 1),
        ("failed", "INVALID_REQUEST"),
        ("stored", 2),
        ("failed", "SEQUENCE_GAP"),
        ("gap", 1),
        ("failed", "INVALID_REQUEST"),
    ]
