"""The projections that streams may be opened with: read from files before the server serves, then fixed."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from rondel.decoder.errors import ModelError, ProjectionNotFound
from rondel.decoder.projection import NO_PROJECTIONS, Projections
from rondel.server.config import named_file

log = logging.getLogger("rondel.server")


class ProjectionSets:
    """Projections by name; ``settings`` are the configuration's, NAME=FILE each."""

    def __init__(self, settings: Sequence[str]) -> None:
        self._files = dict(map(named_file, settings))
        self._loaded: dict[str, Projections] = {}

    @property
    def names(self) -> list[str]:
        """What OpenStream may name, as they were given."""
        return list(self._loaded)

    def load(self) -> None:
        """Reads the files.

        Raises:
            ModelNotFound, CorruptModel, UnsupportedModel: one is missing or cannot be used.
        """
        for name, path in self._files.items():
            try:
                self._loaded[name] = Projections.load(path)
            except ModelError as error:
                error.facts.setdefault("name", name)
                raise
            log.info("projections %s read: %d layers", name, len(self._loaded[name].layers))

    def get(self, name: str) -> Projections:
        """The projections of that name; ``""`` is none. Raises ProjectionNotFound."""
        if not name:
            return NO_PROJECTIONS
        if name not in self._loaded:
            raise ProjectionNotFound(
                f"this server has projections {', '.join(self._loaded) or 'of no name'}, got {name!r}",
                field="projections",
            )
        return self._loaded[name]
