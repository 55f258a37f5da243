"""Settings from flags, the environment and a file: which one counts, and what is wrong with the others."""

import os
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from rondel.decoder.errors import InvalidSpec
from rondel.server.config import ServerConfig
from rondel.server.settings import NAMES, load


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rondel.toml"
    path.write_text('max_streams = 1\nqueue_bytes = 2000\nlog_level = "debug"\nport = 7500\n')
    return path


def test_flags_count_before_environment_before_file_before_defaults(file: Path) -> None:
    environment = {"RONDEL_SERVE_MAX_STREAMS": "2", "RONDEL_SERVE_QUEUE_BYTES": "3000", "RONDEL_TIER": "v3"}
    settings = load({"max_streams": 3}, file=str(file), environment=environment)
    config = settings.config
    assert (config.max_streams, config.queue_bytes, config.log_level) == (3, 3000, "debug")
    assert config.max_step_items == ServerConfig().max_step_items
    assert settings.sources["max_streams"] == "flag --max-streams"
    assert settings.sources["queue_bytes"] == "environment RONDEL_SERVE_QUEUE_BYTES"
    assert settings.sources["log_level"] == str(file)
    assert settings.sources["max_step_items"] == "default"


def test_the_environment_can_name_the_file_and_a_flag_another(file: Path, tmp_path: Path) -> None:
    environment = {"RONDEL_SERVE_CONFIG": str(file)}
    assert load({}, file=None, environment=environment).config.max_streams == 1
    other = tmp_path / "other.toml"
    other.write_text("max_streams = 9\n")
    settings = load({}, file=str(other), environment=environment)
    assert (settings.config.max_streams, settings.config.log_level) == (9, "info")
    assert load({}, file=None, environment={}).config == ServerConfig()


def test_every_kind_of_value_from_the_environment() -> None:
    environment = {
        "RONDEL_SERVE_PORT": "",
        "RONDEL_SERVE_UNIX_PATH": "rondel.sock",
        "RONDEL_SERVE_REFLECTION": "False",
        "RONDEL_SERVE_TRACING": "1",
        "RONDEL_SERVE_DRAIN_SECONDS": "2.5",
        "RONDEL_SERVE_PROJECTIONS": os.pathsep.join(["a=x", "b=y"]),
    }
    config = load({}, file=None, environment=environment).config
    assert (config.port, config.unix_path) == (None, "rondel.sock")
    assert (config.reflection, config.tracing, config.drain_seconds) == (False, True, 2.5)
    assert config.projections == ("a=x", "b=y")


def test_every_kind_of_value_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(
        'port = ""\nunix_path = "s"\ntracing = true\ndrain_seconds = 2\nprojections = ["a=x", "b=y"]\n'
    )
    config = load({}, file=str(path), environment={}).config
    assert (config.port, config.unix_path, config.tracing) == (None, "s", True)
    assert (config.drain_seconds, config.projections) == (2.0, ("a=x", "b=y"))


def test_what_is_printed_reads_back_as_the_same(tmp_path: Path) -> None:
    odd = 'a "quoted" \\ path\twith é and \x7f'
    given = {
        "port": None,
        "unix_path": "s",
        "arena_file": odd,
        "projections": ["n=f", "m=g"],
        "tracing": True,
    }
    settings = load(given, file=None, environment={"RONDEL_SERVE_DRAIN_SECONDS": "0.1"})
    path = tmp_path / "printed.toml"
    path.write_text(settings.toml())
    again = load({}, file=str(path), environment={})
    assert again.config == settings.config
    assert set(tomllib.loads(settings.toml())) == {field.name for field in fields(ServerConfig)} == set(NAMES)
    lines = settings.toml().splitlines()
    assert 'port = ""  # flag --port' in lines
    assert "drain_seconds = 0.1  # environment RONDEL_SERVE_DRAIN_SECONDS" in lines
    assert "max_streams = 4096  # default" in lines


@pytest.mark.parametrize(
    ("text", "field", "words"),
    [
        ("max_stream = 3", "max_stream", "unknown setting 'max_stream' (FILE); the nearest is max_streams"),
        ("[serve]\nport = 3", "serve", "unknown setting 'serve' (FILE)"),
        ('max_streams = "3"', "max_streams", "max_streams must be an integer, got '3' (FILE)"),
        ("max_streams = 3.0", "max_streams", "max_streams must be an integer, got 3.0 (FILE)"),
        ("max_streams = true", "max_streams", "max_streams must be an integer, got True (FILE)"),
        ("max_streams = 0", "max_streams", "max_streams must be an integer from 1 to 16777216, got 0 (FILE)"),
        ("tracing = 1", "tracing", "tracing must be true or false, got 1 (FILE)"),
        ('max_streams = ""', "max_streams", "got '' (FILE)"),
        ("projections = [1]", "projections", "projections must be a list of texts, got [1] (FILE)"),
        ('log_level = "loud"', "log_level", "log_level must be one of debug, info, warning, error"),
        ("drain_seconds = nan", "drain_seconds", "drain_seconds must be from 0 to 1e8 seconds, got nan"),
        ("port = ", "config", "FILE is not TOML"),
        ("port = 1\nport = 2", "config", "FILE is not TOML"),
    ],
)
def test_a_file_that_cannot_be(tmp_path: Path, text: str, field: str, words: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(text)
    with pytest.raises(InvalidSpec) as caught:
        load({}, file=str(path), environment={})
    assert words.replace("FILE", str(path)) in caught.value.message
    assert caught.value.field == field


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"cannot read .*: No such file or directory"):
        load({}, file=str(tmp_path / "nowhere.toml"), environment={})
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidSpec, match="is not TOML"):
        load({}, file=str(tmp_path / "binary"), environment={})


@pytest.mark.parametrize(
    ("variable", "text", "words"),
    [
        ("MAX_STREAMZ", "3", "unknown setting 'max_streamz'.*the nearest is RONDEL_SERVE_MAX_STREAMS"),
        ("MAX_STREAMS", "three", "max_streams must be an integer, got 'three'"),
        ("MAX_STREAMS", "0", r"from 1 to 16777216, got 0 \(environment RONDEL_SERVE_MAX_STREAMS\)"),
        ("TRACING", "yes", "tracing must be true or false, got 'yes'"),
        ("DRAIN_SECONDS", "soon", "drain_seconds must be a number"),
        ("MAX_STREAMS", "", "max_streams must be an integer, got ''"),
    ],
)
def test_an_environment_that_cannot_be(variable: str, text: str, words: str) -> None:
    with pytest.raises(InvalidSpec, match=words):
        load({}, file=None, environment={f"RONDEL_SERVE_{variable}": text})
