"""``make fuzz``: a server is sent what no client should send, while others use it; exit code 1 if it minds.

The server has a small language model and projections. Streams of a load generator run beside, every answer
of theirs compared. The seed is printed first; what is found is printed with the call's number, and
``--seed S --call N`` makes that call alone, of a stream as it was.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tinygguf
import tinysafetensors
from fuzz import Found, Fuzz
from rich.console import Console
from rich.live import Live
from rich.table import Table
from targets import D_MODEL, PROJECTED, PROJECTIONS
from watched import Watched

from rondel.client.load.recorder import OK

LEASE = 20.0
HARMLESS = {OK, "OVERLOADED"}
"""How operations of others may end: large messages can fill the queue."""
err = Console(stderr=True, highlight=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--duration", type=float, default=600.0, help="seconds")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--call", type=int, default=None, help="only the call of this number")
    parser.add_argument("--attackers", type=int, default=4)
    parser.add_argument("--target", default=None, help="attack this server, not one of our own")
    parser.add_argument("--rate", type=float, default=None, help="calls per second; default: no bound")
    arguments = parser.parse_args()
    seed = int.from_bytes(os.urandom(4)) if arguments.seed is None else arguments.seed
    err.print(f"seed {seed}")
    if arguments.target is not None:
        fuzz = Fuzz(arguments.target, seed, attackers=arguments.attackers)
        found = asyncio.run(fuzz.run(seconds=arguments.duration, rate=arguments.rate))
    else:
        with tempfile.TemporaryDirectory() as folder, victim(Path(folder)) as server:
            found = attacked(server, seed, arguments)
    for line in found.told:
        err.print(line, soft_wrap=True, markup=False)
    sys.stdout.write(json.dumps(numbers(found)) + "\n")
    return int(found.faults > 0)


@contextmanager
def victim(folder: Path, **options: object) -> Iterator[Watched]:
    """A server with all that can be asked of one."""
    model = tinygguf.write(folder / "tiny.gguf")
    weights = tinysafetensors.draw(PROJECTED, D_MODEL)
    projections = tinysafetensors.save(folder / "projections.safetensors", weights)
    settings = {"budget_bytes": 256 << 20, "idle_lease_seconds": LEASE, "log_level": "warning", **options}
    with Watched(model=model, projections=f"{PROJECTIONS}={projections}", **settings) as server:
        yield server


def attacked(server: Watched, seed: int, arguments: argparse.Namespace) -> Found:
    """What comes of the attack, and of the others meanwhile."""
    before = server.vitals()
    fuzz = Fuzz(server.address, seed, attackers=arguments.attackers, alive=lambda: server.alive)
    one = arguments.call
    if one is None:
        with bystanders(server.address, arguments.duration) as others:
            asyncio.run(shown(fuzz, server, arguments))
            look_at(others, fuzz.found)
    else:
        asyncio.run(fuzz.run(seconds=60.0, first=one, calls=1))
    found = fuzz.found
    if server.alive:
        after = server.settled(before, 2 * LEASE)
        for name in ("fds", "tasks", "streams", "reserved"):
            if getattr(after, name) > getattr(before, name):
                found.changed += 1
                found.told.append(f"{name}: {getattr(before, name)} before, {getattr(after, name)} after")
        if (code := server.stop()) != 0:
            found.crashes += 1
            found.told.append(f"the server ended with exit code {code}")
    for line in server.complaints():
        found.undocumented += 1
        found.told.append(f"the server's log: {line}")
    return found


async def shown(fuzz: Fuzz, server: Watched, arguments: argparse.Namespace) -> None:
    """Attack, and show how it goes."""
    begin = time.monotonic()
    with Live(console=err, auto_refresh=False, transient=True) as screen:
        running = asyncio.create_task(fuzz.run(seconds=arguments.duration, rate=arguments.rate))
        while not running.done():
            await asyncio.wait([running], timeout=0.5 if err.is_terminal else 30.0)
            elapsed = time.monotonic() - begin
            if err.is_terminal:
                screen.update(table(fuzz.found, elapsed), refresh=True)
            else:
                err.print(f"{elapsed:6.0f} s  {json.dumps(numbers(fuzz.found))}")
        await running
    err.print(table(fuzz.found, time.monotonic() - begin))


@contextmanager
def bystanders(address: str, duration: float) -> Iterator[subprocess.Popen[str]]:
    """Streams of somebody else, used all the time, every answer compared."""
    options = ["--streams=16", "--closed=2", "--attend-fraction=0.2", "--truncate-fraction=0.1", "--json"]
    shape = ["--layers=2", "--query-heads=4", "--kv-heads=2", "--head-dim=16", "--window=64"]
    command = [sys.executable, "-m", "rondel.client.cli", "load", address, f"--duration={duration}"]
    with subprocess.Popen([*command, *options, *shape], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def look_at(others: subprocess.Popen[str], found: Found) -> None:
    """What has become of them."""
    try:
        said, _ = others.communicate(timeout=120)
        result = json.loads(said.splitlines()[-1])
    except (subprocess.TimeoutExpired, IndexError, ValueError):
        found.hangs += 1
        found.told.append("the streams beside did not come to their end")
        return
    err.print(f"beside: {result['answers']}, {result['status']}")
    ended = Counter(result["status"])
    strange = {status: count for status, count in ended.items() if status not in HARMLESS}
    found.changed += result["answers"]["wrong"] + sum(strange.values())
    if strange or result["answers"]["wrong"]:
        found.told.append(f"beside: {strange}, {result['answers']}")
    if not ended[OK]:
        found.hangs += 1
        found.told.append("nothing was answered beside")


def numbers(found: Found) -> dict[str, int]:
    return {name: getattr(found, name) for name in ("calls", "crashes", "hangs", "changed", "undocumented")}


def table(found: Found, elapsed: float) -> Table:
    """How calls ended, by method."""
    counts = numbers(found)
    faults = ", ".join(f"{counts[name]} {name}" for name in counts if name != "calls")
    title = f"{found.calls} calls in {elapsed:.0f} s, seed {found.seed}: {faults}"
    shown = Table(title=title, title_justify="left")
    for column in ("method", "calls", "OK", "ended as"):
        shown.add_column(column, justify="right" if column in ("calls", "OK") else "left")
    for method, endings in sorted(found.endings.items()):
        others = ", ".join(f"{reason} {count}" for reason, count in endings.most_common() if reason != OK)
        shown.add_row(method, str(endings.total()), str(endings[OK]), others)
    return shown


if __name__ == "__main__":
    sys.exit(main())
