"""What a file holds at every moment of a call: before each store that matters and after it.

The file is copied there, and the copy attached to: as if the process had been killed at that very place.
``make crash-test`` kills real ones there.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from families import SPECS
from scenes import BUDGET, SCENES, grown

from rondel.decoder import cache
from rondel.decoder.attach import attach
from rondel.decoder.cache import crash
from rondel.decoder.cache.arena import Arena
from rondel.decoder.session import DecoderSession


@contextmanager
def copies(path: Path, to: Path) -> Iterator[list[Path]]:
    """Copies of a file as it is at every crash point within the block."""
    made: list[Path] = []

    def copy(name: str) -> None:
        made.append(to / f"{len(made)} {name}")
        shutil.copyfile(path, made[-1])

    before, crash.crash_point = crash.crash_point, copy
    try:
        yield made
    finally:
        crash.crash_point = before


EVERY = pytest.mark.parametrize("most", [12, pytest.param(10**9, marks=pytest.mark.slow)])


@EVERY
@pytest.mark.parametrize("name", SCENES)
def test_at_every_moment_a_call_is_there_or_is_not(name: str, most: int, tmp_path: Path) -> None:
    """Looked at at ``most`` moments of the call."""
    scene, path = SCENES[name], tmp_path / "arena"
    arena = Arena(BUDGET, path=path)
    streams = scene.begin(arena)
    with copies(path, tmp_path) as made:
        scene.act(streams, arena)
    assert made
    for copy in made[:: -(-len(made) // most)]:
        scene.judge(copy)


@pytest.mark.parametrize("moment", range(4))
def test_a_file_whose_making_was_cut_short_is_begun_anew(moment: int, tmp_path: Path) -> None:
    path = tmp_path / "arena"
    with copies(path, tmp_path) as made:
        Arena(BUDGET, path=path)
    copy = made[moment % len(made)]
    arena = Arena(BUDGET, path=copy)
    assert attach(arena) == []
    grown(DecoderSession(SPECS["ring"], arena), 10)


def test_the_calls_come_by_every_crash_point(tmp_path: Path) -> None:
    """By name, as the source has them: a new one must be reached by some call here."""
    made = set[str]()
    for name, scene in SCENES.items():
        arena = Arena(BUDGET, path=tmp_path / name)
        streams = scene.begin(arena)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(crash, "crash_point", made.add)
            scene.act(streams, arena)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crash, "crash_point", made.add)
        Arena(BUDGET, path=tmp_path / "made")
    words = ("record", "slab map", "stream table")
    source = "".join(path.read_text() for path in Path(cache.__path__[0]).glob("*.py"))
    plain = re.findall(r'crash_point\("([\w ]+)"\)', source)
    patterns = re.findall(r'crash_point\(f"(\w+) \{self._name\}"\)', source)
    assert made == {*plain, *(f"{when} {word}" for when in patterns for word in words)}
