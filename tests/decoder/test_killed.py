"""Processes that are killed at any moment lose nothing that they had acknowledged.

``make crash-test`` does the same a thousand times."""

from __future__ import annotations

from pathlib import Path

import pytest
from crash_run import PLANTED, caught_within
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
