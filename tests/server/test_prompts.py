"""Long prompts: refused by their size, or read a piece at a time while everything else goes on."""

import asyncio
import signal
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
import tinygguf
from processes import Process, Start
from rawclient import Client, ask, refusal

from rondel.v1 import generation_pb2 as pb

Connect = Callable[[str], Client]

LONG = ("the duck 7 " * 100_000)[: 1 << 20]


def as_chat(text: str) -> pb.GenerateRequest:
    return pb.GenerateRequest(chat=pb.Chat(messages=[pb.ChatMessage(role=pb.ROLE_USER, content=text)]))


@pytest.fixture
def process(start: Start, tmp_path: Path) -> Process:
    """A server whose model takes the longest prompts."""
    model = tinygguf.write(tmp_path / "long.gguf", changes={"llama.context_length": 10_000_000})
    return start(drain_seconds=0.5, model=str(model))


async def at_work(client: Client, request: pb.GenerateRequest) -> asyncio.Task[object]:
    """A generation whose prompt is being read."""
    task: asyncio.Task[object] = asyncio.create_task(refusal(client, request))
    done, _ = await asyncio.wait((task,), timeout=0.3)
    assert not done
    return task


@pytest.mark.alone
@pytest.mark.parametrize("request_", [pb.GenerateRequest(text=LONG), as_chat(LONG)], ids=["text", "chat"])
async def test_other_calls_are_quick_while_a_long_prompt_is_read(
    process: Process, connect: Connect, request_: pb.GenerateRequest
) -> None:
    client = connect(process.address)
    long = await at_work(connect(process.address), request_)
    times, generated = [], 0
    while not long.done():
        began = time.monotonic()
        await client.info()
        times.append(time.monotonic() - began)
        if len(times) % 20 == 1 and (await ask(client, pb.GenerateRequest(text="x", max_tokens=1))).tokens:
            generated += 1
    failed = await long
    assert getattr(failed, "reason", "") == "BUDGET_EXCEEDED"  # it was read to its end
    assert generated >= 2
    # Far above what it takes, far below the seconds that the prompt does.
    assert max(times) < 0.3


@pytest.mark.alone
async def test_a_deadline_ends_the_reading(process: Process, connect: Connect) -> None:
    client = connect(process.address)
    began = time.monotonic()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        _ = [e async for e in client.generation.Generate(pb.GenerateRequest(text=LONG), timeout=0.4)]
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert (await ask(client, pb.GenerateRequest(text="x", max_tokens=1))).tokens
    assert time.monotonic() - began < 1.5
    code, seconds, log = await process.end(signal.SIGTERM)
    assert (code, seconds < 2) == (0, True)  # nothing was left to wait for
    assert "Traceback" not in log


async def test_a_stop_does_not_wait_for_the_reading(process: Process, connect: Connect) -> None:
    # Longer than the draining on any machine.
    long = await at_work(connect(process.address), pb.GenerateRequest(text=3 * LONG))
    code, seconds, log = await process.end(signal.SIGTERM)
    assert code == 0
    assert seconds < 3.5
    assert "Traceback" not in log
    assert getattr(await long, "reason", "") == "DRAINING"
