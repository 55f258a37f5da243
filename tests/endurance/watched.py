"""A server in a process of its own, and what can be seen of it from outside."""

from __future__ import annotations

import http.client
import json
import os
import re
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

import grpc

from rondel.v1 import attention_pb2 as pb
from rondel.v1.attention_pb2_grpc import AttentionServiceStub

PAGE: Final = os.sysconf("SC_PAGE_SIZE")
TICKS: Final = os.sysconf("SC_CLK_TCK")
START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 30.0
COMPLAINT: Final = re.compile(
    r"\b(ERROR|CRITICAL) [\w.]+: |Traceback|unexpected error|never retrieved|Exception ignored"
)
OWN_CHANNEL: Final = (("grpc.use_local_subchannel_pool", 1),)


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
    streams: int
    reserved: int
    """Bytes of the budget that streams have claimed."""
    resident: int
    """Bytes of pages that hold tokens."""


class Watched:
    """A ``rondel serve``, running while the block runs; ``options`` are its flags, with underscores."""

    def __init__(self, **options: object) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the server
        command = [sys.executable, "-m", "rondel.client.cli", "serve", "--json", "--stop-with-stdin"]
        for name, value in {"port": 0, "admin_port": 0, **options}.items():
            values = value if isinstance(value, list) else [value]
            command += [f"--{name.replace('_', '-')}={each}" for each in values]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, "PYTHONSAFEPATH": "1"},
            start_new_session=True,  # Ctrl-C is for us, who then stop it
        )
        started = json.loads(self._first_line() or "{}")
        if not started:
            self.kill()
            raise RuntimeError(f"the server did not start: {self.log()}")
        self.addresses: list[str] = started["addresses"]
        self.address = self.addresses[0]
        self._admin = started["admin"]
        # Open all the time, so that it is in every count of descriptors.
        self._channel = grpc.insecure_channel(self.address, options=OWN_CHANNEL)
        self._stub = AttentionServiceStub(self._channel)
        self.vitals()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def vitals(self, seconds: float = 30.0) -> Vitals:
        """Its numbers now. Raises grpc.RpcError or OSError if it does not answer for so long."""
        proc = Path(f"/proc/{self.pid}")
        times = (proc / "stat").read_text().rpartition(")")[2].split()
        seen = {
            "rss": int((proc / "statm").read_text().split()[1]) * PAGE,
            "fds": len(list((proc / "fd").iterdir())),
            "threads": len(list((proc / "task").iterdir())),
        }
        info = self._stub.GetServerInfo(pb.GetServerInfoRequest(), timeout=seconds)
        return Vitals(
            **seen,
            cpu_seconds=(int(times[11]) + int(times[12])) / TICKS,
            tasks=self._tasks(seconds),
            streams=info.streams,
            reserved=info.memory.reserved,
            resident=info.memory.resident,
        )

    def settled(self, like: Vitals, seconds: float) -> Vitals:
        """Its numbers as soon as nothing is left of what came after ``like``, or after so long."""
        end = time.monotonic() + seconds
        while True:
            now = self.vitals()
            more = (now.fds > like.fds, now.tasks > like.tasks, now.reserved > like.reserved)
            if not any(more) or time.monotonic() >= end:
                return now
            time.sleep(0.1)

    def stop(self) -> int:
        """Let it stop in order; its exit code, -9 if it had to be killed."""
        self._channel.close()
        self._close_pipes()
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
        self._close_pipes()

    def log(self) -> str:
        """All that it has logged."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def complaints(self) -> list[str]:
        """Lines of its log that no client's doing explains."""
        return [line for line in self.log().splitlines() if COMPLAINT.search(line)]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.stop()
        self.kill()
        self._channel.close()
        self._log.close()

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    def _tasks(self, seconds: float) -> int:
        connection = http.client.HTTPConnection(self._admin, timeout=seconds)
        try:
            connection.request("GET", "/debug/tasks")
            reply = connection.getresponse()
            text = reply.read().decode()
            if reply.status != 200:
                raise OSError(f"the admin port answers {reply.status}: {text}")
            return sum(int(line.split()[0]) for line in text.splitlines()) - 1  # the one that counts
        finally:
            connection.close()

    def _first_line(self) -> bytes:
        """What it says when it serves; empty when it says nothing in time, or has ended."""
        pipe = self._process.stdout
        line, end = b"", time.monotonic() + START_SECONDS
        with selectors.DefaultSelector() as selector:
            assert pipe is not None
            selector.register(pipe, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(0.0, end - time.monotonic())):
                    return b""
                got = os.read(pipe.fileno(), 4096)
                if not got:
                    return b""
                line += got
        return line
