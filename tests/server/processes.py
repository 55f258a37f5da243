"""Servers in processes of their own."""

import asyncio
import json
import subprocess
import sys
import time
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


class Start(Protocol):
    """Starts a server that is ended with the test."""

    def __call__(self, **options: object) -> Process: ...
