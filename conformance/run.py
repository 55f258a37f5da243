"""`make conformance`: the ONNX backend suite's Attention cases, answered by decoder sessions.

A table on standard output, then one JSON object on the last line. Exit code 1: a case failed and nothing
explains it, or the suite is not the one that is pinned.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Final

from rich.console import Console

import table
from cases import Case, suite
from rondel.decoder import kernels
from rondel.decoder.cache.arena import Arena
from verdicts import Verdict, verdict

CASES: Final = 93
"""Attention cases of onnx 1.23.2; any other number means that some are not looked at."""


def judge(cases: Sequence[Case]) -> list[Verdict]:
    """Every case's verdict, all in one arena."""
    arena = Arena(budget=64 << 20)
    return [verdict(case, arena) for case in cases]


def report(verdicts: Sequence[Verdict]) -> int:
    """Print what came of the cases; the exit code."""
    console = Console(width=150)
    console.print(table.table(verdicts))
    for line in table.remarks(verdicts):
        console.print(line)
    console.print(f"kernel tier {kernels.TIER}", highlight=False)
    print(json.dumps(table.summarise(verdicts)))
    return 0 if all(found.passed or found.explained is not None for found in verdicts) else 1


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="conformance/run.py", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("part", nargs="?", default="", help="only cases with this in their name")
    part: str = parser.parse_args(argv).part
    cases = suite()
    if len(cases) != CASES:
        print(f"the suite must have {CASES} Attention cases, got {len(cases)}", file=sys.stderr)
        return 1
    chosen = [case for case in cases if part in case.name]
    if not chosen:
        parser.error(f"no case has {part!r} in its name")
    return report(judge(chosen))


if __name__ == "__main__":
    sys.exit(main())
