"""Both servers as processes of their own, on one core; whoever measures has the other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

BUDGET_BYTES: Final = 1 << 30

_RONDEL: Final = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv.pop(1))})
from rondel.client.cli.main import main
main()
"""


@dataclass(frozen=True, slots=True)
class Addresses:
    """gRPC targets of one server by transport: ``tcp`` and ``unix``."""

    tcp: str
    unix: str


@contextmanager
def servers() -> Iterator[tuple[Addresses, Addresses]]:
    """Rondel and the echo, until the end. This process keeps one core for itself where there are two.

    Raises:
        RuntimeError: one of them did not start.
    """
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(prefix="rondel-bench-") as folder:
        rondel_socket, echo_socket = Path(folder, "rondel"), Path(folder, "echo")
        settings = ("--port", "0", "--unix-path", str(rondel_socket), "--stop-with-stdin", "--json")
        rondel = _start(
            "-c", _RONDEL, str(cores[-1]), "serve", *settings, "--budget-bytes", str(BUDGET_BYTES)
        )
        echo = _start("-m", "service.echo", str(echo_socket), str(cores[-1]))
        os.sched_setaffinity(0, {cores[0]})
        try:
            tcp, unix = json.loads(_line(rondel))["addresses"]
            port = int(_line(echo))
            yield Addresses(tcp, unix), Addresses(f"127.0.0.1:{port}", f"unix:{echo_socket}")
        finally:
            os.sched_setaffinity(0, cores)
            for process in (rondel, echo):
                process.communicate(timeout=30)


def _start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def _line(process: subprocess.Popen[str]) -> str:
    if process.stdout is None or not (line := process.stdout.readline()):
        raise RuntimeError(f"{process.args!r} did not start, exit code {process.wait()}")
    return line
