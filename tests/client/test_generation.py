"""Text of a server: the same tokens as in this process, and no work for anybody who has gone."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transports import to

from rondel.client import (
    AsyncAttentionClient,
    AsyncGenerationClient,
    AttentionClient,
    GenerationClient,
    Started,
    Summary,
    Token,
)
from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import (
    DeadlineExpired,
    InvalidRequest,
    InvalidSpec,
    LengthExceeded,
    ModelNotFound,
)
from rondel.decoder.lm.engine import generate
from rondel.decoder.lm.forward import LanguageModel
from rondel.decoder.lm.sampling import Sampling
from rondel.decoder.session import DecoderSession

PROMPT = "the other thing"
ENDLESS = 90_000
"""More tokens than a test waits for: such a generation ends because it was stopped."""


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> LanguageModel:
    return LanguageModel.load(tiny_model)


@pytest.fixture
def client(connect: Callable[..., Any], running: str) -> Any:
    return connect(running, GenerationClient)


def local(model: LanguageModel, most: int, spec: dict[str, Any], sampling: Sampling) -> list[int]:
    ids = model.tokenizer.encode(PROMPT)
    with DecoderSession(model.spec(max_length=len(ids) + most, **spec), Arena(budget=64 << 20)) as session:
        return [token.id for token in generate(model, session, ids, sampling, most)]


def idle(address: str) -> None:
    """Wait until the server works for nobody."""
    with AttentionClient(address, **to(address)) as client:
        end = time.monotonic() + 20
        while client.info().reserved:
            assert time.monotonic() < end, "the server still works for a call that nobody waits for"
            time.sleep(0.01)


@pytest.mark.parametrize(
    ("spec", "sampling"),
    [
        ({}, Sampling()),
        ({"storage": "float32"}, Sampling(temperature=1.5, seed=7)),
        ({"window": 16, "sinks": 4, "reserve": 8}, Sampling(temperature=0.7, top_k=20, top_p=0.9, seed=3)),
    ],
    ids=["greedy", "float32 sampled", "windowed sampled"],
)
def test_tokens_are_those_of_this_process(
    spec: dict[str, Any], sampling: Sampling, client: Any, model: LanguageModel
) -> None:
    options = {name: getattr(sampling, name) for name in ("temperature", "top_p", "top_k", "seed")}
    with client.generate(PROMPT, max_tokens=64, **options, **spec) as generation:
        started, *tokens, summary = list(generation)
    assert isinstance(started, Started)
    assert isinstance(summary, Summary)
    assert all(isinstance(token, Token) for token in tokens)
    ids = [token.id for token in tokens]
    expected = local(model, 64, spec, sampling)
    assert ids == expected
    assert summary.generated_tokens == len(ids)
    assert [token.index for token in tokens] == list(range(len(ids)))
    assert started.spec.groups[0].window == spec.get("window")
    assert started.prompt_tokens == summary.prompt_tokens == len(model.tokenizer.encode(PROMPT))
    assert summary.bytes_resident > 0
    with client.generate(PROMPT, max_tokens=64, **options, **spec) as generation:
        text = "".join(token.text for token in tokens) + summary.text
        assert "".join(generation.text()) == text


def test_remote_attention_gives_the_same_tokens(running: str, model: LanguageModel) -> None:
    spec = {"window": 16, "sinks": 4, "reserve": 8}
    ids = model.tokenizer.encode(PROMPT)
    with AttentionClient(running, **to(running)) as client, client.open(model.spec(**spec)) as stream:
        got = [token.id for token in generate(model, stream, ids, max_tokens=64)]
    assert got == local(model, 64, spec, Sampling())


def test_prompts_of_every_kind(client: Any, model: LanguageModel) -> None:
    chat = [("system", "be brief"), ("user", PROMPT)]
    ids = model.tokenizer.chat([{"role": role, "content": content} for role, content in chat])
    with client.generate(chat, max_tokens=8) as by_chat, client.generate(ids, max_tokens=8) as by_ids:
        first, second = list(by_chat), list(by_ids)
    assert [event for event in first if isinstance(event, Token)] == [
        event for event in second if isinstance(event, Token)
    ]


def test_models(client: Any, connect: Callable[..., Any], model: LanguageModel, address: str) -> None:
    (only,) = client.models()
    assert (only.name, only.loaded, only.context_length) == ("tiny", True, model.context_length)
    assert only.vocabulary == model.vocabulary
    without = connect(address, GenerationClient)
    assert without.models() == []
    with without.generate(PROMPT) as generation, pytest.raises(ModelNotFound):
        list(generation)


@pytest.mark.parametrize(
    ("prompt", "options", "error"),
    [
        (PROMPT, {"model": "other"}, ModelNotFound),
        (PROMPT, {"temperature": -1.0}, InvalidSpec),
        (PROMPT, {"sinks": 4}, InvalidSpec),
        (PROMPT, {"storage": "int3"}, InvalidSpec),
        (PROMPT, {"max_tokens": -1}, InvalidRequest),
        (PROMPT, {"window": 1 << 40}, InvalidRequest),
        ("", {}, InvalidRequest),
        ([], {}, InvalidRequest),
        ([1 << 20], {}, InvalidRequest),
        ([("parrot", "hi")], {}, InvalidRequest),
        ([65] * 100_001, {}, LengthExceeded),
    ],
)
def test_bad_requests(prompt: Any, options: dict[str, Any], error: type[Exception], client: Any) -> None:
    with pytest.raises(error):
        list(client.generate(prompt, **options))


def test_generation_that_is_left_is_stopped(client: Any, running: str) -> None:
    with client.generate(PROMPT, max_tokens=ENDLESS) as generation:
        events = iter(generation)
        for _ in range(5):
            next(events)
    idle(running)
    assert list(generation) == []
    generation.close()


def test_generation_that_is_forgotten_is_stopped(running: str) -> None:
    with GenerationClient(running, **to(running)) as client:
        for number, _ in enumerate(client.generate(PROMPT, max_tokens=ENDLESS)):
            if number == 3:
                break
        idle(running)
        client.generate(PROMPT, max_tokens=ENDLESS)
        idle(running)


async def test_asyncio_generation_that_is_forgotten_is_stopped(running: str) -> None:
    async with (
        AsyncGenerationClient(running, **to(running)) as client,
        AsyncAttentionClient(running, **to(running)) as other,
    ):

        async def is_idle() -> None:
            async with asyncio.timeout(20):
                while (await other.info()).reserved:
                    await asyncio.sleep(0.01)

        async for event in client.generate(PROMPT, max_tokens=ENDLESS):
            if isinstance(event, Token):
                break
        await is_idle()
        async for _ in client.generate(PROMPT, max_tokens=ENDLESS).text():
            break
        gc.collect()
        await is_idle()

        async def read() -> None:
            async for _ in client.generate(PROMPT, max_tokens=ENDLESS):
                pass

        task = asyncio.create_task(read())
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await is_idle()


@pytest.mark.only_transport("tcp", "tls", "mtls")  # it counts the connections of a port
async def test_closed_asyncio_clients_leave_no_connections(running: str) -> None:
    port = f":{int(running.rpartition(':')[2]):04X}"

    def connections() -> int:
        rows = Path("/proc/self/net/tcp").read_text().splitlines()[1:]
        return sum(row.split()[2].endswith(port) and row.split()[3] == "01" for row in rows)

    before = connections()
    for _ in range(10):
        async with AsyncGenerationClient(running, **to(running)) as client:

            async def read(client: AsyncGenerationClient = client) -> None:
                async for _ in client.generate(PROMPT, max_tokens=ENDLESS):
                    pass

            tasks = [asyncio.create_task(read()) for _ in range(3)]
            await asyncio.sleep(0.05)
            for task in tasks:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    gc.collect()
    async with asyncio.timeout(20):
        while connections() > before:
            await asyncio.sleep(0.01)


def test_closing_the_client_stops_its_generations(connect: Callable[..., Any], running: str) -> None:
    client = connect(running, GenerationClient)
    generation = client.generate(PROMPT, max_tokens=ENDLESS)
    next(iter(generation))
    client.close()
    idle(running)


def test_deadline_of_a_generation(client: Any, running: str) -> None:
    with (
        client.generate(PROMPT, max_tokens=ENDLESS, timeout=0.3) as generation,
        pytest.raises(DeadlineExpired),
    ):
        list(generation)
    idle(running)


def test_killed_client_is_not_worked_for(running: str) -> None:
    script = (
        "import os, signal, sys\n"
        "from rondel.client import GenerationClient\n"
        f"client = GenerationClient({running!r}, **{to(running)!r})\n"
        f"events = client.generate({PROMPT!r}, max_tokens={ENDLESS})\n"
        "next(events), next(events)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    idle(running)
