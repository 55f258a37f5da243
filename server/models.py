"""The language model that a server offers: looked up and read on first use, on the generation worker."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from rondel.decoder.errors import ModelNotFound, RondelError
from rondel.decoder.lm.forward import LanguageModel
from rondel.decoder.lm.registry import KNOWN, resolve

log = logging.getLogger("rondel.server")


class Models:
    """One model by name, or none. A failure to read it is not remembered: the file may come later."""

    def __init__(self, name_or_path: str | None) -> None:
        self._source = name_or_path
        self._loaded: LanguageModel | None = None

    @property
    def name(self) -> str | None:
        """What requests call the model: its known name, or a file's name without its ending."""
        if self._source is None or self._source in KNOWN:
            return self._source
        return Path(self._source).stem

    @property
    def loaded(self) -> LanguageModel | None:
        """The model, if it is in memory."""
        return self._loaded

    def get(self, name: str) -> LanguageModel:
        """The model of that name; ``""`` is the only one there is.

        Raises:
            ModelNotFound: there is none of that name, or its file is missing.
            CorruptModel, UnsupportedModel: its file cannot be used.
        """
        if self._source is None:
            raise ModelNotFound("this server has no language model", name=name)
        if name not in ("", self.name):
            raise ModelNotFound(f"this server has model {self.name!r}, got {name!r}", name=name)
        if self._loaded is None:
            began = time.monotonic()
            self._loaded = LanguageModel.load(resolve(self._source))
            log.info("model %s read in %.1f s", self.name, time.monotonic() - began)
        return self._loaded

    def preload(self) -> None:
        """Reads the model, if there is one, so that the first call need not; only logs what goes wrong."""
        if self._source is not None:
            try:
                self.get("")
            except RondelError as error:
                log.warning("the model cannot be used: %s", error)
