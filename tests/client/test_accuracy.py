"""``rondel accuracy``, whole, with a tiny model."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinygguf
from typer.testing import CliRunner, Result

from rondel.client.cli.accuracy_plot import figure
from rondel.client.cli.app import app
from rondel.decoder.lm.accuracy import COMPARED, Accuracy
from rondel.decoder.lm.distributions import Rows

SIZES = ["--context=40", "--chunks=3", "--greedy-tokens=12"]


def run(*args: object) -> Result:
    return CliRunner().invoke(app, ["accuracy", *map(str, args)])


def refused(result: Result, code: int) -> str:
    assert (result.exit_code, result.stdout) == (code, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line


def test_json_is_one_object_with_every_storage_type(tiny_model: Path, book: Path) -> None:
    result = run(f"--text={book}", f"--model={tiny_model}", *SIZES, "--json")
    assert result.exit_code == 0, result.stderr
    (line,) = result.stdout.splitlines()
    report: dict[str, dict[str, Any]] = json.loads(line)
    assert tuple(report) == COMPARED
    for facts in report.values():
        assert 0.0 < facts["kl_mean"] < facts["kl_max"] < 0.1
        assert 0.8 < facts["top1"] <= 1.0
        assert facts["ppl_delta"] == pytest.approx(facts["ppl"] / facts["ppl_float32"] - 1.0, abs=1e-9)
        assert 0 <= facts["first_divergence_median"] <= 12
        assert 4.0 < facts["bits_per_value"] < 16.0
        assert (facts["tokens"], facts["prompts"]) == (60, 3)
        assert facts["seconds"] > 0.0


def test_the_table_comes_first_and_json_last(tiny_model: Path, book: Path) -> None:
    result = run(f"--text={book}", f"--model={tiny_model}", *SIZES)
    *table, line = result.stdout.splitlines()
    report = json.loads(line)
    shown = "\n".join(table)
    assert "3 × 40 tokens of book.txt" in shown.replace("\n", " ")
    for name in ("int8", "same likeliest token", "perplexity", f"{report['int8']['kl_mean']:.6f}"):
        assert name in shown


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--text=/nowhere/book.txt"], "the text cannot be read: [Errno 2] No such file or directory"),
        (["--text=/"], "the text cannot be read: [Errno 21] Is a directory"),
        (["--text=BOOK", "--plot=/nowhere/plot.html"], "--plot must be a file in a folder that is there"),
        (["--text=BOOK", "--plot=/"], "--plot must be a file in a folder that is there"),
    ],
)
def test_wrong_files_are_wrong_usage_before_any_work(book: Path, args: list[str], text: str) -> None:
    args = [arg.replace("BOOK", str(book)) for arg in args]
    assert text in refused(run("--model=/nowhere/x.gguf", *args), 2)


def test_a_text_that_is_not_utf8_is_wrong_usage(book: Path) -> None:
    book.write_bytes(b"caf\xe9 au lait")
    assert "is not UTF-8: invalid continuation byte at byte 3" in refused(run(f"--text={book}"), 2)


@pytest.mark.parametrize("args", [["--context=1"], ["--chunks=0"], ["--greedy-tokens=0"], ["--chunks=many"]])
def test_wrong_numbers_are_wrong_usage(book: Path, args: list[str]) -> None:
    result = run(f"--text={book}", "--model=/nowhere/x.gguf", *args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert args[0].partition("=")[0] in result.stderr


def test_a_text_is_needed() -> None:
    result = run()
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--text" in result.stderr


def test_a_plot_without_plotly_is_refused_before_any_work(
    book: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    result = run(f"--text={book}", "--model=/nowhere/x.gguf", f"--plot={tmp_path / 'plot.html'}")
    assert "--plot needs plotly" in refused(result, 2)


def test_what_the_model_shows_to_be_wrong_fails(tiny_model: Path, book: Path, tmp_path: Path) -> None:
    model = f"--model={tiny_model}"
    assert "/nowhere/x.gguf" in refused(run(f"--text={book}", "--model=/nowhere/x.gguf"), 1)
    long = refused(run(f"--text={book}", model, "--context=400", "--chunks=2"), 1)
    assert "expected at least 800 (2 contexts of 400)" in long
    small = tinygguf.write(tmp_path / "small.gguf", context=32)
    line = refused(run(f"--text={book}", f"--model={small}", "--context=24", "--chunks=1"), 1)
    assert "the model's context has 32 positions, expected at least 268" in line


def test_the_plot_draws_every_storage_type_twice() -> None:
    kl = np.array([0.0, 0.5, 0.25, 1.5])
    rows = Rows(kl, kl > 0, kl, kl)
    measured = [
        Accuracy(
            storage=name, positions=np.array([7, 8, 7, 8]), rows=rows, first_divergences=(1,), seconds=1.0
        )
        for name in ("int8", "int9")
    ]
    drawn = figure("a title", measured)
    assert [trace["name"] for trace in drawn["data"]] == ["int8", "int8", "int9", "int9"]
    by_position, distribution = drawn["data"][:2]
    assert (by_position["x"], by_position["y"]) == ([7, 8], [0.125, 1.0])
    assert (distribution["x"], distribution["y"]) == ([0.25, 0.5, 1.5], [0.5, 0.75, 1.0])
    assert drawn["layout"]["title"]["text"] == "a title"


def test_the_plot_is_one_page_that_needs_no_network(tiny_model: Path, book: Path, tmp_path: Path) -> None:
    pytest.importorskip("plotly", reason="the plot is an extra")
    path = tmp_path / "plot.html"
    result = run(f"--text={book}", f"--model={tiny_model}", *SIZES, "--json", f"--plot={path}")
    assert result.exit_code == 0, result.stderr
    assert "the plot is in" in result.stderr
    page = path.read_text(encoding="utf-8")
    assert "tokens of book.txt" in page
    assert "<script src" not in page
