"""``make bench-restart``: how long a start on an arena's file takes, per GiB of streams.

Streams of a small model's shape are stored in a file until they hold ``--gib``; then the file is opened again
and attached to as a server does it, once looking at the last page of each layer only and once at every token.
Timed are the opening with the streams' records, the first right answer, of a stream that is looked at for it
while the others are looked at on a thread of their own, and all streams. The file's pages are in the system's
cache, as they are after a kill: this is no benchmark of a disk.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from rondel.decoder.attach import attach
from rondel.decoder.cache.arena import Arena
from rondel.decoder.kernels import TIER
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec

SPEC = StreamSpec.uniform(layers=16, query_heads=16, kv_heads=4, head_dim=128, max_length=8192)
TOKENS = 8192
GIB = 1 << 30


@dataclass(frozen=True)
class Restart:
    """Seconds since the arena was asked for, but for ``per_gib``: of ``all_streams``, per GiB of pages."""

    verify: str
    opened: float
    attached: float
    first_attend: float
    all_streams: float
    per_gib: float


def fill(path: Path, budget: int, wanted: int) -> tuple[int, int, bytes]:
    """Store streams; their number, their bytes and an answer of the last one."""
    rng = np.random.default_rng(0)
    arena, count = Arena(budget, path=path), 0
    tokens = rng.standard_normal((2, SPEC.layers, 1024, 4, 128), dtype=np.float32)
    while arena.stats().resident < wanted:
        session = DecoderSession(SPEC, arena, tag=str(count).encode())
        for _ in range(TOKENS // 1024):
            session.append_all(tokens[0], tokens[1])
        count += 1
    answer = session.attend(0, question()).tobytes()
    resident = arena.stats().resident
    arena.close()
    return count, resident, answer


def question() -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """One query row of the first layer."""
    return np.random.default_rng(1).standard_normal((1, 16, 128), dtype=np.float32)


def restart(path: Path, budget: int, verify: str, resident: int, answer: bytes) -> Restart:
    """Open the file and attach."""
    begin = time.perf_counter()
    arena = Arena(budget, path=path)
    opened = time.perf_counter() - begin
    found = attach(arena, verify=verify, lazily=True)
    attached = time.perf_counter() - begin
    with ThreadPoolExecutor(1) as aside:
        looking = [aside.submit(each.verify) for each in found]
        session = found[-1].session
        if session is None or session.attend(0, question()).tobytes() != answer:
            raise SystemExit("the answer after the restart is another one")
        first = time.perf_counter() - begin
        reasons = [reason for each in looking if (reason := each.result())]
    all_streams = time.perf_counter() - begin
    if reasons:
        raise SystemExit(f"streams were damaged: {reasons}")
    arena.close()
    return Restart(verify, opened, attached, first, all_streams, all_streams * GIB / resident)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--folder", default=None, help="where the file is; default the system's for such")
    arguments = parser.parse_args()
    wanted = int(arguments.gib * GIB)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path, budget = Path(folder) / "arena", int(1.2 * wanted) + (512 << 20)
        begin = time.perf_counter()
        Arena(budget, path=path).close()
        made = time.perf_counter() - begin
        streams, resident, answer = fill(path, budget, wanted)
        results = [restart(path, budget, verify, resident, answer) for verify in ("tail", "full")]
    print(f"{streams} streams of {TOKENS} tokens, {resident / GIB:.2f} GiB; tier {TIER}")
    print(f"making the file: {made:.2f} s for {budget / GIB:.2f} GiB")
    print(f"{'verify':8}{'opened':>10}{'attached':>10}{'attend':>10}{'all':>10}{'per GiB':>10}   seconds")
    for each in results:
        numbers = (each.opened, each.attached, each.first_attend, each.all_streams, each.per_gib)
        print(f"{each.verify:8}" + "".join(f"{number:10.3f}" for number in numbers))
    line = {"streams": streams, "bytes": resident, "made": made, "cores": len(os.sched_getaffinity(0))}
    print(json.dumps({**line, "restarts": [asdict(each) for each in results]}))


if __name__ == "__main__":
    main()
