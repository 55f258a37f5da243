"""``rondel serve`` and its settings, without a server."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rondel.client.cli.app import app


def run(*args: str, **environment: str) -> Result:
    return CliRunner().invoke(app, ["serve", *args], env=environment)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rondel.toml"
    path.write_text("max_streams = 1\nmax_step_items = 2\nreflection = true\n")
    return path


def test_print_config_tells_every_value_and_its_source(file: Path) -> None:
    result = run(
        f"--config={file}",
        "--max-streams=7",
        "--no-reflection",
        "--print-config",
        RONDEL_SERVE_MAX_STREAMS="6",
        RONDEL_SERVE_MAX_GENERATIONS="5",
    )
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert "max_streams = 7  # flag --max-streams" in lines
    assert "max_generations = 5  # environment RONDEL_SERVE_MAX_GENERATIONS" in lines
    assert f"max_step_items = 2  # {file}" in lines
    assert "reflection = false  # flag --reflection" in lines
    assert "queue_bytes = 67108864  # default" in lines
    assert tomllib.loads(result.stdout)["max_step_items"] == 2


def test_a_flag_with_its_defaults_value_counts_all_the_same(file: Path) -> None:
    shown = run(f"--config={file}", "--max-streams=4096", "--print-config").stdout
    assert "max_streams = 4096  # flag --max-streams" in shown


def test_no_tcp_is_a_port_that_is_not_set() -> None:
    shown = run("--no-tcp", "--unix-path=s", "--print-config", RONDEL_SERVE_PORT="5").stdout
    assert 'port = ""  # flag --port' in shown.splitlines()


def test_what_is_given_many_times() -> None:
    shown = run("--projections=a=f", "--projections=b=g", "--print-config").stdout
    assert tomllib.loads(shown)["projections"] == ["a=f", "b=g"]


def test_check_config(file: Path) -> None:
    assert run(f"--config={file}", "--check-config").exit_code == 0
    file.write_text("max_streams = 1\nmax_step_item = 2\n")
    result = run(f"--config={file}", "--check-config")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.strip() == (
        f"error: unknown setting 'max_step_item' ({file}); the nearest is max_step_items"
    )


def test_an_unknown_variable_is_wrong_usage() -> None:
    result = run("--check-config", RONDEL_SERVE_MAX_STREAM="3")
    assert result.exit_code == 2
    assert "the nearest is RONDEL_SERVE_MAX_STREAMS" in result.stderr
