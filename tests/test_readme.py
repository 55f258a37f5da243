"""What the front page says is true: its examples run, and its links lead somewhere."""

import asyncio
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "src/README.md",
    "docs/LOG.md",
    "docs/attention.md",
    "docs/faults.md",
    "docs/decode.md",
    "docs/interoperability.md",
    "deploy/README.md",
    "docs/operations.md",
    "docs/security.md",
    "docs/streams.md",
]


def _example(heading: str) -> str:
    section = README.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    return str(code)


def test_the_example_in_process_runs(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(_example("In your process"), "README.md", "exec"), {})
    shape, length = capsys.readouterr().out.rsplit(" ", 2)[:2]
    assert (shape, length) == ("(2, 1, 9, 64)", "1000")


def test_the_example_of_options_runs(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(_example("Masks, memories, and a look inside"), "README.md", "exec"), {})
    assert capsys.readouterr().out == "(5, 8, 3) True\n"


def test_the_example_from_embeddings_runs(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(_example("From embeddings"), "README.md", "exec"), {})
    assert capsys.readouterr().out == "(5, 4, 16) 5\n"


def test_the_example_of_snapshots_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(_example("Moving a stream"), "README.md", "exec"), {})
    assert capsys.readouterr().out == "True\n1000 True\n"


def test_the_example_of_a_file_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(_example("Surviving a kill"), "README.md", "exec"), {})
    assert capsys.readouterr().out == "b'mine' 1000\n"


@pytest.mark.parametrize(
    ("heading", "printed"),
    [("Over the wire", "(1, 9, 64) 1\n"), ("Many streams, one call", "32 (1, 9, 64) {1}\n")],
)
async def test_the_examples_over_the_wire_run(
    capsys: pytest.CaptureFixture[str], heading: str, printed: str
) -> None:
    from rondel.server.app import Server
    from rondel.server.config import ServerConfig

    default = ServerConfig().tcp_address
    assert default is not None
    example = _example(heading)
    assert default in example
    server = await Server.start(ServerConfig(port=0))
    try:
        code = compile(example.replace(default, server.address), "README.md", "exec")
        await asyncio.to_thread(exec, code, {})
    finally:
        await server.stop()
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", text):
        assert ((ROOT / page).parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES)
def test_pages_name_only_targets_that_make_has(page: str) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    named = re.findall(r"(?:^|`)make ([\w-]+)", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert set(named) <= set(targets)
