"""What a running server may take from a configuration that was read again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from rondel.server.config import ServerConfig
from rondel.server.settings import NAMES

RELOADABLE: Final = frozenset(("drain_seconds", "pre_stop_seconds", "log_level", "log_calls", "max_streams"))
"""Settings that may change while the server runs."""


@dataclass(frozen=True, slots=True)
class Changes:
    """How a new configuration differs from the one in force."""

    config: ServerConfig
    """The one in force with what may change taken from the new one."""
    taken: tuple[str, ...]
    """Names of what is taken."""
    waiting: tuple[str, ...]
    """Names of what needs a restart."""

    @classmethod
    def between(cls, old: ServerConfig, new: ServerConfig) -> Changes:
        """From one configuration to another."""
        differ = [name for name in NAMES if getattr(old, name) != getattr(new, name)]
        taken = {name: getattr(new, name) for name in differ if name in RELOADABLE}
        return cls(replace(old, **taken), tuple(taken), tuple(name for name in differ if name not in taken))

    def __str__(self) -> str:
        parts = [f"{name} is {getattr(self.config, name)!r}" for name in self.taken]
        if self.waiting:
            parts.append(f"needs a restart: {', '.join(self.waiting)}")
        return "; ".join(parts) or "no setting has changed"
