"""What this process may use of the machine: cores and memory in force, not those of the host.

A container's limits stand in control groups; version 2 and version 1 are both read. ``root`` is the
file system's root, an argument so that tests can lay one out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

UNLIMITED_V1 = 1 << 60
"""Version 1 writes "no limit" as a number near 2^63, rounded down to a page."""


@dataclass(frozen=True, slots=True)
class Cores:
    """How many processor cores this process may keep busy."""

    host: int
    affinity: int
    """Cores in the process's affinity mask."""
    quota: float | None
    """Cores' worth of time per period that the control group grants; None = no quota."""

    @property
    def in_force(self) -> int:
        """Threads worth starting: the mask or the quota, whichever is less, but at least one."""
        return self.affinity if self.quota is None else max(1, min(self.affinity, int(self.quota)))


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory in bytes; None = the system does not say."""

    total: int | None
    available: int | None
    limit: int | None
    """What the control group grants; None = no limit."""


def cores(*, root: Path = Path("/")) -> Cores:
    """Count the cores that the affinity mask and the control group's quota leave."""
    host = os.cpu_count() or 1
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else host
    quotas = [
        *(_quota_v2(folder) for folder in _folders(root, "")),
        *(_quota_v1(folder) for folder in _folders(root, "cpu")),
    ]
    return Cores(host=host, affinity=affinity, quota=min((q for q in quotas if q is not None), default=None))


def memory(*, root: Path = Path("/")) -> Memory:
    """Read the machine's memory and the control group's limit."""
    info = dict(_meminfo(root / "proc/meminfo"))
    limits = [
        *(_number(folder / "memory.max") for folder in _folders(root, "")),
        *(_number(folder / "memory.limit_in_bytes") for folder in _folders(root, "memory")),
    ]
    real = [limit for limit in limits if limit is not None and limit < UNLIMITED_V1]
    return Memory(
        total=info.get("MemTotal"), available=info.get("MemAvailable"), limit=min(real, default=None)
    )


def resident(*, root: Path = Path("/")) -> int | None:
    """Bytes of this process that are in memory now (not the most there ever were); None = not told."""
    fields = _read(root / "proc/self/statm").split()
    if len(fields) < 2 or not fields[1].isdigit():
        return None
    return int(fields[1]) * os.sysconf("SC_PAGESIZE")


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's group and of all above it; ``controller`` is empty for version 2."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controller not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup"
        top = top / controllers if controller else top
        if controller and not top.is_dir():
            top = top.with_name(controller)
        # Inside a container the path is often the host's and not there; the top is then the group itself.
        parts = [part for part in group.split("/") if part not in ("", "..")]
        for depth in range(len(parts), -1, -1):
            yield top.joinpath(*parts[:depth])


def _quota_v2(folder: Path) -> float | None:
    fields = _read(folder / "cpu.max").split()
    if len(fields) != 2 or not all(field.isdigit() for field in fields) or int(fields[1]) == 0:
        return None
    return int(fields[0]) / int(fields[1])


def _quota_v1(folder: Path) -> float | None:
    quota = _number(folder / "cpu.cfs_quota_us")
    period = _number(folder / "cpu.cfs_period_us")
    return quota / period if quota and period else None


def _meminfo(path: Path) -> Iterator[tuple[str, int]]:
    for line in _read(path).splitlines():
        name, _, rest = line.partition(":")
        fields = rest.split()
        if len(fields) == 2 and fields[0].isdigit() and fields[1] == "kB":
            yield name, int(fields[0]) * 1024


def _number(path: Path) -> int | None:
    """The number in a file; None when the file says ``max`` or ``-1``, or is not there."""
    text = _read(path).strip()
    return int(text) if text.isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
