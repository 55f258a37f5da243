"""What a file holds at every moment of a call: before each store that matters and after it.

The file is copied there, and the copy attached to: as if the process had been killed at that very place.
``make crash-test`` kills real ones there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from families import SPECS
from moments import copies_at, moments_of, some_of
from scenes import BUDGET, SCENES, grown

from rondel.decoder import cache
from rondel.decoder.attach import attach
from rondel.decoder.cache.arena import Arena
from rondel.decoder.session import DecoderSession

MOST = pytest.mark.parametrize("most", [12, pytest.param(120, marks=pytest.mark.slow)])


@MOST
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SCENES)
def test_at_every_moment_a_call_is_there_or_is_not(name: str, most: int, tmp_path: Path) -> None:
    """At ``most`` moments of the call; 120 are all, but for long calls that overwrite, a token at a time."""
    scene = SCENES[name]

    def begun(path: Path) -> Callable[[], object]:
        arena = Arena(BUDGET, path=path)
        return partial(scene.act, scene.begin(arena), arena)

    moments = moments_of(begun(tmp_path / "counted"))
    assert moments
    wanted = some_of(moments, 0, most)
    for copy in copies_at(wanted, tmp_path / "arena", tmp_path, begun(tmp_path / "arena")):
        scene.judge(copy)
        copy.unlink()


@pytest.mark.parametrize("moment", range(4))
def test_a_file_whose_making_was_cut_short_is_begun_anew(moment: int, tmp_path: Path) -> None:
    path = tmp_path / "arena"
    moments = moments_of(lambda: Arena(BUDGET, path=tmp_path / "counted"))
    wanted = {moments[moment % len(moments)]}
    (copy,) = copies_at(wanted, path, tmp_path, lambda: Arena(BUDGET, path=path))
    arena = Arena(BUDGET, path=copy)
    assert attach(arena) == []
    grown(DecoderSession(SPECS["ring"], arena), 10)


def test_the_calls_come_by_every_crash_point(tmp_path: Path) -> None:
    """By name, as the source has them: a new one must be reached by some call here."""
    made = moments_of(lambda: Arena(BUDGET, path=tmp_path / "made"))
    for name, scene in SCENES.items():
        arena = Arena(BUDGET, path=tmp_path / name)
        made += moments_of(partial(scene.act, scene.begin(arena), arena))
    words = ("record", "slab map", "stream table")
    source = "".join(path.read_text() for path in Path(cache.__path__[0]).glob("*.py"))
    plain = re.findall(r'crash_point\("([\w ]+)"\)', source)
    patterns = re.findall(r'crash_point\(f"(\w+) \{self._name\}"\)', source)
    assert {name for _, name in made} == {*plain, *(f"{when} {word}" for when in patterns for word in words)}
