"""Many streams' steps, in one request or in several at once: each to the bit what it is alone."""

import asyncio
from typing import Any

import grpc
import numpy as np
import pytest
from held import Held
from rawclient import Client, Failure, Tokens, item

from rondel.decoder import kernels
from rondel.decoder.cache.arena import Arena
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec
from rondel.server.app import Server
from rondel.server.config import ServerConfig
from rondel.v1 import attention_pb2 as pb
from rondel.v1.wire import from_tensor

ONE = StreamSpec.uniform(layers=1, query_heads=9, kv_heads=3, head_dim=64, window=128, sinks=4, reserve=8)
DEEP = StreamSpec.uniform(layers=2, query_heads=4, kv_heads=1, head_dim=32, value_dim=24, max_length=500)


@pytest.fixture
def config() -> ServerConfig:
    return ServerConfig(port=0, budget_bytes=256 << 20, drain_seconds=5.0)


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many queries each native call had."""
    calls: list[int] = []
    attend = kernels.KERNELS.attend

    def counted(queries: list[Any]) -> None:
        calls.append(len(queries))
        attend(queries)

    monkeypatch.setattr(kernels.KERNELS, "attend", counted)
    return calls


class Pair:
    """A stream of the server and a session of this process that are given the same tokens."""

    def __init__(self, stream: pb.StreamRef, spec: StreamSpec, arena: Arena, seed: int) -> None:
        self.stream = stream
        self.local = DecoderSession(spec, arena)
        self.tokens = Tokens(np.random.default_rng(seed), spec)

    @property
    def position(self) -> int:
        return self.local.layer_length(0)

    def next(self, tokens: int = 1, *, lse: bool = True) -> pb.StepItem:
        self.sent = self.tokens.qkv(tokens)
        return item(self.stream, self.position, *self.sent, lse=lse)

    def check(self, result: pb.StepResult) -> None:
        """The answer to what ``next`` sent is that of the session, which takes the tokens only now."""
        assert result.status.code == 0, result.status
        out, lse = self.local.step(0, *self.sent, return_lse=True)
        assert from_tensor(result.out, name="out").tobytes() == out.tobytes()
        assert from_tensor(result.lse, name="lse").tobytes() == lse.tobytes()
        assert result.layer_length == self.position
        assert result.committed_length == self.local.length


async def pairs_of(client: Client, count: int) -> list[Pair]:
    """Streams of two kinds and of many lengths, some of which have wrapped."""
    arena = Arena(budget=256 << 20)
    pairs = []
    for number in range(count):
        spec = ONE if number % 3 else DEEP
        pairs.append(Pair(await client.open(spec), spec, arena, number))
        k, v = pairs[-1].tokens.kv(1 + 7 * number)
        await client.append(pairs[-1].stream, 0, k, v)
        pairs[-1].local.append_all(k, v)
    return pairs


async def test_64_streams_in_one_step(client: Client, native: list[int]) -> None:
    pairs = await pairs_of(client, 64)
    for tokens in (1, 3, 1):
        items = [pair.next(tokens) for pair in pairs]
        native.clear()
        results = await client.step(0, *items)
        assert native == [64]
        for pair, result in zip(pairs, results, strict=True):
            assert not result.duplicate
            pair.check(result)


async def test_errors_duplicates_and_gaps_among_them(client: Client, native: list[int]) -> None:
    pairs = await pairs_of(client, 64)
    before = [pair.next() for pair in pairs]
    for pair, result in zip(pairs, await client.step(0, *before), strict=True):
        pair.check(result)
    items = [pair.next() for pair in pairs]
    items[3].k.data = np.full(32, np.nan, np.float32).tobytes()
    first_answer = (await client.step(0, before[10]))[0]
    items[10] = before[10]  # again
    items[20].position += 1
    items[30].generation = 7
    items[40].stream.handle = "nowhere"
    items[50] = pairs[50].next(500)  # more than any ring holds; a wrapped one-layer stream takes it all
    items[51] = pairs[51].next(400)  # beyond the stream's max_length of 500
    items.append(items[5])
    native.clear()
    results = await client.step(0, *items)
    refused = {
        number: Failure.of(result.status).reason
        for number, result in enumerate(results)
        if result.status.code
    }
    assert refused == {
        3: "VALUE_RANGE",
        20: "SEQUENCE_GAP",
        30: "STALE_GENERATION",
        40: "STREAM_NOT_FOUND",
        51: "LENGTH_EXCEEDED",
        64: "INVALID_REQUEST",
    }
    assert results[3].committed_length == pairs[3].local.length
    assert not results[3].HasField("out")
    again = results[10]
    assert again.duplicate
    assert (again.out, again.lse) == (first_answer.out, first_answer.lse)
    whole = [n for n in range(64) if n not in refused and n != 10]
    for number in whole:
        pairs[number].check(results[number])
    assert max(native) == len(whole) - 1  # the long one went in pieces
    for number in refused.keys() & range(40):
        state = await client.get(pairs[number].stream)
        assert (state.layer_lengths[0], state.high_water) == (pairs[number].position,) * 2


async def test_working_space_that_is_missing_for_many_is_there_for_one(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = await pairs_of(client, 5)
    attend = kernels.KERNELS.attend

    def short(queries: list[Any]) -> None:
        if len(queries) > 1 or queries[0][5].shape[0] == 2:
            raise MemoryError("no memory for the kernel's working space")
        attend(queries)

    monkeypatch.setattr(kernels.KERNELS, "attend", short)
    results = await client.step(0, *[pair.next(2 if n == 3 else 1) for n, pair in enumerate(pairs)])
    assert Failure.of(results[3].status).reason == "INTERNAL"
    assert results[3].committed_length == pairs[3].position
    for number in (0, 1, 2, 4):
        pairs[number].check(results[number])
    state = await client.get(pairs[3].stream)
    assert state.high_water == state.committed_length == pairs[3].position


async def test_steps_of_several_calls_are_one_batch(
    server: Server, client: Client, native: list[int]
) -> None:
    pairs = await pairs_of(client, 20)
    requests = [pb.StepRequest(layer=0, items=[p.next() for p in pairs[n : n + 4]]) for n in range(0, 20, 4)]
    native.clear()
    async with Held(server) as held:
        calls = [await held.queued(client.attention.Step(r), r.ByteSize()) for r in requests]
        calls[3].cancel()
        while server._door.inside > 4:
            await asyncio.sleep(0.001)
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert native == [16]
    assert isinstance(answers.pop(3), asyncio.CancelledError)
    kept = pairs[:12] + pairs[16:]
    results = [result for answer in answers for result in answer.results]
    for pair, result in zip(kept, results, strict=True):
        pair.check(result)
    for pair in pairs[12:16]:
        assert (await client.get(pair.stream)).layer_lengths[0] == pair.position


async def test_a_stream_in_several_calls_keeps_their_order(
    server: Server, client: Client, native: list[int]
) -> None:
    """Two tokens in two calls, the first of them twice: a retry of what has not been answered yet."""
    pairs = [Pair(await client.open(ONE), ONE, Arena(budget=16 << 20), seed) for seed in range(3)]
    first = [pair.next() for pair in pairs]
    q, k, v = pairs[1].tokens.qkv(1)
    requests = [
        pb.StepRequest(layer=0, items=first),
        pb.StepRequest(layer=0, items=[first[1], first[0]]),
        pb.StepRequest(layer=0, items=[item(pairs[1].stream, 1, q, k, v, lse=True)]),
    ]
    async with Held(server) as held:
        calls = [await held.queued(client.attention.Step(r), r.ByteSize()) for r in requests]
    one, retry, two = [list(answer.results) for answer in await asyncio.gather(*calls)]
    counts = list(native)
    for pair, result in zip(pairs, one, strict=True):
        pair.check(result)
    assert [result.duplicate for result in retry] == [True, True]
    assert [result.out for result in retry] == [one[1].out, one[0].out]
    pairs[1].sent = (q, k, v)
    pairs[1].check(two[0])
    assert counts == [3, 1, 1, 1]


async def test_a_call_between_steps_keeps_its_place(server: Server, client: Client) -> None:
    stream = await client.open(ONE)
    q, k, v = Tokens(np.random.default_rng(0), ONE).qkv(2)
    steps = [pb.StepRequest(items=[item(stream, p, q[p:][:1], k[p:][:1], v[p:][:1])]) for p in (0, 1)]
    undo = pb.TruncateStreamRequest(stream=stream, length=0)
    async with Held(server) as held:
        calls = [
            await held.queued(client.attention.Step(steps[0]), steps[0].ByteSize()),
            await held.queued(client.attention.TruncateStream(undo), undo.ByteSize()),
            await held.queued(client.attention.Step(steps[1]), steps[1].ByteSize()),
        ]
    first, undone, last = await asyncio.gather(*calls)
    assert (first.results[0].layer_length, undone.generation) == (1, 1)
    assert Failure.of(last.results[0].status).code == grpc.StatusCode.ABORTED
