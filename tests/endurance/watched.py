"""A server in a process of its own, and what can be seen of it from outside."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

PAGE: Final = os.sysconf("SC_PAGE_SIZE")
TICKS: Final = os.sysconf("SC_CLK_TCK")
STOP_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Vitals:
    """A server's vital numbers at one moment."""

    rss: int
    """Resident bytes, as the system counts them."""
    fds: int
    threads: int
    cpu_seconds: float
    """User and system time of all its threads since it began."""
    tasks: int
    """Tasks of its event loop."""
    calls: int
    """Calls at work."""
    waiting_bytes: int
    """Of requests that wait for the kernels."""
    streams: int
    reserved: int
    """Bytes of the budget that streams have claimed."""
    resident: int
    """Bytes of pages that hold tokens."""


class Watched:
    """A server, running while the block runs; ``options`` are those of ServerConfig."""

    def __init__(self, **options: object) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the server
        self._process = subprocess.Popen(
            [
                sys.executable,
                str(Path(__file__).with_name("watched_server.py")),
                json.dumps({"port": 0, **options}),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, "PYTHONSAFEPATH": "1"},
            start_new_session=True,
        )
        line = self._read(60.0)
        if not line:
            raise RuntimeError(f"the server did not start: {self.log()}")
        self.addresses: list[str] = json.loads(line)["addresses"]
        self.address = self.addresses[0]

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def vitals(self, seconds: float = 30.0) -> Vitals:
        """Its numbers now. Raises RuntimeError if it says nothing for so long."""
        pipe = self._process.stdin
        assert pipe is not None
        pipe.write(b"?\n")
        pipe.flush()
        line = self._read(seconds)
        if not line:
            raise RuntimeError(f"the server tells nothing for {seconds:g} s: {self.log()[-2000:]}")
        proc = Path(f"/proc/{self.pid}")
        times = (proc / "stat").read_text().rpartition(")")[2].split()
        return Vitals(
            rss=int((proc / "statm").read_text().split()[1]) * PAGE,
            fds=len(list((proc / "fd").iterdir())),
            threads=len(list((proc / "task").iterdir())),
            cpu_seconds=(int(times[11]) + int(times[12])) / TICKS,
            **json.loads(line),
        )

    def stop(self) -> int:
        """Let it stop in order; its exit code, -9 if it had to be killed."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        try:
            return self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            return -9
        finally:
            self.kill()

    def kill(self) -> None:
        """End it at once, if it still runs."""
        if self.alive:
            self._process.kill()
            self._process.wait()

    def log(self) -> str:
        """All that it has logged."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.stop()
        self.kill()
        self._log.close()

    def _read(self, seconds: float) -> bytes:
        """The next line; empty when there is none in time, or the process has ended."""
        pipe = self._process.stdout
        assert pipe is not None
        line, end = b"", time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(0.0, end - time.monotonic())):
                    return b""
                got = os.read(pipe.fileno(), 4096)
                if not got:
                    self._process.wait()
                    return b""
                line += got
        return line
