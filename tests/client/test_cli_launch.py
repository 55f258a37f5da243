"""Servers that commands start, as processes of their own, and how those end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rondel.client import AttentionClient
from rondel.client.cli.launch import ServerProcess, server
from rondel.decoder.errors import ServerUnavailable
from rondel.server.config import ServerConfig

RONDEL = [sys.executable, "-m", "rondel.client.cli"]


def test_serve_says_where_and_stops_when_its_input_ends(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with server(f"--unix-path={path}", "--max-streams=7") as running:
        host, _, port = running.address.rpartition(":")
        assert host == "127.0.0.1"
        with (
            AttentionClient(running.address) as client,
            AttentionClient(f"unix:{path}") as other,
        ):
            assert client.info().max_streams == other.info().max_streams == 7
    with pytest.raises(ConnectionRefusedError), socket.create_connection((host, int(port)), timeout=5):
        pass


def test_a_server_of_our_own_takes_no_settings_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RONDEL_SERVE_CONFIG", "/nowhere/rondel.toml")
    monkeypatch.setenv("RONDEL_SERVE_MAX_STREAMS", "3")
    with server() as running, AttentionClient(running.address) as client:
        assert client.info().max_streams == ServerConfig().max_streams


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_stops_cleanly_on_a_signal(number: signal.Signals) -> None:
    command = [*RONDEL, "serve", "--port=0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert ready["pid"] == process.pid
        process.send_signal(number)
        _, log = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "Traceback" not in log


def test_server_that_fails_is_an_error_of_its_starter() -> None:
    with pytest.raises(ServerUnavailable, match="loopback"), server("--host=0.0.0.0"):
        pass


def test_server_process_ends_with_its_starter() -> None:
    script = (
        "import os, signal, tempfile\n"
        "from rondel.client.cli.launch import ServerProcess\n"
        "process = ServerProcess([], tempfile.TemporaryFile())\n"
        "print(process.address, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    starter = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert starter.returncode == -signal.SIGKILL
    host, _, port = starter.stdout.strip().rpartition(":")
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            return
        time.sleep(0.05)
    pytest.fail(f"the server at {host}:{port} is still there")


def test_stop_kills_a_server_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rondel.client.cli.launch.STOP_SECONDS", 0.5)
    with open(tmp_path / "log", "w+b") as log:
        process = ServerProcess([], log)
        os.kill(process.pid, signal.SIGSTOP)
        assert process.stop() == -signal.SIGKILL
        assert process.stop() == -signal.SIGKILL
