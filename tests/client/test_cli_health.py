"""``rondel health``: what it says, and the exit codes that probes go by."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from certificates import Authority
from typer.testing import CliRunner, Result

from rondel.client.cli.app import app
from rondel.client.cli.launch import ServerProcess, server

# It has servers of its own, without TLS.
pytestmark = pytest.mark.only_transport("tcp", "unix")

GENERATION = "rondel.v1.GenerationService"


def run(*args: str) -> Result:
    return CliRunner().invoke(app, ["health", *args])


def test_with_certificates(tmp_path: Path) -> None:
    authority = Authority()
    ca = authority.write(tmp_path)
    cert, key = authority.server().write(tmp_path, "server")
    own_cert, own_key = authority.client("prober").write(tmp_path, "client")
    tls = ["--tls-cert", cert, "--tls-key", key, "--tls-client-ca", ca]
    with server("--budget-bytes", str(16 << 20), *tls) as process:
        assert run(process.address, "--ca", ca, "--cert", own_cert, "--key", own_key).exit_code == 0
        assert run(process.address, "--ca", ca, "--timeout", "2").exit_code == 3  # it wants to know who asks
        assert run(process.address, "--timeout", "2").exit_code == 3


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, str]]:
    """A server, and its unix socket."""
    path = str(tmp_path_factory.mktemp("s") / "s")
    with server("--budget-bytes", str(16 << 20), "--unix-path", path) as process:
        yield process, f"unix:{path}"


def test_a_server_that_serves_is_exit_code_0(running: tuple[ServerProcess, str]) -> None:
    process, unix = running
    for target in (process.address, unix):
        result = run(target)
        assert (result.exit_code, result.stdout, result.stderr) == (0, "", "SERVING\n")
        result = run(target, "--json", "--service", "liveness")
        said = json.loads(result.stdout)
        assert (result.exit_code, said["status"], said["service"]) == (0, "SERVING", "liveness")
        assert 0 < said["seconds"] < 60
        assert (said["target"], said["reason"]) == (target, "")


@pytest.mark.parametrize(
    ("service", "status"), [(GENERATION, "NOT_SERVING"), ("rondel.v1.Nothing", "SERVICE_UNKNOWN")]
)
def test_another_answer_is_exit_code_1(running: tuple[ServerProcess, str], service: str, status: str) -> None:
    result = run(running[0].address, "--json", "--service", service)
    assert (result.exit_code, json.loads(result.stdout)["status"]) == (1, status)


def test_a_server_of_something_else_is_exit_code_1() -> None:
    with futures.ThreadPoolExecutor(1) as pool:
        other = grpc.server(pool)
        port = other.add_insecure_port("127.0.0.1:0")
        other.start()
        result = run(f"127.0.0.1:{port}")
        other.stop(None).wait()
    assert result.exit_code == 1
    assert result.stderr.startswith("UNIMPLEMENTED: ")


@contextmanager
def silence() -> Iterator[str]:
    """An address where connections are taken, and nothing is said."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield "{}:{}".format(*listening.getsockname())


def test_nobody_there_and_nobody_answering_are_exit_code_3() -> None:
    with silence() as target:
        result = run(target, "--timeout", "0.2", "--json")
        assert (result.exit_code, json.loads(result.stdout)["status"]) == (3, "UNREACHABLE")
    result = run(target)
    assert result.exit_code == 3
    assert result.stderr.startswith("UNREACHABLE: ")


@pytest.mark.parametrize(
    "args",
    [
        ["nonsense"],
        ["--timeout", "0"],
        ["--cert", "x"],
        ["--ca", "/nowhere/ca.pem"],
        ["--cert", "x", "--key", "y"],
    ],
)
def test_wrong_usage_is_exit_code_2(args: list[str]) -> None:
    assert run(*args).exit_code == 2


def test_it_is_a_command_of_the_shell(running: tuple[ServerProcess, str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rondel.client.cli", "health", running[0].address]
    assert subprocess.run(command, cwd=tmp_path, timeout=60, check=False).returncode == 0
