"""An arena's file as it is at every moment of a call, and what must be in it then."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rondel.decoder.attach import attach
from rondel.decoder.cache import crash
from rondel.decoder.cache.arena import Arena
from rondel.decoder.session import DecoderSession

Moment = tuple[int, str]
"""Number and name of a crash point."""


@contextmanager
def at_moments(act: Callable[[int, str], object]) -> Iterator[None]:
    """Within the block ``act`` is called at every crash point."""
    numbers = itertools.count(1)
    before, crash.crash_point = crash.crash_point, lambda name: act(next(numbers), name)
    try:
        yield
    finally:
        crash.crash_point = before


def moments_of(call: Callable[[], object]) -> list[Moment]:
    """All moments of a call."""
    found: list[Moment] = []
    with at_moments(lambda number, name: found.append((number, name))):
        call()
    return found


def some_of(found: list[Moment], ends: int, between: int) -> set[Moment]:
    """The first and the last ``ends``, and ``between`` of the others."""
    middle = found[ends:-ends] if ends else found
    return {
        *found[:ends],
        *found[max(0, len(found) - ends) :],
        *middle[:: max(1, -(-len(middle) // between))],
    }


def copies_at(wanted: set[Moment], path: Path, to: Path, call: Callable[[], object]) -> list[Path]:
    """Copies of a file as it is at these moments of a call."""
    made: list[Path] = []

    def copy(number: int, name: str) -> None:
        if (number, name) in wanted:
            made.append(to / f"{number} {name}")
            shutil.copyfile(path, made[-1])

    with at_moments(copy):
        call()
    assert len(made) == len(wanted)
    return made


def survivors_of(
    copy: Path, budget: int, *, overcommit: float = 1.0
) -> tuple[Arena, dict[str, DecoderSession]]:
    """What is in a file, all of it sound."""
    arena = Arena(budget, path=copy, overcommit=overcommit)
    sessions = {}
    for each in attach(arena):
        assert each.session is not None, (copy.name, each.reason)
        sessions[each.tag.decode()] = each.session
    return arena, sessions
