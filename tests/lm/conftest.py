"""Tiny models written on the spot, and the real default model, fetched the first time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tinygguf

from rondel.client.cli.download import pull
from rondel.decoder.cache.arena import Arena
from rondel.decoder.lm.forward import LanguageModel
from rondel.decoder.lm.registry import DEFAULT_MODEL, known, resolve
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec

# importlib mode does not find the helper ``straightline.py`` by itself.
sys.path.append(str(Path(__file__).parent))


@pytest.fixture(scope="session")
def tiny_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF file of two layers and random weights."""
    return tinygguf.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="session")
def tiny(tiny_file: Path) -> LanguageModel:
    return LanguageModel.load(tiny_file)


@pytest.fixture(scope="session")
def default_model_file() -> Path:
    """The default model's file; pulled into the user's cache folder when it is not there yet."""
    pull(known(DEFAULT_MODEL), report=lambda stage, done, total: None)
    return resolve(DEFAULT_MODEL)


@pytest.fixture(scope="session")
def default_model(default_model_file: Path) -> LanguageModel:
    return LanguageModel.load(default_model_file)


@pytest.fixture
def open_session(request: pytest.FixtureRequest) -> Callable[[StreamSpec], DecoderSession]:
    """Opens sessions in an arena of their own, closed after the test."""
    arena = Arena(budget=256 << 20)

    def open_one(spec: StreamSpec) -> DecoderSession:
        session = DecoderSession(spec, arena)
        request.addfinalizer(session.close)
        return session

    return open_one
