"""``rondel generate`` and ``rondel demo``, whole, with a tiny model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

RONDEL = [sys.executable, "-m", "rondel.client.cli"]
PROMPT = "the other thing"


def cli(*args: str) -> Any:
    done = subprocess.run([*RONDEL, *args], capture_output=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()  # as it is: a model may write any kind of line end


def test_command_line_gives_the_same_tokens_everywhere(tiny_model: Path, running: str) -> None:
    args = ["generate", PROMPT, "--raw", "--max-tokens=64", "--json", "--window=32"]
    here = json.loads(cli(*args, f"--model={tiny_model}"))
    assert len(here["tokens"]) > 10
    for place in (
        [f"--server={running}"],
        [f"--model={tiny_model}", "--remote-attention"],
        [f"--model={tiny_model}", "--remote-attention", f"--server={running}"],
    ):
        there = json.loads(cli(*args, *place))
        for name in ("text", "tokens", "finish_reason"):
            assert there[name] == here[name], (name, place)
    assert cli(*args[:4], "--window=32", f"--model={tiny_model}") == here["text"] + "\n"


def test_demo(tiny_model: Path) -> None:
    report = json.loads(cli("demo", f"--model={tiny_model}", "--json", "--max-tokens=20"))
    assert report["tokens"] > 0
    assert 0 < report["rpc_p50_ms"] <= report["rpc_p99_ms"]
    assert 8 < report["bits_per_value"] < 16
    shown = cli("demo", f"--model={tiny_model}", "--max-tokens=20")
    for name in ("tokens/s", "time to first token", "cache", "window", "kernel tier", "RPC"):
        assert name in shown
