"""Processes that are killed at any moment lose nothing that they had acknowledged.

``make crash-test`` does the same a thousand times."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from crash_run import PLANTED, caught_within
from killed_scene import killed
from survivors import Trial


@pytest.mark.timeout(300)
def test_what_was_acknowledged_is_there_after_every_kill(tmp_path: Path) -> None:
    trial = Trial(tmp_path / "arena", seed=4)
    for _ in range(20):
        trial.kill()
    counts = trial.counts
    assert counts.trouble == []
    assert (counts.lost, counts.wrong, counts.failed_starts) == (0, 0, 0)
    assert counts.points >= 3
    assert counts.acknowledged > 100


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", PLANTED)
def test_a_wrong_order_of_stores_is_caught(tmp_path: Path, name: str) -> None:
    assert caught_within(tmp_path, name, 60)


@pytest.mark.timeout(300)
def test_a_call_is_there_or_is_not_after_a_kill_within_it(tmp_path: Path) -> None:
    """``make crash-test`` has all calls."""
    found = list(killed("rewriting a shared page", tmp_path, random.Random(0)))
    assert len(found) == 2
    assert [trouble for _, trouble in found if trouble] == []
