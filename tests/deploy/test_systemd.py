"""The systemd unit and the settings that it starts with agree with each other and with the server."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rondel.server.app import LAST_SECONDS
from rondel.server.process import _HANGING_SECONDS
from rondel.server.settings import load

SYSTEMD = Path(__file__).resolve().parents[2] / "deploy/systemd"
UNIT = (SYSTEMD / "rondel.service").read_text(encoding="utf-8")
CONFIG = load({}, file=str(SYSTEMD / "rondel.toml"), environment={}).config
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def said(name: str) -> str:
    """The only value of a setting of the unit."""
    (value,) = re.findall(rf"^{name}=(.*)$", UNIT, re.MULTILINE)
    return str(value)


def test_a_stop_is_not_cut_short() -> None:
    longest = CONFIG.pre_stop_seconds + CONFIG.drain_seconds + LAST_SECONDS + _HANGING_SECONDS
    assert longest < float(said("TimeoutStopSec"))


def test_there_is_room_for_the_budget() -> None:
    limit = said("MemoryMax")
    assert CONFIG.budget_bytes + (1 << 30) <= int(limit[:-1]) * _UNITS[limit[-1]]


def test_its_files_are_where_it_may_write() -> None:
    assert CONFIG.arena_file is not None
    assert CONFIG.arena_file.startswith(f"/var/lib/{said('StateDirectory')}/")
    assert CONFIG.unix_path is not None
    assert CONFIG.unix_path.startswith(f"/run/{said('RuntimeDirectory')}/")
    assert "AF_UNIX" in said("RestrictAddressFamilies")


@pytest.mark.parametrize("kept", ["User", "Group"])
def test_it_runs_as_the_user_that_is_made_for_it(kept: str) -> None:
    users = (SYSTEMD / "rondel.sysusers.conf").read_text(encoding="utf-8")
    assert re.search(rf"^u {said(kept)} ", users, re.MULTILINE)


def test_it_says_by_itself_how_it_is() -> None:
    # server/notify.py is what makes these true.
    assert (said("Type"), said("KillSignal")) == ("notify", "SIGTERM")
    assert float(said("WatchdogSec")) >= 10
    assert said("ExecStart").endswith("serve --config /etc/rondel/rondel.toml")
