"""Ctrl-C, whenever it comes: exit code 130 at once, no traceback, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.alone

RONDEL = [sys.executable, "-m", "rondel.client.cli"]
ENDLESS = "--max-tokens=90000"
PROMPT_SECONDS = 1.5
"""Within a second, with something for a machine that others use as well."""

NOISE = ("Traceback", "error:", "Exception", "Aborted")


@contextmanager
def started(*command: str) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def interrupt(process: subprocess.Popen[str], number: int = signal.SIGINT) -> float:
    """Interrupts and returns the seconds until the end, which must be a quiet one."""
    began = time.monotonic()
    process.send_signal(number)
    _, log = process.communicate(timeout=60)
    took = time.monotonic() - began
    assert process.returncode == 128 + number, log
    assert not any(line.startswith(NOISE) for line in log.splitlines()), log
    return took


def children(parent: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def gone(process: int) -> bool:
    """Whether a process has ended. An orphan is somebody else's to reap."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


EARLY = textwrap.dedent(
    """
    import os, signal, sys
    from rondel.client.cli.main import main

    class Interruption:
        # Comes just when the module of this name is looked for.
        def find_spec(self, name, path, target=None):
            if name == sys.argv[0]:
                os.kill(os.getpid(), signal.SIGINT)

    sys.argv = sys.argv[1:]
    sys.meta_path.insert(0, Interruption())
    main()
    """
)


@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("typer", ["--help"]),
        ("rondel.client.cli.app", ["--version"]),
        ("rich.console", ["doctor"]),
        ("rondel.client.cli.download", ["model", "list"]),
        ("numpy", ["generate", "x"]),
        ("grpc", ["generate", "x"]),
        ("numpy.linalg", ["doctor"]),
        ("rondel.server.app", ["serve", "--port=0"]),
        ("grpc._cython.cygrpc", ["serve", "--port=0"]),
        ("tokenizers", ["serve", "--port=0"]),
        ("rondel.client.sync", ["demo", "--model=/nowhere/x.gguf"]),
    ],
)
def test_in_the_middle_of_an_import(module: str, command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EARLY, module, *command],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr.strip()) == (130, "")


@pytest.mark.parametrize("command", [["serve", "--port=0"], ["generate", "hi"], ["model", "list"]])
def test_at_any_moment_of_the_start(command: list[str], tiny_model: Path) -> None:
    if command[0] == "generate":
        command = [*command, f"--model={tiny_model}", ENDLESS]
    # A program that says when the interpreter is up; before that, no Python code of ours can help.
    script = "import sys, rondel.client.cli.main as m; sys.stderr.write('.'); sys.stderr.flush(); m.main()"
    for delay in (0.0, 0.03, 0.1, 0.2, 0.4, 0.7, 1.1):
        with started(sys.executable, "-c", script, *command) as process:
            assert process.stderr is not None
            assert process.stderr.read(1) == "."
            time.sleep(0.005 + delay)  # not for anything to happen: the moment is what varies
            process.send_signal(signal.SIGINT)
            _, log = process.communicate(timeout=60)
        assert "Traceback" not in log, (delay, log)
        # A server that is up stops in order, and that is no failure; a listing may be over already, and the
        # interpreter on its way out, without handlers.
        expected = {130} if command[0] == "generate" else {130, 0, -signal.SIGINT}
        assert process.returncode in expected, (delay, log)


@pytest.mark.alone
def test_of_a_generation_in_this_process(tiny_model: Path) -> None:
    """Again and again: most of the time is spent inside calls of the session."""
    for _ in range(12):
        with started(*RONDEL, "generate", "the other", f"--model={tiny_model}", ENDLESS) as process:
            assert process.stdout is not None
            assert process.stdout.read(40)
            assert interrupt(process) < PROMPT_SECONDS


INSIDE = textwrap.dedent(
    """
    import os, signal, sys
    from rondel.client.cli.main import main
    from rondel.decoder.errors import SessionBusy
    from rondel.decoder.session import DecoderSession

    def busy(self, *args):
        raise SessionBusy("another call is running in this session")

    whole = DecoderSession.step
    calls = []

    def step(self, *args, **options):
        calls.append(self)
        if len(calls) == 30:
            # As after an interrupt that came just when the session had noted its caller.
            DecoderSession.truncate = DecoderSession.close = busy
            os.kill(os.getpid(), signal.SIGINT)
        return whole(self, *args, **options)

    DecoderSession.step = step
    main()
    """
)


def test_inside_a_call_of_the_session(tiny_model: Path) -> None:
    """The session is then still busy for whoever cleans up: that error is not the one to report."""
    command = [sys.executable, "-c", INSIDE, "generate", "hi", f"--model={tiny_model}", ENDLESS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.strip()) == (130, "")


@pytest.mark.alone
@pytest.mark.parametrize("place", ["--remote-attention", "--server"])
def test_of_a_generation_with_a_server(place: str, tiny_model: Path, running: str) -> None:
    where = [place, f"--model={tiny_model}"] if place == "--remote-attention" else [place, running]
    with started(*RONDEL, "generate", "the other", *where, ENDLESS) as process:
        assert process.stdout is not None
        assert process.stdout.read(10)
        servers = children(process.pid)
        assert interrupt(process) < PROMPT_SECONDS
    assert all(map(gone, servers))


@pytest.mark.alone
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_of_a_demo_leaves_no_server(number: signal.Signals, tiny_model: Path) -> None:
    with started(*RONDEL, "demo", f"--model={tiny_model}", ENDLESS) as process:
        assert process.stdout is not None
        assert process.stdout.read(1)  # the answer has begun
        (server,) = children(process.pid)
        assert interrupt(process, number) < PROMPT_SECONDS
    assert gone(server)


@pytest.mark.alone
@pytest.mark.parametrize("delay", [0.0, 0.02, 0.3])
def test_of_a_demo_whose_server_is_starting(delay: float, tiny_model: Path) -> None:
    with started(*RONDEL, "demo", f"--model={tiny_model}", ENDLESS) as process:
        end = time.monotonic() + 30
        while not children(process.pid):
            assert time.monotonic() < end
            time.sleep(0.001)
        time.sleep(delay)
        (server,) = children(process.pid)
        assert interrupt(process) < PROMPT_SECONDS
    assert gone(server)


@pytest.mark.alone
def test_of_a_demo_whose_server_hangs(tiny_model: Path) -> None:
    with started(*RONDEL, "demo", f"--model={tiny_model}", ENDLESS) as process:
        assert process.stdout is not None
        assert process.stdout.read(1)
        (server,) = children(process.pid)
        os.kill(server, signal.SIGSTOP)
        assert interrupt(process) < PROMPT_SECONDS
    assert gone(server)


def test_that_is_ignored_stays_ignored(tiny_model: Path) -> None:
    """As for a background job of a script."""
    with started("/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh", *RONDEL, "generate", "the other",
                 f"--model={tiny_model}", "--max-tokens=300") as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0
