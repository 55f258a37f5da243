"""``make crash-test``: a thousand kills, two planted mistakes, and one line of JSON at the end."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from survivors import Trial

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
        for _ in range(arguments.kills):
            known = len(trial.counts.trouble)
            trial.kill()
            for line in trial.counts.trouble[known:]:
                sys.stderr.write(line + "\n")
            if trial.counts.kills % 50 == 0:
                sys.stderr.write(f"{time.monotonic() - begin:6.0f} s  {trial.counts.numbers()}\n")
    counts = trial.counts
    sys.stdout.write(json.dumps({**counts.numbers(), "planted_caught": len(caught)}) + "\n")
    bad = counts.lost or counts.wrong or counts.failed_starts
    return int(bool(bad) or len(caught) < len(PLANTED))


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
