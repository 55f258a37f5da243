from pathlib import Path

import pytest

from rondel.decoder.errors import ModelNotFound
from rondel.decoder.lm.registry import DEFAULT_MODEL, KNOWN, known, model_path, models_dir, resolve


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RONDEL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_cache_folder_follows_the_environment(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert models_dir() == cache / "models"
    assert model_path(DEFAULT_MODEL) == cache / "models" / "smollm2-135m.gguf"
    monkeypatch.setenv("RONDEL_CACHE", "")
    assert models_dir().name == "models"
    assert "rondel" in models_dir().parts


def test_a_known_name_must_have_been_pulled(cache: Path) -> None:
    with pytest.raises(ModelNotFound, match="rondel model pull smollm2-135m"):
        resolve(DEFAULT_MODEL)
    model_path(DEFAULT_MODEL).parent.mkdir(parents=True)
    model_path(DEFAULT_MODEL).write_bytes(b"x")
    assert resolve(DEFAULT_MODEL) == model_path(DEFAULT_MODEL)


def test_any_file_can_be_named_by_path(cache: Path, tmp_path: Path) -> None:
    file = tmp_path / "any.gguf"
    file.write_bytes(b"x")
    assert resolve(file) == resolve(str(file)) == file


@pytest.mark.parametrize("name", ["nothing", "", "/", "no/such/file.gguf"])
def test_what_is_neither_is_not_found(cache: Path, name: str) -> None:
    with pytest.raises(ModelNotFound, match="rondel model pull"):
        resolve(name)


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(ModelNotFound, match="expected one of: smollm2-135m"):
        known("smollm3")


def test_sums_are_sums() -> None:
    for name, model in KNOWN.items():
        assert name == model.name
        assert all(len(bytes.fromhex(text)) == 32 for text in (model.wheel_sha256, model.gguf_sha256))
