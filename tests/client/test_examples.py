"""The examples run as they are printed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from transports import to

from rondel.client import GenerationClient

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *args: str) -> str:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *args]
    return subprocess.run(command, capture_output=True, check=True, timeout=60).stdout.decode()


def test_in_process() -> None:
    assert run("in_process.py").startswith("1000 tokens in ")


# They take an address and nothing else.
@pytest.mark.only_transport("tcp", "unix")
def test_over_the_wire(address: str) -> None:
    assert run("over_the_wire.py", address).startswith("100 tokens in ")


@pytest.mark.only_transport("tcp", "unix")
def test_stream_text(running: str) -> None:
    text = run("stream_text.py", running, "the other thing")
    with GenerationClient(running, **to(running)) as client:
        generation = client.generate([("user", "the other thing")], max_tokens=128, window=1024)
        assert text == "".join(generation.text()) + "\n"
    assert len(text) > 20
