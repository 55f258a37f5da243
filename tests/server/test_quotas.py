"""What a tenant may have at most: refused beyond it, with nothing changed, and the others left alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from held import Held
from rawclient import SPEC, Client, Tokens, ask, everything_given_back
from rawdecode import Decode, failed
from snapshots import exported, pieces
from tenancy import TOKENS, bringing, checked, hint, limit, refusal, still, with_tenants

from rondel.decoder.cache.arena import Arena
from rondel.decoder.session import DecoderSession
from rondel.server.app import Server
from rondel.server.config import ServerConfig
from rondel.server.tenants import Usage
from rondel.v1 import generation_pb2

Connect = Callable[[str], Client]
EACH = DecoderSession(SPEC, Arena(16 << 20)).stats().bytes_reserved


@pytest.fixture
def config(tmp_path: Path) -> ServerConfig:
    return with_tenants(ServerConfig(port=0, budget_bytes=64 << 20, drain_seconds=5.0), tmp_path)


@pytest.fixture
def alpha(client: Client) -> Client:
    return bringing(client, TOKENS["alpha"])


@pytest.fixture
def beta(client: Client) -> Client:
    return bringing(client, TOKENS["beta"])


async def at_rest(server: Server) -> Usage:
    """What alpha has when its calls are over: a handler ends after its answer."""
    while server.streams.usage("alpha").calls:
        await asyncio.sleep(0.01)
    return server.streams.usage("alpha")


async def test_streams(alpha: Client, beta: Client, server: Server, tokens: Tokens) -> None:
    limit(server, "max_streams = 2")
    first, second = await alpha.open(request_id="mine"), await alpha.open()
    before = await at_rest(server), server.arena.stats()
    raw = await exported(alpha, first)
    for call in (
        alpha.open(),
        alpha.fork(first, 0),
        alpha.attention.ImportStream(iter(pieces(raw))),
    ):
        failure = await refusal(call, "streams")
        assert (failure.facts["limit"], hint(failure)) == ("2", None)
    assert (await at_rest(server), server.arena.stats()) == before
    async with Decode(alpha) as decode:
        (result,) = await decode.ask(decode.opening(1))
        checked(failed(result), "streams")
    assert await alpha.open(request_id="mine") == first  # a repetition takes none
    for _ in range(4):
        await beta.open()
    await alpha.close(second)
    await alpha.open()
    limit(server, "max_streams = 0")
    await alpha.append(first, 0, *tokens.kv(1))  # what is there stays
    limit(server, "")
    await alpha.open()


async def test_bytes(alpha: Client, beta: Client, server: Server) -> None:
    limit(server, f"max_bytes = {3 * EACH - 1}")
    first, second = await alpha.open(), await alpha.open()
    assert (await alpha.info()).memory.budget == 3 * EACH - 1
    raw = await exported(alpha, first)
    before = await at_rest(server), server.arena.stats()
    for call in (
        alpha.open(),
        alpha.fork(first, 0),
        alpha.attention.ImportStream(iter(pieces(raw))),
    ):
        failure = await refusal(call, "bytes")
        assert int(failure.facts["available"]) == EACH - 1
        assert (int(failure.facts["limit"]), hint(failure)) == (3 * EACH - 1, None)
    assert (await at_rest(server), server.arena.stats()) == before
    await alpha.fork(first, 0, most=0, prefix="small")  # needs next to nothing
    for _ in range(4):
        await beta.open()
    await alpha.close(second)
    await alpha.open()


async def test_calls_at_work(alpha: Client, beta: Client, server: Server, tokens: Tokens) -> None:
    stream = await alpha.open()
    limit(server, "max_calls = 2")
    async with Decode(alpha) as decode, Decode(alpha):
        failure = await refusal(alpha.get(stream), "calls")
        assert (failure.facts["limit"], hint(failure)) == ("2", 0.1)
        await refusal(alpha.attention.Decode().read(), "calls")
        await beta.info()
        await decode.call.done_writing()
        await decode.ended()
        await alpha.get(stream)
    while server.streams.usage("alpha").calls:
        await asyncio.sleep(0.005)
    async with Held(server) as held:
        waiting = [await held.queued(alpha.get(stream), 1) for _ in range(2)]
        await refusal(alpha.get(stream), "calls")
        waiting[0].cancel()
        while server.streams.usage("alpha").calls == 2:
            await asyncio.sleep(0.005)
        waiting[0] = await held.queued(alpha.get(stream), 1)
    await asyncio.gather(*waiting)
    assert server.streams.usage("alpha").calls == 0


class TestGeneration:
    @pytest.fixture
    def config(self, tmp_path: Path, model_path: Path) -> ServerConfig:
        plain = ServerConfig(port=0, budget_bytes=64 << 20, model=str(model_path))
        return with_tenants(plain, tmp_path)

    async def test_bytes_count(self, alpha: Client, beta: Client, server: Server) -> None:
        limit(server, "max_bytes = 1000")
        request = generation_pb2.GenerateRequest(text="x", max_tokens=2)
        await refusal(ask(alpha, request), "bytes")
        await ask(beta, request)
        limit(server, "")
        answer = await ask(alpha, request)
        assert answer.summary.bytes_reserved > 1000
        await everything_given_back(server)
        assert server.streams.usage("alpha").reserved == 0

    async def test_it_goes_on_at_the_tenants_rate(self, alpha: Client, server: Server) -> None:
        (model,) = (await alpha.generation.ListModels(generation_pb2.ListModelsRequest())).models
        layers = len([layer for group in model.spec.groups for layer in group.layers])
        alone = await ask(alpha, generation_pb2.GenerateRequest(text="Hello", max_tokens=30))
        rate = 40 * layers
        limit(server, f"steps_per_second = {rate}")
        stored = alone.started.prompt_tokens + 29
        began = time.monotonic()
        slowed = [
            await ask(alpha, generation_pb2.GenerateRequest(text="Hello", max_tokens=30)) for _ in range(2)
        ]
        # A second's worth at once, and the last token's are not waited for.
        assert time.monotonic() - began >= (2 * stored * layers - rate) / rate - 2 * layers / rate - 0.05
        assert [answer.ids for answer in slowed] == [alone.ids] * 2

    async def test_who_owes_begins_nothing(self, alpha: Client, beta: Client, server: Server) -> None:
        clock = still(server)
        limit(server, "steps_per_second = 10")
        server.security.tenants.get("alpha").steps.owe(30)
        request = generation_pb2.GenerateRequest(text="x", max_tokens=1)
        failure = await refusal(ask(alpha, request), "steps_per_second")
        assert hint(failure) == pytest.approx(2.0, abs=2e-3)
        await ask(beta, request)
        clock.now += 2.1
        await ask(alpha, request)
