"""Moments at which a process may be killed, by name, for tests of what an arena's file holds then."""

from __future__ import annotations


def crash_point(name: str) -> None:
    """Does nothing. Tests put something in its place that kills the process at the n-th moment.

    Only code of arenas in files comes by here; a switch read from the environment would be one that somebody
    could set.
    """
