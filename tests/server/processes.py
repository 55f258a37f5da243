"""Servers in processes of their own."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Protocol

_SERVE = """
import json, sys
from rondel.server.process import serve
from rondel.server.config import ServerConfig
config = ServerConfig(**{"port": 0, "budget_bytes": 64 << 20, **json.loads(sys.argv[1])})
serve(config, on_ready=lambda server: print(server.address, flush=True))
"""


class Process:
    """A server in a process of its own; options are those of ServerConfig."""

    def __init__(self, **options: object) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-c", _SERVE, json.dumps(options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.popen.stdout is not None
        self.address = self.popen.stdout.readline().strip()
        """Where it listens; empty if it ended instead."""

    async def end(self, number: int, seconds: float = 20.0) -> tuple[int, float, str]:
        """Exit code, seconds taken and log after a signal."""
        began = time.monotonic()
        self.popen.send_signal(number)
        _, log = await asyncio.to_thread(self.popen.communicate, timeout=seconds)
        return self.popen.returncode, time.monotonic() - began, log


class Command(Process):
    """``rondel serve`` with these options; ``ready`` is what it says when it serves."""

    def __init__(self, *options: str, environment: Mapping[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "rondel.client.cli", "serve", "--port=0", "--json", *options]
        self.popen = subprocess.Popen(
            [*command, "--budget-bytes=67108864"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        self.ready = json.loads(line) if line else {}
        self.address = self.ready["addresses"][0] if line else ""

    def lines_until(self, words: str) -> list[str]:
        """Lines of its log up to one with these words in it; the test's time limit is the failure."""
        assert self.popen.stderr is not None
        lines: list[str] = []
        while not (lines and words in lines[-1]):
            lines.append(self.popen.stderr.readline().rstrip("\n"))
            assert lines[-1] or self.popen.poll() is None, lines
        return lines


class Start(Protocol):
    """Starts a server that is ended with the test."""

    def __call__(self, **options: object) -> Process: ...


class Serve(Protocol):
    """Starts a command that is ended with the test."""

    def __call__(self, *options: str, environment: Mapping[str, str] | None = None) -> Command: ...
