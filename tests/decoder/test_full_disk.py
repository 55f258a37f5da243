"""Disks that are really full: small ones in memory, in a mount namespace that ends with its process.

A file's bytes are there from the start, so a full disk is an error then and no SIGBUS later; what would bring
that back, a file with holes, is filled or refused.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

BEGIN = """
import os, sys
import numpy as np
from rondel import Arena, DecoderSession, StreamSpec
from rondel.decoder.attach import attach
from rondel.decoder.errors import ArenaFileError

SPEC = StreamSpec.uniform(layers=4, query_heads=4, kv_heads=4, head_dim=64, max_length=1536)
UNIT = 2 << 20
path = sys.argv[1] + "/arena"

def refused(units):
    try:
        Arena(units * UNIT, path=path)
    except ArenaFileError as error:
        print(error)
    else:
        print("no error")

def fill(session):
    x = np.ones((4, 1536, 4, 64), np.float32)
    session.append_all(x, x)
    return session

def use_up():
    with open(sys.argv[1] + "/rest", "wb", buffering=0) as rest:
        try:
            while True:
                rest.write(bytes(4096))
        except OSError as error:
            print(error.strerror)
"""


@functools.cache
def no_mounts() -> str:
    """Why this machine has no small disks; empty if it has."""
    done = mounted("/tmp", "true")
    return done.stderr if done.returncode else ""


def mounted(folder: str, *command: str, size: str = "8m") -> subprocess.CompletedProcess[str]:
    """Run a command beside which a disk of that size is mounted over a folder."""
    script = 'mount -t tmpfs -o "size=$0" rondel "$1" && shift && exec "$@"'
    inside = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return subprocess.run(
        ["unshare", *inside, "--mount", "sh", "-c", script, size, folder, *command],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )


def lines(tmp_path: Path, program: str) -> list[str]:
    """What a program says that ends well; its disk has 8 MiB."""
    if no_mounts():
        pytest.skip(f"no disk can be mounted here: {no_mounts().strip()}")
    done = mounted(str(tmp_path), sys.executable, "-c", BEGIN + textwrap.dedent(program), str(tmp_path))
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_an_arena_that_is_too_large_leaves_nothing_behind(tmp_path: Path) -> None:
    found = lines(
        tmp_path,
        """
        refused(4)
        print(os.listdir(sys.argv[1]))
        arena = Arena(3 * UNIT, path=path)
        print(arena.stats().budget)
        """,
    )
    assert found == [
        f"there is no room for an arena of {10 << 20} bytes at {tmp_path}/arena: No space left on device",
        "[]",
        str(6 << 20),
    ]


def test_a_stream_grows_although_the_disk_is_full_by_then(tmp_path: Path) -> None:
    found = lines(
        tmp_path,
        """
        arena = Arena(3 * UNIT, path=path)
        session = DecoderSession(SPEC, arena, tag=b"s")
        use_up()
        fill(session)
        arena.close()
        (stream,) = attach(Arena(3 * UNIT, path=path))
        print(stream.session.length)
        """,
    )
    assert found == ["No space left on device", "1536"]


def test_a_file_with_holes_is_refused_or_filled(tmp_path: Path) -> None:
    found = lines(
        tmp_path,
        """
        made = sys.argv[1] + ".made"  # on another disk
        arena = Arena(3 * UNIT, path=made)
        DecoderSession(SPEC, arena, tag=b"s")
        arena.close()
        os.system(f"cp --sparse=always {made} {path}")
        use_up()
        before = open(path, "rb").read()
        refused(3)
        print(open(path, "rb").read() == before)
        os.unlink(sys.argv[1] + "/rest")
        (stream,) = attach(Arena(3 * UNIT, path=path))
        use_up()
        print(fill(stream.session).length)
        """,
    )
    assert found[:2] == [
        "No space left on device",
        f"{tmp_path}/arena has holes, and there is no room to fill them: No space left on device; what it "
        f"holds is left as it is",
    ]
    assert found[2:] == ["True", "No space left on device", "1536"]


def test_a_snapshot_that_finds_no_room_is_an_error_of_the_file(tmp_path: Path) -> None:
    found = lines(
        tmp_path,
        """
        session = fill(DecoderSession(SPEC, Arena(4 * UNIT)))
        use_up()
        before = session.attend(0, np.ones((1, 4, 64), np.float32))
        try:
            with open(sys.argv[1] + "/rest", "wb", buffering=0) as file:
                file.truncate(0)
                for _ in range(5):
                    session.snapshot(file)
        except OSError as error:
            print(error.strerror)
        print((session.attend(0, np.ones((1, 4, 64), np.float32)) == before).all())
        """,
    )
    assert found == ["No space left on device", "No space left on device", "True"]


def test_a_server_says_so_in_one_line(tmp_path: Path) -> None:
    if no_mounts():
        pytest.skip(f"no disk can be mounted here: {no_mounts().strip()}")
    rondel = Path(sys.executable).with_name("rondel")
    arguments = ["serve", "--port=0", f"--arena-file={tmp_path}/arena", f"--budget-bytes={16 << 20}"]
    done = mounted(str(tmp_path), str(rondel), *arguments)
    assert done.returncode == 1
    assert "no room for an arena" in done.stderr
    assert "Traceback" not in done.stderr
