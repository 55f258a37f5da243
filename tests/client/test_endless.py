"""``rondel endless``, whole, with a tiny model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tinygguf
from typer.testing import CliRunner, Result

from rondel.client.cli.app import app

SIZES = ["--window=40", "--sinks=4", "--segment=250", "--samples=5"]
PPL = ["ppl_stream", "ppl_recomputed", "ppl_no_sinks"]


def run(*args: object) -> Result:
    return CliRunner().invoke(app, ["endless", *map(str, args)])


def refused(result: Result, code: int) -> str:
    assert (result.exit_code, result.stdout) == (code, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line


def test_json_is_one_object_with_everything_measured(tiny_model: Path, book: Path) -> None:
    result = run(f"--text={book}", f"--model={tiny_model}", *SIZES, "--json")
    assert result.exit_code == 0, result.stderr
    (line,) = result.stdout.splitlines()
    report: dict[str, Any] = json.loads(line)
    assert (report["window"], report["sinks"], report["storage"]) == (40, 4, "int8")
    assert report["tokens"] > 500
    first, second, last = report["segments"]
    assert (first["start"], second["start"], last["stop"]) == (0, 250, report["tokens"])
    for row in (report, *report["segments"]):
        assert all(row[name] > 1.0 for name in PPL)
        assert row["ppl_ratio"] == pytest.approx(row["ppl_stream"] / row["ppl_recomputed"])
        assert row["ppl_ratio_no_sinks"] == pytest.approx(row["ppl_no_sinks"] / row["ppl_recomputed"])
    assert report["samples"] == 15
    assert [row["samples"] for row in report["segments"]] == [5, 5, 5]
    assert report["resident_bytes"] == report["at_first_wrap"]["resident_bytes"] > 0
    assert report["rss_bytes"] > 10 << 20
    assert report["token_time_ratio"] == report["token_seconds"] / report["token_seconds_fresh"] > 0.0


def test_a_stream_that_never_goes_round_says_so(tiny_model: Path, book: Path) -> None:
    result = run(f"--text={book}", f"--model={tiny_model}", *SIZES, "--tokens=60")
    assert result.exit_code == 0, result.stderr
    *table, line = result.stdout.splitlines()
    report = json.loads(line)
    assert (report["tokens"], report["at_first_wrap"]) == (60, None)
    assert [(row["start"], row["stop"]) for row in report["segments"]] == [(0, 60)]
    shown = " ".join(" ".join(table).split())  # a long title is broken into lines
    for text in ("60 tokens of book.txt", "no sinks", "0 to 59", "the ring did not go round"):
        assert text in shown


def test_the_table_has_a_row_per_segment_and_json_comes_last(tiny_model: Path, book: Path) -> None:
    result = run(f"--text={book}", f"--model={tiny_model}", *SIZES)
    *table, line = result.stdout.splitlines()
    report, shown = json.loads(line), "\n".join(table)
    for text in ("0 to 249", "250 to 499", "after the first round", f"{report['ppl_ratio']:.4f}"):
        assert text in shown


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--text=/nowhere/book.txt"], "the text cannot be read"),
        (["--text=BOOK", "--sinks=129"], "sinks must be"),
        (["--text=BOOK", "--storage=int9"], "storage must be one of"),
    ],
)
def test_wrong_options_are_wrong_usage_before_any_work(book: Path, args: list[str], text: str) -> None:
    args = [arg.replace("BOOK", str(book)) for arg in args]
    assert text in refused(run("--model=/nowhere/x.gguf", *args), 2)


@pytest.mark.parametrize("args", [["--window=0"], ["--sinks=-1"], ["--samples=0"], ["--tokens=1"]])
def test_wrong_numbers_are_wrong_usage(book: Path, args: list[str]) -> None:
    result = run(f"--text={book}", "--model=/nowhere/x.gguf", *args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert args[0].partition("=")[0] in result.stderr


def test_what_text_or_model_show_to_be_wrong_fails(tiny_model: Path, book: Path, tmp_path: Path) -> None:
    model, text = f"--model={tiny_model}", f"--text={book}"
    assert "expected at least 100000" in refused(run(text, model, *SIZES, "--tokens=100000"), 1)
    assert "expected more than window and sinks, 44" in refused(run(text, model, *SIZES, "--tokens=44"), 1)
    small = tinygguf.write(tmp_path / "small.gguf", context=43)
    assert "context of 43" in refused(run(text, f"--model={small}", *SIZES), 1)
