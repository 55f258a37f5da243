"""``rondel streams``: whole files or none, and handles that stay."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from transports import to
from typer.testing import CliRunner, Result

from rondel.client import AttentionClient
from rondel.client.cli.app import app
from rondel.client.cli.streams import replaced
from rondel.decoder.cache.arena import Arena
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec

SPEC = StreamSpec.uniform(layers=2, query_heads=2, kv_heads=2, head_dim=32, max_length=9000)


def run(*args: object) -> Result:
    return CliRunner().invoke(app, ["streams", *map(str, args)])


def snapshot(tokens: int = 300) -> bytes:
    rng, file = np.random.default_rng(0), io.BytesIO()
    with DecoderSession(SPEC, Arena(budget=64 << 20)) as session:
        session.append_all(*rng.standard_normal((2, 2, tokens, 2, 32), np.float32))
        session.snapshot(file)
    return file.getvalue()


RAW = snapshot()


def test_there_and_back(address: str, tmp_path: Path) -> None:
    source, target = tmp_path / "in.rondel", tmp_path / "out.rondel"
    source.write_bytes(RAW)
    target.write_bytes(b"older")
    result = run("import", source, "--server", address)
    assert result.exit_code == 0, result.output
    handle = result.stdout.strip()
    assert handle
    assert "\n" not in handle
    result = run("export", handle, target, "--server", address)
    assert (result.exit_code, result.stdout) == (0, "")
    assert target.read_bytes() == RAW
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.rondel", "out.rondel"]


def test_json(address: str, tmp_path: Path) -> None:
    file = tmp_path / "stream"
    file.write_bytes(RAW)
    made = json.loads(run("import", file, "--server", address, "--json").stdout)
    assert (made["length"], made["generation"]) == (300, 0)
    done = json.loads(run("export", made["handle"], file, "--server", address, "--json").stdout)
    assert done == {"handle": made["handle"], "file": str(file), "bytes": len(RAW)}


def piped(tmp_path: Path, *args: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "rondel.client.cli", "streams", *args]
    return subprocess.run(command, cwd=tmp_path, input=data, capture_output=True, timeout=60, check=False)


def test_standard_output_and_input(address: str, tmp_path: Path) -> None:
    imported = piped(tmp_path, "import", "-", "--server", address, data=RAW)
    assert imported.returncode == 0, imported.stderr
    handle = imported.stdout.decode().strip()
    exported = piped(tmp_path, "export", handle, "-", "--server", address)
    assert exported.returncode == 0, exported.stderr
    assert exported.stdout == RAW
    assert list(tmp_path.iterdir()) == []
    with_json = piped(tmp_path, "export", handle, "-", "--server", address, "--json")
    assert (with_json.returncode, with_json.stdout) == (2, b"")
    assert b"--json" in with_json.stderr
    assert piped(tmp_path, "export", handle, "./-", "--server", address).returncode == 0
    assert (tmp_path / "-").read_bytes() == RAW


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["export", "none-such", "FILE"], 1, "no stream"),
        (["export", "x", "."], 2, "is no file"),
        (["export", "x", "none/FILE"], 1, "No such file"),
        (["export", "x", "FILE", "--server", "nonsense"], 2, "target must be"),
        (["export", "x", "FILE", "--timeout", "0"], 2, "timeout must be"),
        (["export", "x", "FILE", "--server", "127.0.0.1:1", "--timeout", "0.2"], 1, "127.0.0.1:1"),
        (["import", "FILE"], 1, "No such file"),
        (["import", "BROKEN"], 1, "ends after"),
        (["import", "GOOD", "--projections", "none-such"], 1, "projections"),
    ],
)
def test_what_goes_wrong(address: str, tmp_path: Path, args: list[str], code: int, words: str) -> None:
    (tmp_path / "BROKEN").write_bytes(RAW[:-5])
    (tmp_path / "GOOD").write_bytes(RAW)
    before = sorted(tmp_path.iterdir())
    server = [] if "--server" in args else ["--server", address]
    done = subprocess.run(
        [sys.executable, "-m", "rondel.client.cli", "streams", *args, *server],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith("error: ")
    assert words in done.stderr
    assert done.stdout == ""
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("number", "code", "left"), [(signal.SIGINT, 130, 0), (signal.SIGTERM, 143, 0), (signal.SIGKILL, -9, 1)]
)
def test_an_export_that_is_ended_leaves_the_older_file(
    tmp_path: Path, number: int, code: int, left: int
) -> None:
    target = tmp_path / "stream"
    target.write_bytes(b"older")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        process = subprocess.Popen(
            [sys.executable, "-m", "rondel.client.cli", "streams", "export", "x", str(target),
             "--server", f"127.0.0.1:{silent.getsockname()[1]}"],
            stderr=subprocess.PIPE, env={**os.environ, "PYTHONSAFEPATH": "1"},
        )  # fmt: skip
        silent.accept()[0].close()
        assert len(list(tmp_path.iterdir())) == 2
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == code, errors
    assert len(list(tmp_path.iterdir())) == 1 + left
    assert target.read_bytes() == b"older"


def test_a_file_takes_its_place_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(TypeError), replaced(path) as file:
        file.write(b"half" if file.tell() else "text")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
    with replaced(path) as file:
        file.write(b"whole")
        assert not path.exists()
    assert path.read_bytes() == b"whole"


def test_an_imported_stream_outlives_the_command(address: str, tmp_path: Path) -> None:
    (tmp_path / "stream").write_bytes(RAW)
    with AttentionClient(address, **to(address)) as client:
        before = client.info().streams
        assert run("import", tmp_path / "stream", "--server", address).exit_code == 0
        assert client.info().streams == before + 1
