"""``make crash-test``: a kill within every call at each of its crash points, a thousand at any moment of a
life, two planted mistakes, and one line of JSON at the end."""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path

from killed_scene import killed
from scenes import SCENES
from survivors import Counts, Trial

PLANTED = ("length first", "table first")


def main() -> int:
    """0 = nothing was lost or wrong, and both planted mistakes were caught."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", default=None, help="where the files are; default the system's")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        caught = [n for n in PLANTED if caught_within(Path(folder), n, 100)]
        trial, begin = Trial(Path(folder) / "arena", arguments.seed), time.monotonic()
        kill_at_points(Path(folder), trial.counts, random.Random(arguments.seed))
        for number in range(arguments.kills):
            known = len(trial.counts.trouble)
            trial.kill()
            for line in trial.counts.trouble[known:]:
                sys.stderr.write(line + "\n")
            if number % 50 == 49:
                sys.stderr.write(f"{time.monotonic() - begin:6.0f} s  {trial.counts.numbers()}\n")
    counts = trial.counts
    sys.stdout.write(json.dumps({**counts.numbers(), "planted_caught": len(caught)}) + "\n")
    bad = counts.lost or counts.wrong or counts.failed_starts
    return int(bool(bad) or len(caught) < len(PLANTED))


def kill_at_points(folder: Path, counts: Counts, luck: random.Random) -> None:
    """Every call of ``scenes.py``, killed at each of its crash points."""
    for scene in SCENES:
        names = []
        for point, trouble in killed(scene, folder, luck):
            names.append(point)
            counts.kills += 1
            counts.points += 1
            if trouble:
                counts.wrong += 1
                counts.trouble.append(trouble)
                sys.stderr.write(trouble + "\n")
        sys.stderr.write(f"{scene}: {', '.join(names)}\n")


def caught_within(folder: Path, name: str, kills: int) -> bool:
    """Whether so many kills show a planted mistake."""
    trial = Trial(folder / name.replace(" ", "-"), 1, name)
    for _ in range(kills):
        trial.kill()
        if trial.counts.lost or trial.counts.wrong:
            return True
    return False


if __name__ == "__main__":
    sys.exit(main())
