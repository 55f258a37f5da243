"""Start a server as a process of its own, on a free loopback port, and stop it for sure."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Final

from rondel.client.cli.signals import held_back
from rondel.decoder.errors import ServerUnavailable

START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 20.0

HURRIED_STOP_SECONDS: Final = 0.3
"""For a server that nobody waits for any more. Killing it loses nothing: its streams were this process's."""


class ServerProcess:
    """A ``rondel serve`` that has been started and has said where it listens.

    Raises:
        ServerUnavailable: it ended, or said nothing within ``START_SECONDS``.
    """

    def __init__(self, options: Sequence[str], log: IO[bytes]) -> None:
        self._log = log
        # Its standard input ends with this process, however that ends, so no server is left behind. It gets
        # a session of its own because Ctrl-C at the terminal is for us: we decide when it stops.
        command = [
            sys.executable,
            "-m",
            "rondel.client.cli",
            "serve",
            "--port=0",
            "--json",
            "--stop-with-stdin",
        ]
        with held_back() as release:
            self._process = subprocess.Popen(
                [*command, *options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=_environment(),
                start_new_session=True,
            )
            try:
                release()
                self.address = self._wait_until_ready()
            except BaseException:
                self.stop(hurry=True)
                raise

    def stop(self, *, hurry: bool = False) -> int:
        """Let the server finish and end; its exit code. Kills it when it takes too long.

        ``hurry`` lets it take ``HURRIED_STOP_SECONDS`` only, in place of ``STOP_SECONDS``.
        """
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            return self._process.wait(HURRIED_STOP_SECONDS if hurry else STOP_SECONDS)
        except subprocess.TimeoutExpired:
            return -signal.SIGKILL
        finally:
            # Also on a second Ctrl-C while waiting.
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._process.pid

    def last_words(self) -> str:
        """The last line that the server logged."""
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")

    def _wait_until_ready(self) -> str:
        pipe = self._process.stdout
        end = time.monotonic() + START_SECONDS
        line = b""
        with selectors.DefaultSelector() as selector:
            if pipe is not None:
                selector.register(pipe, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(0.0, end - time.monotonic())):
                    raise ServerUnavailable(f"the server did not start within {START_SECONDS:g} s")
                got = b"" if pipe is None else os.read(pipe.fileno(), 4096)
                if not got:
                    self._process.wait()
                    raise ServerUnavailable(f"the server did not start: {self.last_words()}")
                line += got
        return str(json.loads(line)["addresses"][0])


def _environment() -> dict[str, str]:
    """Ours, without settings: those are for a server that somebody runs, not for one of our own."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("RONDEL_SERVE_")}
    return {**ours, "PYTHONSAFEPATH": "1"}


@contextmanager
def server(*options: str) -> Iterator[ServerProcess]:
    """A server for as long as the block runs.

    Raises:
        ServerUnavailable: it did not start, or ended otherwise than with exit code 0.
    """
    with tempfile.TemporaryFile() as log:
        process = ServerProcess(options, log)
        try:
            yield process
        except BaseException:
            process.stop(hurry=True)
            raise
        code = process.stop()
        if code != 0:
            raise ServerUnavailable(f"the server ended with exit code {code}: {process.last_words()}")
