"""``rondel arena``: what a file holds, whether it is sound, and removing it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from rondel.client.cli.app import app
from rondel.decoder.cache.arena import Arena
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec

SPEC = StreamSpec.uniform(layers=2, query_heads=2, kv_heads=2, head_dim=32, max_length=900)
BUDGET = 8 << 20


def run(*args: object, text: str = "") -> Result:
    return CliRunner().invoke(app, ["arena", *map(str, args)], input=text)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "arena"
    arena = Arena(BUDGET, path=path)
    rng = np.random.default_rng(0)
    for tag in (b'{"handle":"h1","kind":"?"}', b"plain \xff"):
        session = DecoderSession(SPEC, arena, tag=tag)
        session.append_all(*rng.standard_normal((2, 2, 300, 2, 32), np.float32))
    session.seal()
    arena.close()
    return path


def test_status_names_the_streams_and_changes_nothing(path: Path) -> None:
    before = path.read_bytes()
    result = run("status", path, "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["budget"] == BUDGET
    assert report["damaged_units"] == 0
    one, two = report["streams"]
    assert (one["tag"], one["length"], one["layers"], one["reason"]) == ("h1", 300, 2, "")
    assert (two["tag"], two["sealed"]) == ("plain \\xff", True)
    shown = run("status", path).stdout
    assert "h1" in shown
    assert "sealed" in shown
    assert path.read_bytes() == before


def test_verify_finds_damage_by_tokens(path: Path) -> None:
    assert run("verify", path).exit_code == 0
    raw = bytearray(path.read_bytes())
    used = np.flatnonzero(np.frombuffer(raw, np.uint8)[2 << 20 : 4 << 20])
    raw[(2 << 20) + int(used[100])] ^= 4
    path.write_bytes(raw)
    result = run("verify", path, "--json")
    assert result.exit_code == 1
    reasons = [stream["reason"] for stream in json.loads(result.stdout)["streams"]]
    assert [bool(reason) for reason in reasons].count(True) == 1
    assert "not what was stored" in "".join(reasons)
    assert "1 of them damaged" in run("verify", path).stdout
    assert run("status", path).exit_code == 0, "status does not read tokens"


def test_one_in_use_is_neither_shown_nor_removed(path: Path) -> None:
    arena = Arena(BUDGET, path=path)
    for command in (["status", path], ["verify", path], ["clear", path, "--yes"]):
        result = run(*command)
        assert result.exit_code == 1
        assert "in use" in result.stderr
    arena.close()
    assert path.exists()


def test_clear_asks_and_removes(path: Path) -> None:
    assert run("clear", path, text="n\n").exit_code == 2
    assert path.exists()
    result = run("clear", path, "--yes", "--json")
    assert json.loads(result.stdout) == {"file": str(path), "bytes": (2 << 20) + BUDGET}
    assert not path.exists()
    assert run("clear", path, "--yes").exit_code == 1


def test_clear_removes_a_damaged_one_but_nothing_else(path: Path, tmp_path: Path) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw[:20] + b"?" + raw[21:5000])
    assert "damaged" in run("status", path).stderr
    assert run("clear", path, "--yes").exit_code == 0
    other = tmp_path / "letters"
    other.write_text("dear sir")
    result = run("clear", other, "--yes")
    assert result.exit_code == 1
    assert other.read_text() == "dear sir"


@pytest.mark.parametrize("command", ["status", "verify", "clear"])
def test_what_is_not_there(tmp_path: Path, command: str) -> None:
    result = run(command, tmp_path / "none", *(["--yes"] if command == "clear" else []))
    assert result.exit_code == 1
    assert result.stderr.startswith("error:")
    assert not (tmp_path / "none").exists()


def test_wrong_usage(path: Path) -> None:
    assert run("verify", path, "--verify", "most").exit_code == 2
