"""One problem, everybody on it: admitted by a right answer, timed in the same rounds, checked again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from checking import Oracle
from ours import FLOAT32, INT8, KernelRow, SessionRow, Stored, all_threads
from peers import Contestant, contestants
from reading import ReadLoops
from rondel.decoder import pool
from shapes import Problem, Shape
from timing import Measure, Timing, interleave, ratio, wall

Progress = Callable[[str], object]


@dataclass(slots=True)
class Result:
    """What one shape gave. Rows by contestant name."""

    shape: Shape
    timings: dict[str, Timing] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    reads: dict[str, dict[str, Timing]] = field(default_factory=dict)
    """Storage type -> read loop -> timing."""
    bytes_read: dict[str, int] = field(default_factory=dict)
    """Storage type -> bytes that attention and the read loops read."""
    missing: dict[str, str] = field(default_factory=dict)
    """Peers without a row, and why."""

    @property
    def peers(self) -> dict[str, Timing]:
        """Rows that are not ours."""
        return {name: timing for name, timing in self.timings.items() if not name.startswith("rondel")}

    def ratio(self, by: Measure = wall) -> float | None:
        """How many times faster ours is than the fastest peer; None without peers."""
        return min((ratio(peer, self.timings[INT8], by) for peer in self.peers.values()), default=None)

    def read_us(self, storage: str = "int8") -> float:
        """The fastest read loop, microseconds."""
        return min(timing.us for timing in self.reads[storage].values())

    def share(self, storage: str = "int8", by: Measure = wall) -> float:
        """Which part of the read bandwidth attention reaches: that of the loop which reads fastest."""
        ours = self.timings[INT8 if storage == "int8" else FLOAT32]
        return min(ratio(read, ours, by) for read in self.reads[storage].values())


def measure(
    problem: Problem,
    *,
    peers: Sequence[str],
    rounds: int,
    threads: int = 1,
    tiers: Sequence[str] = (),
    storages: Sequence[str] = ("int8", "float32"),
    progress: Progress = lambda text: None,
) -> Result:
    """Time all contestants on one problem.

    Raises:
        WrongAnswer: one of ours computed something else, or any did after the timing.
    """
    result, oracle = Result(problem.shape), Oracle()
    stores = {storage: Stored(problem, storage) for storage in storages}
    loops = {storage: ReadLoops(stored, threads) for storage, stored in stores.items()}
    ours: list[SessionRow | KernelRow] = [SessionRow(stored) for stored in stores.values()]
    if threads < all_threads():
        ours += [SessionRow(stored, threads=all_threads()) for stored in stores.values()]
    ours += [KernelRow(stored, tier) for stored in stores.values() for tier in tiers]
    for mine in ours:
        progress(f"{mine.name}: checked")
        result.errors[mine.name] = _admit(mine, problem, threads, oracle)
    rows: list[Contestant] = [*ours]
    others, result.missing = contestants(peers)
    for row in others:
        progress(f"{row.name}: checked")
        try:
            result.errors[row.name] = _admit(row, problem, threads, oracle)
        except Exception as error:  # noqa: BLE001  a foreign engine: whatever it raises is the reason we give
            result.missing[row.name] = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
        else:
            rows.append(row)
    calls: dict[str, Callable[[], object]] = {}
    for storage, loop in loops.items():
        result.bytes_read[storage] = stores[storage].bytes_read
        reads = [(f"read {storage}: {name}", call) for name, call in loop.calls.items()]
        mine_here = [(mine.name, mine.run) for mine in ours if mine.storage == storage]
        # Whoever walks the same bytes after another finds them warmer: the loops stand on both sides.
        calls |= dict([*reads[: len(reads) // 2], *mine_here, *reads[len(reads) // 2 :]])
    calls |= {row.name: row.run for row in rows if row.name not in calls}
    width = {mine.name: mine.threads or threads for mine in ours}

    now = 0

    def before(name: str) -> None:
        nonlocal now
        if now != (now := width.get(name, threads)):
            pool.set_threads(now)
        progress(name)

    timings = interleave(calls, rounds, before=before)
    result.timings = {row.name: timings[row.name] for row in rows}
    result.reads = {
        storage: {name: timings[f"read {storage}: {name}"] for name in loop.calls}
        for storage, loop in loops.items()
    }
    for row in rows:
        progress(f"{row.name}: checked again")
        oracle.check(row.name, row.answer(), row.computed_from(), row.tolerance)
        row.close()
    for storage, stored in stores.items():
        loops[storage].close()
        stored.close()
    return result


def _admit(row: Contestant, problem: Problem, threads: int, oracle: Oracle) -> float:
    row.prepare(problem, threads)
    row.run()
    return oracle.check(row.name, row.answer(), row.computed_from(), row.tolerance)
