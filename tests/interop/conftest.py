"""A server as a process, and clients on foreign stacks; ``make test-interop`` installs what they need."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import tinygguf

from rondel.client.cli.launch import ServerProcess, server

sys.path.append(str(Path(__file__).parent))
# The bounds are those that kernels are held to.
sys.path.append(str(Path(__file__).parents[1] / "decoder"))

from foreign import STACKS, Caller, Connect, given


@pytest.fixture(scope="module", params=STACKS)
def stack(request: pytest.FixtureRequest) -> str:
    return given(request.param)


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a tiny language model."""
    return tinygguf.write(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="session")
def running(model_path: Path) -> Iterator[ServerProcess]:
    with server("--budget-bytes", str(256 << 20), "--model", str(model_path)) as process:
        yield process


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Makes callers: ``connect(stack, target)``."""
    with ExitStack() as stack:
        yield lambda *args, **secrets: stack.enter_context(Caller(*args, **secrets))


@pytest.fixture(scope="module")
def caller(stack: str, running: ServerProcess) -> Iterator[Caller]:
    with Caller(stack, running.address) as made:
        yield made
