"""The engines that Rondel is compared with, one file each, behind one protocol.

A peer that is not installed, refuses a shape or answers wrongly is named with the reason, never left out
silently.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Final, Protocol

from shapes import Floats, Problem


class Unavailable(Exception):
    """A peer cannot run here, and why."""


class Contestant(Protocol):
    """One way to compute one problem, ours or a peer's. Prepared once, run many times."""

    name: str
    tolerance: float
    """Largest relative error against the oracle on :meth:`computed_from`."""

    def prepare(self, problem: Problem, threads: int) -> None:
        """Take the problem in, in the engine's own storage. Raises Unavailable."""

    def run(self) -> object:
        """One decode step, with everything that the engine does in one."""

    def answer(self) -> Floats:
        """What the last run computed: [1, Hq, D]."""

    def computed_from(self) -> Problem:
        """The problem after the engine's own rounding of queries, keys and values."""

    def close(self) -> None:
        """Let go of everything that :meth:`prepare` made."""


class Module(Protocol):
    """What each file in this folder offers."""

    def contestants(self) -> list[Contestant]:
        """Fresh contestants. Raises Unavailable."""


MODULES: Final = {
    "torch": "peers.torch_sdpa",
    "ort": "peers.ort_gqa",
    "openvino": "peers.openvino_paged",
    "llama.cpp": "peers.llama_cpp",
}
"""Name on the command line -> module."""


def contestants(names: Iterable[str]) -> tuple[list[Contestant], dict[str, str]]:
    """Fresh contestants of the named peers, and why others are missing, by name."""
    found: list[Contestant] = []
    missing: dict[str, str] = {}
    for name in names:
        try:
            module: Module = importlib.import_module(MODULES[name])
            found += module.contestants()
        except (ImportError, OSError, Unavailable) as error:
            missing[name] = f"{type(error).__name__}: {error}"
    return found, missing
