"""The examples of docs/interoperability.md run, each on its own stack."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from foreign import GENERATED, GRPCLIB, HERE, ROOT, given

from rondel.client.cli.launch import ServerProcess

pytestmark = pytest.mark.interop


def example(language: str, running: ServerProcess) -> str:
    page = (ROOT / "docs/interoperability.md").read_text(encoding="utf-8")
    (code,) = re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)
    host, _, port = running.address.rpartition(":")
    made = (
        str(code).replace("127.0.0.1:7411", running.address).replace('"127.0.0.1", 7411', f'"{host}", {port}')
    )
    assert "7411" not in made
    return made


def test_the_one_for_node(running: ServerProcess, tmp_path: Path) -> None:
    given("node-protos")
    # Where the packages are found, and the protos.
    (tmp_path / "node_modules").symlink_to(HERE / "node_modules")
    (tmp_path / "proto").symlink_to(ROOT / "proto")
    (tmp_path / "example.mjs").write_text(example("js", running), encoding="utf-8")
    done = subprocess.run(["node", "example.mjs"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("1x9x64 576 0\n1x9x64 576 1\n", "")


def test_the_one_for_grpclib(running: ServerProcess, tmp_path: Path) -> None:
    given("grpclib")
    (tmp_path / "example.py").write_text(example("python", running), encoding="utf-8")
    environment = {"PYTHONPATH": str(GENERATED)}
    done = subprocess.run(
        [GRPCLIB, "example.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("[1, 8, 64] 0.5\n", "")
