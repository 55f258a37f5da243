"""Real processes killed within a call at a crash point: each call of ``scenes.py``, each of its points.

``python killed_scene.py PATH SCENE POINT NTH``: what is done before the call, then the call, in which the
process kills itself at the NTH crash point of that name.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from killed import kill_at
from moments import moments_of
from scenes import BUDGET, SCENES
from survivors import environment

from rondel.decoder.cache.arena import Arena


def points(scene: str, folder: Path) -> Counter[str]:
    """How often a call comes by which crash point."""
    path = folder / "counted"
    arena = Arena(BUDGET, path=path)
    passed = moments_of(partial(SCENES[scene].act, SCENES[scene].begin(arena), arena))
    arena.close()
    path.unlink()
    return Counter(name for _, name in passed)


def killed(scene: str, folder: Path, luck: random.Random) -> Iterator[tuple[str, str]]:
    """Kill a process at each of a call's points, at any of the times that it comes by: the point, and what
    was wrong with the file that it left; empty = nothing."""
    for point, times in points(scene, folder).items():
        path, nth = folder / "scene", luck.randint(1, times)
        command = [sys.executable, __file__, str(path), scene, point, str(nth)]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
        try:
            assert done.returncode == -signal.SIGKILL, done.stderr
            SCENES[scene].judge(path)
        except AssertionError as error:
            yield point, f"{scene}, at {point} number {nth}: {error}"
        else:
            yield point, ""
        path.unlink()


def main() -> None:
    path, scene, point, nth = sys.argv[1:]
    arena = Arena(BUDGET, path=path)
    streams = SCENES[scene].begin(arena)
    kill_at(int(nth), point)
    SCENES[scene].act(streams, arena)


if __name__ == "__main__":
    main()
