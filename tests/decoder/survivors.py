"""Kills a process again and again, and compares what it left behind with a replay, to the bit.

The replay is a stream alone in anonymous memory that is given every call that was acknowledged.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from deeds import Deed, Streams, carry_out
from killed import BUDGET

from rondel.decoder.attach import AttachedStream, attach
from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import RondelError
from rondel.decoder.session import DecoderSession

CHILD = Path(__file__).with_name("killed.py")


@dataclass
class Counts:
    """``points``: kills at crash points; the others came at any time. ``lost`` and ``wrong`` are streams."""

    kills: int = 0
    points: int = 0
    acknowledged: int = 0
    lost: int = 0
    wrong: int = 0
    failed_starts: int = 0
    trouble: list[str] = field(default_factory=list)

    def numbers(self) -> dict[str, int]:
        return {name: value for name, value in asdict(self).items() if name != "trouble"}


class Trial:
    """One file, killed many times. ``replay`` has what must be in it."""

    def __init__(self, path: Path, seed: int, planted: str = "") -> None:
        self.path, self.planted = path, planted
        self.rng = np.random.default_rng(seed)
        self.memory = Arena(512 << 20)
        self.replay: Streams = {}
        self.number = 1
        self.counts = Counts()
        self.names: set[str] = set()

    def kill(self) -> None:
        """Start a process, kill it, look at what is there."""
        # A planted mistake shows between two stores only, so those processes all die at one.
        at_point, last = (True, 3.0) if self.planted else (self.rng.random() < 0.5, 9.5)
        point = int(np.exp(self.rng.uniform(0, last))) if at_point else 0
        seconds = float(self.rng.exponential(0.05))
        lines = self._run(point, seconds)
        self.counts.kills += 1
        pending = self._acknowledge(lines)
        for line in lines:
            if "point" in line:
                self.counts.points += 1
                self.names.add(line["point"])
        self._look(pending)

    def _run(self, point: int, seconds: float) -> list[Any]:
        seed = int(self.rng.integers(2**31))
        command = [sys.executable, CHILD, self.path, seed, self.number, point, self.planted]
        child = subprocess.Popen([str(each) for each in command], stdout=subprocess.PIPE, env=environment())
        if child.stdout is None:
            raise RuntimeError("the process has no output")
        first = child.stdout.readline()
        if point:
            seconds = max(seconds, 0.3)  # when its point does not come, it is killed as the others are
        end = time.monotonic() + seconds
        os.set_blocking(child.stdout.fileno(), False)
        read = bytearray(first)
        while child.poll() is None and time.monotonic() < end:
            read += child.stdout.read() or b""
            time.sleep(0.001)
        if child.poll() is None:
            child.send_signal(signal.SIGKILL)
        code = child.wait()
        read += child.stdout.read() or b""
        child.stdout.close()
        if code != -signal.SIGKILL:
            self.counts.failed_starts += 1
            self.counts.trouble.append(f"the process ended with {code}")
        return [json.loads(line) for line in read.decode().splitlines()]

    def _acknowledge(self, lines: list[Any]) -> Deed | None:
        """Replay what was done; the deed that nothing was said about any more."""
        pending: Deed | None = None
        for line in lines:
            if "do" in line:
                pending, self.number = line, line["number"] + 1
            elif "done" in line:
                if pending is not None and "refused" not in line:
                    self._repeat({**pending, "failed": line["failed"]})
                pending = None
        return pending

    def _repeat(self, deed: Deed) -> None:
        self.counts.acknowledged += 1
        try:
            carry_out(_unbounded(deed), self.replay, self.memory)
        except RondelError as error:
            self.counts.wrong += 1
            self.counts.trouble.append(f"{deed} was done, but {type(error).__name__}: {error}")

    def _look(self, pending: Deed | None) -> None:
        try:
            arena = Arena(BUDGET, path=self.path)
            found = {each.tag.decode(): each for each in attach(arena)}
        except RondelError as error:
            self.counts.failed_starts += 1
            self.counts.trouble.append(f"{type(error).__name__}: {error}")
            return
        for name in sorted(set(found) | set(self.replay)):
            self._compare(name, found.get(name), pending)
        self._begin_again()
        arena.close()

    def _compare(self, name: str, there: AttachedStream | None, pending: Deed | None) -> None:
        # All of them first: what is compared is rolled back, and the deed began with what it was before.
        for replay in list(self._outcomes(name, pending)):
            if replay is None and there is None:
                self.replay.pop(name, None)
                return
            if replay is not None and there is not None and there.session is not None:
                replay.truncate(replay.length) if not replay.sealed else None
                if same(replay, there.session):
                    self.replay[name] = replay
                    return
        if there is None or there.session is None:
            self.counts.lost += 1
        else:
            self.counts.wrong += 1
        reason = "is not there" if there is None else there.reason or f"has {there.session.stats()}"  # type: ignore[union-attr]
        before = self.replay[name].stats() if name in self.replay else None
        self.counts.trouble.append(f"{name}: {reason}; before {before}; pending {pending}")
        if there is not None:
            there.drop()
        self.replay.pop(name, None)

    def _outcomes(self, name: str, pending: Deed | None) -> Iterator[DecoderSession | None]:
        """What may have become of a stream: it is as before the pending deed, or as after it."""
        yield self.replay.get(name)
        if pending is not None and name in (pending["new"], *np.atleast_1d(pending.get("on", ""))):
            yield self._after(name, pending)

    def _after(self, name: str, deed: Deed) -> DecoderSession | None:
        streams = {each: _copy(stream, self.memory) for each, stream in self.replay.items()}
        try:
            carry_out(_unbounded(deed), streams, self.memory)
        except (RondelError, KeyError):  # a stream that it names has just been given up as lost
            return self.replay.get(name)
        return streams.get(name)

    def _begin_again(self) -> None:
        """Replays that are alone, so that nothing of a fork's sharing is theirs."""
        old, self.memory = self.replay, Arena(512 << 20)
        self.replay = {name: _copy(stream, self.memory) for name, stream in old.items()}


def _unbounded(deed: Deed) -> Deed:
    """What a fork with a quota may rewrite depends on who else pays for it: a replay, which is alone,
    refuses nothing that was done."""
    return {**deed, "quota": None} if deed["do"] == "fork" else deed


def same(one: DecoderSession, other: DecoderSession) -> bool:
    """Whether two streams are equally long, hold the same bytes and give the same answers, to the bit."""
    if (one.length, one.sealed, one.spec) != (other.length, other.sealed, other.spec):
        return False
    rng = np.random.default_rng(one.length)
    for layer in range(one.spec.layers):
        if one.layer_length(layer) != other.layer_length(layer):
            return False
        group = one.spec.group(layer)
        start = 0 if group.window is None else max(0, one.length - group.window + 1)
        for first, stop in ((0, min(group.sinks, one.length)), (start, one.length)):
            if any(
                a.tobytes() != b.tobytes()
                for a, b in zip(*(s.read(layer, first, stop) for s in (one, other)), strict=True)
            ):
                return False
        if one.length:
            q = rng.standard_normal((1, group.query_heads, group.key_dim), dtype=np.float32)
            if one.attend(layer, q).tobytes() != other.attend(layer, q).tobytes():
                return False
    return True


def _copy(stream: DecoderSession, arena: Arena) -> DecoderSession:
    snapshot = BytesIO()
    stream.snapshot(snapshot)
    snapshot.seek(0)
    return DecoderSession.restore(snapshot, arena)


def environment() -> dict[str, str]:
    """For a process that finds what this one does."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(each for each in [*sys.path, str(CHILD.parent)] if each),
    }
