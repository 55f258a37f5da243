"""The language model that a server offers: read before it serves, on the generation worker."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

from rondel.decoder.errors import Draining, ModelError, ModelNotFound
from rondel.decoder.lm.forward import LanguageModel
from rondel.decoder.lm.registry import KNOWN, resolve

log = logging.getLogger("rondel.server")


class Models:
    """One model by name, or none."""

    def __init__(self, name_or_path: str | None) -> None:
        self._source = name_or_path
        self._loaded: LanguageModel | None = None
        self._unwanted = threading.Event()

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

    def load(self) -> None:
        """Reads the model, if there is one.

        Raises:
            ModelNotFound, CorruptModel, UnsupportedModel: its file is missing or cannot be used.
            BudgetExceeded: its weights are larger than this machine's memory.
            Draining: :meth:`give_up` was called.
        """
        if self._source is None:
            return
        began = time.monotonic()
        try:
            self._loaded = LanguageModel.load(resolve(self._source), progress=self._progress)
        except ModelError as error:
            error.facts.setdefault("name", str(self.name))
            raise
        log.info("model %s read in %.1f s", self.name, time.monotonic() - began)

    def give_up(self) -> None:
        """Ends a :meth:`load` that is at work, before its next layer. From any thread."""
        self._unwanted.set()

    def get(self, name: str) -> LanguageModel:
        """The model of that name; ``""`` is the only one there is. Raises ModelNotFound."""
        if self._loaded is None:
            raise ModelNotFound("this server has no language model", name=name)
        if name not in ("", self.name):
            raise ModelNotFound(f"this server has model {self.name!r}, got {name!r}", name=name)
        return self._loaded

    def _progress(self, done: int, total: int) -> None:
        if self._unwanted.is_set():
            raise Draining("the server is shutting down")
