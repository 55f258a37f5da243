"""Cores and memory that a container grants, from the files in which it says so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rondel.decoder.machine import Cores, cores, memory, resident


def lay(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/cpu.max": "50000 100000\n",
                "sys/fs/cgroup/a/b/cpu.max": "400000 100000\n",
            },
            0.5,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/docker/x\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "200000\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            2.0,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
    ],
    ids=["none", "v2", "v2 max", "v2 parent", "v1", "v1 unlimited"],
)
def test_quota(files: dict[str, str], quota: float | None, tmp_path: Path) -> None:
    assert cores(root=lay(tmp_path, files)).quota == quota


@pytest.mark.parametrize(
    ("affinity", "quota", "in_force"),
    [(8, None, 8), (8, 2.5, 2), (8, 0.5, 1), (1, 4.0, 1), (4, 4.0, 4)],
)
def test_cores_in_force(affinity: int, quota: float | None, in_force: int) -> None:
    assert Cores(host=64, affinity=affinity, quota=quota).in_force == in_force


def test_affinity_is_this_process_s() -> None:
    assert cores().affinity == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "1073741824\n"}, 1 << 30),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, None),
        (
            {
                "proc/self/cgroup": "4:memory:/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            None,
        ),
    ],
    ids=["v2", "v2 max", "v1 unlimited"],
)
def test_memory(files: dict[str, str], limit: int | None, tmp_path: Path) -> None:
    root = lay(
        tmp_path, {**files, "proc/meminfo": "MemTotal: 2048 kB\nMemAvailable:  1024 kB\nHugePages_Total: 0\n"}
    )
    found = memory(root=root)
    assert (found.total, found.available, found.limit) == (2 << 20, 1 << 20, limit)


def test_resident_memory_is_that_of_now(tmp_path: Path) -> None:
    before = resident()
    block = bytearray(b"x") * (64 << 20)
    during = resident()
    del block
    after = resident()
    if before is None or during is None or after is None:
        pytest.fail("this system does not say")
    assert 48 << 20 < during - before < 96 << 20
    assert after < during - (48 << 20)
    root = lay(tmp_path, {"proc/self/statm": "1000 25 3 4 0 5 0\n"})
    assert resident(root=root) == 25 * os.sysconf("SC_PAGESIZE")
    assert resident(root=tmp_path / "nowhere") is None
