"""A change of the contract that breaks callers is found, whatever it is compared with."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import check_breaking
import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the contract, with itself as the baseline."""
    shutil.copy(ROOT / "buf.yaml", tmp_path)
    shutil.copytree(ROOT / "proto", tmp_path / "proto", ignore=shutil.ignore_patterns("*.py*"))
    check_breaking.renew(tmp_path)
    return tmp_path


def edit(tree: Path, old: str, new: str) -> None:
    path = tree / "proto/rondel/v1/attention.proto"
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, old
    path.write_text(text.replace(old, new), encoding="utf-8")


def found(tree: Path) -> tuple[str, str]:
    with check_breaking.promised(tree) as (name, against):
        return name, "\n".join(check_breaking.problems(tree, against))


BREAKING = [
    ("  optional int64 max_chunk = 5;", "  optional int64 max_chunk = 50;"),  # in OpenStreamResponse
    ("  bool return_entropy = 8;", "  uint32 return_entropy = 8;"),
    ("  bool return_entropy = 8;", "  bool with_entropy = 8;"),
    ("  bool return_entropy = 8;", ""),
    ("  rpc SealStream(SealStreamRequest) returns (SealStreamResponse);", ""),
    (
        "  rpc Attend(AttendRequest) returns (AttendResponse);",
        "  rpc Attend(AttendRequest) returns (stream AttendResponse);",
    ),
]


@pytest.mark.parametrize(("old", "new"), BREAKING)
def test_a_breaking_change_is_found(tree: Path, old: str, new: str) -> None:
    edit(tree, old, new)
    name, problems = found(tree)
    assert name == check_breaking.BASELINE
    assert "attention.proto" in problems


def test_an_addition_breaks_nothing(tree: Path) -> None:
    edit(tree, "  bool return_entropy = 8;", "  bool return_entropy = 8;\n  bool more = 1000;")
    assert found(tree)[1] == ""


def test_a_tag_counts_for_more_than_the_baseline(tree: Path) -> None:
    def git(*arguments: str) -> None:
        settings = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *settings, *arguments], cwd=tree, check=True, capture_output=True)

    git("init")
    git("add", ".")
    git("commit", "--message=one")
    git("tag", "v0.1.0")
    git("tag", "other-1")
    edit(tree, "  bool return_entropy = 8;", "")
    check_breaking.renew(tree)
    name, problems = found(tree)
    assert name == "the tag v0.1.0"
    assert "return_entropy" in problems
    git("commit", "--all", "--message=two")
    git("tag", "v0.2.0")
    assert found(tree) == ("the tag v0.2.0", "")


def test_what_cannot_be_compared_is_no_all_clear(tree: Path) -> None:
    edit(tree, "message SealStreamResponse {", "message {")
    assert "attention.proto" in found(tree)[1]
    edit(tree, "message {", "message SealStreamResponse {")
    (tree / check_breaking.BASELINE).unlink()
    with pytest.raises(SystemExit, match="buf failed"):
        found(tree)


def test_the_contract_here_breaks_nothing() -> None:
    with check_breaking.promised(ROOT) as (_, against):
        assert check_breaking.problems(ROOT, against) == []
