"""The processes of a run, seen from the one that started them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait
from typing import Final

from rondel.client.load import worker
from rondel.client.load.check import Findings
from rondel.client.load.job import Done, Failed, Job, Message, Opened, Progress, Ready
from rondel.decoder.errors import from_reason

END_SECONDS: Final = 15.0
"""For a worker to close its streams when the run is broken off."""

THREADS: Final = "RONDEL_THREADS"


class Member:
    """One process, and what it has said."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.ready: Ready | None = None
        self.progress = Progress(0, 0, 0, Findings(), 0.0, 0.0)
        self.started = False
        self.done: Done | None = None
        self.handles: list[str] = []
        """Streams that it has opened; told by victims only."""
        self.gone = False
        """Whether it has closed its end of the pipe."""
        # spawn: gRPC does not survive a fork, and neither do the kernels' threads.
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=worker.main, args=(job, theirs), name=job.name, daemon=True)
        try:
            with _one_thread():
                self._process.start()
        finally:
            theirs.close()

    @property
    def pipe(self) -> Pipe:
        """What it says; readable at its end as well."""
        return self._pipe

    def start(self, at: float) -> None:
        """Let it begin at a time of ``time.perf_counter``, which on Linux all processes share."""
        self.started = True
        self._tell(at)

    def finish(self) -> None:
        """Let it end its load now, and tell what it has measured."""
        self.go_on()
        self._tell(None)

    @property
    def findings(self) -> Findings:
        """What was found right and wrong; of one that was killed, up to its last word."""
        return self.progress.findings if self.done is None else self.done.findings

    def hear(self) -> None:
        """Take the next message. Raises what a worker says that it failed with."""
        try:
            message: Message = self._pipe.recv()
        except (EOFError, OSError):
            self.gone = True
            return
        match message:
            case Ready():
                self.ready = message
            case Progress():
                self.progress = message
            case Opened():
                self.handles.append(message.handle)
            case Done():
                self.done = message
            case Failed():
                raise from_reason(message.reason, message.message, message.facts)

    def stop(self) -> None:
        """Let it stand still, as a client that hangs does: it reads nothing, its connection stays."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let a stopped one go on."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once, in the middle of whatever it does, and take its last words."""
        self._signal(signal.SIGKILL)
        self._process.join()
        while not self.gone:
            self.hear()

    def let_go(self) -> None:
        """Have it close its streams and end."""
        self.go_on()
        self._pipe.close()

    def close(self) -> None:
        """Wait for its end; kill it when that takes too long."""
        self._process.join(END_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()

    def _tell(self, message: float | None) -> None:
        with suppress(OSError):  # it has ended: that is read from the pipe
            self._pipe.send(message)

    def _signal(self, number: int) -> None:
        pid = self._process.pid
        if pid is not None and self._process.is_alive():
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def hear_all(members: list[Member], until: float) -> None:
    """Take what the members say until one has said something, or a time of ``time.perf_counter``."""
    listening = {member.pipe: member for member in members if not member.gone}
    for pipe in wait(list(listening), max(0.0, until - time.perf_counter())):
        listening[pipe].hear()  # type: ignore[index]  # nothing but our pipes is waited for


@contextmanager
def _one_thread() -> Iterator[None]:
    """A process started within the block compares answers with one thread: the others are the server's."""
    before = os.environ.get(THREADS)
    os.environ[THREADS] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[THREADS]
        else:
            os.environ[THREADS] = before
