"""``make simulate``: thousands of schedules of the server, and whether it finds mistakes that are put in.

``make simulate SEEDS=1000`` for fewer, ``make simulate SEED=17`` for one. The last line is JSON; exit code 1
if a property did not hold, or a planted mistake was not found.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Iterable

from sim_planted import PLANTED, planted
from sim_tally import Tally
from simulate import simulate

from rondel.decoder import pool

WITHIN = 100
"""Seeds within which a planted mistake is to be found."""


def main() -> int:
    """0 = all is well."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--plant", choices=sorted(PLANTED), help="with this mistake; with --seed")
    arguments = parser.parse_args()
    pool.set_threads(1)  # the kernels' others would only wait for each other
    if arguments.seed is not None:
        return _one(arguments.seed, arguments.plant)
    found = [name for name in PLANTED if _first_found(name) is not None]
    bad = _all(range(arguments.first, arguments.first + arguments.seeds))
    result = {
        "seeds": arguments.seeds,
        "violations": len(bad),
        "planted_found": len(found),
        "planted": len(PLANTED),
    }
    _say(json.dumps(result))
    return int(bool(bad) or len(found) < len(PLANTED))


def first_found(name: str, seeds: Iterable[int]) -> int | None:
    """The first seed that finds a planted mistake."""
    with planted(name):
        return next((seed for seed in seeds if simulate(seed) is not None), None)


def _first_found(name: str) -> int | None:
    seed = first_found(name, range(WITHIN))
    _say(f"planted: {name}: {'not found' if seed is None else f'found by seed {seed}'}")
    return seed


def _all(seeds: range) -> list[int]:
    tally, begun = Tally(), time.monotonic()
    bad = []
    for done, seed in enumerate(seeds, start=1):
        error = simulate(seed, tally)
        if error is not None:
            bad.append(seed)
            _say(f"seed {seed}: {type(error).__name__}: {error}; make simulate SEED={seed} repeats it")
        if done % 500 == 0:
            _say(f"{done} seeds, {len(bad)} violations, {time.monotonic() - begun:.0f} s")
    for kind, times in sorted(tally.counts.items()):
        _say(f"{times:10d}  {kind}")
    return bad


def _one(seed: int, plant: str | None) -> int:
    tally = Tally()
    if plant is None:
        error = simulate(seed, tally)
    else:
        with planted(plant):
            error = simulate(seed, tally)
    for kind, times in sorted(tally.counts.items()):
        _say(f"{times:10d}  {kind}")
    if error is None:
        _say(f"seed {seed}: all properties hold")
        return 0
    _say("".join(traceback.format_exception(error)).rstrip())
    return 1


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
