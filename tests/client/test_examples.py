"""The examples run as they are printed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *args: str) -> str:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *args]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_in_process() -> None:
    assert run("in_process.py").startswith("1000 tokens in ")


def test_over_the_wire(address: str) -> None:
    assert run("over_the_wire.py", address).startswith("100 tokens in ")
