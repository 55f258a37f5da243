"""A test that measures time waits for those that run, and those that come after it wait for it."""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path

import pytest
from company import ROOM, turn


class Guest(threading.Thread):
    """Is in the room from ``inside`` on until it is told to leave."""

    def __init__(self, folder: Path, *, alone: bool) -> None:
        super().__init__()
        self.files = {"gate": folder / "gate", "room": folder / "room"}
        self.alone = alone
        self.inside, self.leave = threading.Event(), threading.Event()
        self.start()

    def run(self) -> None:
        with turn(alone=self.alone, **self.files):
            self.inside.set()
            self.leave.wait(20)

    def waits(self) -> bool:
        return not self.inside.wait(0.05)

    def end(self) -> None:
        self.leave.set()
        self.join()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("gate", "room"):
        (tmp_path / name).touch()
    return tmp_path


def test_who_is_to_be_alone_is_next(folder: Path) -> None:
    first, second = (Guest(folder, alone=False) for _ in range(2))
    assert first.inside.wait(20)
    assert second.inside.wait(20)
    alone = Guest(folder, alone=True)
    assert alone.waits()
    third = Guest(folder, alone=False)
    assert third.waits()
    first.end()
    assert alone.waits()
    second.end()
    assert alone.inside.wait(20)
    assert third.waits()
    alone.end()
    assert third.inside.wait(20)
    third.end()


def test_this_suite_keeps_to_it() -> None:
    """While this test runs nobody can be alone."""
    with ROOM.open("rb") as room, pytest.raises(BlockingIOError):
        fcntl.flock(room, fcntl.LOCK_EX | fcntl.LOCK_NB)
