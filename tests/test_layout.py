"""The house rules that a machine can check: import directions, file sizes, public names."""

from pathlib import Path

import check_layout
import pytest

ROOT = Path(__file__).resolve().parent.parent

PUBLIC = [
    "Arena",
    "AsyncAttentionClient",
    "AsyncGenerationClient",
    "AsyncStream",
    "AttendOptions",
    "AttentionClient",
    "DecoderSession",
    "Explanation",
    "GenerationClient",
    "LayerGroup",
    "Projection",
    "Projections",
    "RondelError",
    "Rope",
    "Stream",
    "StreamSpec",
    "__version__",
    "attach",
    "merge_partials",
]


def test_imports_go_one_way() -> None:
    assert check_layout.import_problems(ROOT) == []


def test_files_are_within_the_budget() -> None:
    assert check_layout.size_problems(ROOT) == []


def test_reasons_are_given_only_for_files_that_need_them() -> None:
    for name in check_layout.LONGER:
        assert len((ROOT / name).read_text().splitlines()) > check_layout.MAX_LINES, name


def test_public_names_are_pinned() -> None:
    import rondel

    assert rondel.__all__ == PUBLIC
    assert dir(rondel) == PUBLIC
    for name in PUBLIC:
        assert getattr(rondel, name) is not None, name
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = rondel.nonsense


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small tree that is clean: what the checker says about it is due to what a test adds."""
    for name, text in {
        "src/rondel/__init__.py": "from rondel.decoder.spec import StreamSpec\n",
        "decoder/errors.py": "class RondelError(Exception): ...\n",
        "decoder/spec.py": "from rondel.decoder.errors import RondelError\n",
        "decoder/kernels/_base.pyx": 'from libc.stdint cimport int8_t\ninclude "attention.pxi"\n',
        "server/app.py": "import asyncio\nimport grpc\nfrom rondel.v1 import wire\n",
        "client/sync.py": "import grpc\nfrom rondel import __version__\n",
        "client/cli/main.py": "from rondel.server.app import serve\n",
        "proto/rondel/v1/wire.py": "import numpy as np\nfrom rondel.decoder import errors\n",
        "proto/rondel/v1/x_pb2_grpc.py": "import grpc\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert check_layout.import_problems(tmp_path) == []
    return tmp_path


@pytest.mark.parametrize(
    ("where", "line"),
    [
        ("decoder/session.py", "from rondel.server import app"),
        ("decoder/session.py", "from rondel.decoder.lm import engine"),
        ("decoder/session.py", "import grpc.aio"),
        ("decoder/session.py", "import asyncio"),
        ("decoder/session.py", "from google.protobuf import message"),
        ("decoder/errors.py", "from rondel.decoder.spec import StreamSpec"),
        ("decoder/cache/ring.py", "from rondel.decoder.kernels import TIER"),
        ("decoder/cache/ring.py", "from rondel.decoder import session"),
        ("decoder/kernels/__init__.py", "from rondel.decoder.spec import StreamSpec"),
        ("decoder/reference/forward.py", "from rondel.decoder.kernels import TIER"),
        ("decoder/lm/engine.py", "from rondel.decoder.session import DecoderSession"),
        ("decoder/lm/engine.py", "from rondel.decoder import kernels"),
        ("decoder/lm/engine.py", "from rondel import DecoderSession"),
        ("server/app.py", "from rondel.client import Stream"),
        ("client/sync.py", "from rondel.server.errors import table"),
        ("client/sync.py", "from rondel.decoder.session import DecoderSession"),
        ("client/load/worker.py", "from rondel.decoder.session import DecoderSession"),
        ("client/load/twin.py", "from rondel.client.load import worker"),
        ("client/sync.py", "import rondel"),
        ("proto/rondel/v1/wire.py", "from rondel.client import sync"),
        ("proto/rondel/v1/wire.py", "import grpc"),
        ("server/app.py", "import decoder.spec"),
        ("client/cli/main.py", "from server import app"),
        ("client/cli/main.py", "import proto"),
        ("server/app.py", "from . import errors"),
        ("server/app.py", "from .errors import table"),
        ("client/sync.py", "def late():\n    from rondel.server import app"),
        ("client/sync.py", "import importlib\napp = importlib.import_module('rondel.server.app')"),
        ("decoder/kernels/_base.pyx", "from rondel.decoder.cache.arena cimport Arena"),
        ("decoder/kernels/attention.pxi", "cimport rondel.decoder.cache.arena"),
        ("decoder/kernels/attention.pxi", "from rondel.decoder cimport errors, session"),
        ("decoder/cache/_pages.pyx", "def late():\n    from rondel.decoder import kernels  # hidden"),
        ("decoder/cache/_pages.pyx", "from .arena cimport Arena"),
        ("decoder/cache/_pages.pxd", "import decoder.spec as spec"),
    ],
)
def test_a_wrong_import_is_reported(tree: Path, where: str, line: str) -> None:
    path = tree / where
    path.parent.mkdir(parents=True, exist_ok=True)
    before = path.read_text() if path.exists() else ""
    path.write_text(before + line + "\n")

    problems = check_layout.import_problems(tree)

    assert len(problems) == 1
    expected = (before + line).count("\n") + 1
    assert problems[0].startswith(f"{where}:{expected}: ")


@pytest.mark.parametrize(
    ("where", "line"),
    [
        (
            "decoder/session.py",
            "from rondel.decoder import errors, kernels\nfrom rondel.decoder.cache.arena import Arena",
        ),
        ("decoder/lm/engine.py", "from rondel.decoder.lm.sampling import Sampling"),
        ("decoder/reference/forward.py", "from rondel.decoder.reference.arrays import Array"),
        (
            "client/aio.py",
            "import asyncio\nfrom rondel.decoder.spec import StreamSpec\nfrom rondel.v1 import wire",
        ),
        ("client/load/twin.py", "from rondel.decoder.session import DecoderSession"),
        ("client/load/worker.py", "from rondel.client.load.twin import Twins"),
        ("client/cli/demo.py", "import rondel\nfrom rondel.decoder.lm import engine"),
        ("decoder/kernels/_v3.pyx", 'cdef extern from "decoder.h":\n    pass'),
    ],
)
def test_a_right_import_is_not_reported(tree: Path, where: str, line: str) -> None:
    (tree / where).parent.mkdir(parents=True, exist_ok=True)
    (tree / where).write_text(line + "\n")
    assert check_layout.import_problems(tree) == []


def test_a_file_over_the_budget_is_reported(tree: Path) -> None:
    (tree / "setup.py").write_text("")
    (tree / "server/app.py").write_text("x = 1\n" * check_layout.MAX_LINES)
    assert check_layout.size_problems(tree) == []
    (tree / "server/app.py").write_text("x = 1\n" * (check_layout.MAX_LINES + 1))
    (problem,) = check_layout.size_problems(tree)
    assert problem.startswith("server/app.py: 301 lines")
