"""A server at one address for a whole test, on one arena's file, whose processes come and go."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

_SERVE = """
import json, sys
from rondel.server.config import ServerConfig
from rondel.server.process import serve
serve(ServerConfig(**json.loads(sys.argv[1])), on_ready=lambda server: print("serving", flush=True))
"""


class Comings:
    """A server that is started, killed, stopped and started again; options are those of ServerConfig."""

    def __init__(self, folder: Path) -> None:
        self.address = f"unix:{folder / 'socket'}"
        self._options = {
            "port": None,
            "unix_path": str(folder / "socket"),
            "arena_file": str(folder / "arena"),
            "budget_bytes": 16 << 20,
        }
        self._log = folder / "log"
        self._process: subprocess.Popen[str] | None = None

    def start(self, **options: object) -> None:
        """Returns when it serves."""
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _SERVE, json.dumps({**self._options, **options})],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "serving\n", self._log.read_text()

    def end(self, number: int) -> int:
        """Its exit code after a signal."""
        assert self._process is not None
        self._process.send_signal(number)
        self._process.communicate(timeout=20)
        return self._process.returncode

    def kill(self) -> None:
        """It is gone at once."""
        self.end(signal.SIGKILL)

    def close(self) -> None:
        """Leave nothing behind."""
        if self._process is not None and self._process.poll() is None:
            self.kill()


class Token:
    """Random q, k and v of every layer, for a specification whose layers are alike."""

    def __init__(self, spec: Any, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._group = spec.groups[0]
        self._layers = spec.layers

    def draw(self, tokens: int = 1) -> tuple[Any, Any, Any]:
        group = self._group
        shapes = ((group.query_heads, group.key_dim), (group.kv_heads, group.key_dim),
                  (group.kv_heads, group.value_dim))  # fmt: skip
        q, k, v = (self._rng.standard_normal((self._layers, tokens, *shape), np.float32) for shape in shapes)
        return q, k, v
