"""An arena's file of which something was overwritten or cut off.

Wherever it was: the file is refused, a stream is set aside with a reason, or its every answer is right; and
streams that the place is none of are as they were. Nothing crashes.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from arena_regions import Region, regions
from deeds import Streams, tokens
from families import SPECS
from scenes import grown
from survivors import same

from rondel.decoder.attach import AttachedStream, attach
from rondel.decoder.cache.arena import Arena
from rondel.decoder.cache.slabs import UNIT
from rondel.decoder.errors import CorruptArena, UnsupportedArena
from rondel.decoder.session import DecoderSession

BUDGET = 12 << 20


def streams_in(arena: Arena) -> Streams:
    """Forks that share pages and some that have copied, rings that have wrapped, both kinds of storage."""
    new = {
        name: DecoderSession(SPECS[spec], arena, tag=name.encode())
        for name, spec in {"a": "ring", "b": "ring centred", "c": "ring float32", "d": "endless"}.items()
    }
    grown(new["a"], 700, 0)
    new["fork of a"] = new["a"].fork(tag=b"fork of a")
    grown(new["fork of a"], 3, 1)
    new["a"].truncate(698, note=b"why")
    grown(new["b"], 300, 2)
    grown(new["c"], 300, 3)
    grown(new["d"], 200, 4)
    new["reader of d"] = new["d"].fork(tag=b"reader of d", max_new_tokens=5)
    grown(new["d"], 100, 5)
    grown(new["d"].fork(tag=b"x"), 1, 6).close()
    return new


@dataclass
class Sample:
    """A file, what is where in it, and what its streams must be."""

    path: Path
    regions: list[Region]
    streams: Streams

    def owners(self, start: int, stop: int) -> frozenset[str]:
        """All that these bytes may cost."""
        hit = (each.owners for each in self.regions if each.start < stop and start < each.stop)
        return frozenset[str]().union(*hit)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    path = tmp_path_factory.mktemp("sample") / "arena"
    arena = Arena(BUDGET, path=path)
    places = regions(streams_in(arena), arena)
    arena.close()
    return Sample(path, places, streams_in(Arena(64 << 20)))


class Damaged:
    """A copy of the sample's file."""

    def __init__(self, sample: Sample, path: Path) -> None:
        self.sample, self.path = sample, path
        self.all = set(sample.streams)

    def copy(self) -> None:
        shutil.copyfile(self.sample.path, self.path)

    def write(self, at: int, content: bytes) -> None:
        self.copy()
        with self.path.open("r+b") as file:
            file.seek(at)
            file.write(content)

    def flip(self, at: int, mask: int) -> None:
        with self.sample.path.open("rb") as file:
            file.seek(at)
            self.write(at, bytes([file.read(1)[0] ^ mask]))

    def judge(self, name: str, owners: frozenset[str], verify: str) -> bool:
        """Attach, compare what is there, and use it; whether anything was found to be wrong."""
        try:
            arena = Arena(BUDGET, path=self.path)
        except (CorruptArena, UnsupportedArena):
            assert self.path.stat().st_size == self.sample.path.stat().st_size
            assert name.startswith(("superblock", "nothing")), name
            return True
        found = attach(arena, verify=verify)
        there = {each.tag.decode(): each for each in found if each.session is not None}
        assert self.all - owners <= set(there) <= self.all, name
        aside = [each.reason for each in found if each.session is None]
        assert len(there) + len(aside) >= len(self.all), (name, aside)
        for tag, each in there.items():
            self._compare(tag, each, verify if tag in owners else "full", name)
            if tag in owners and verify == "full":
                go_on(each, self.sample.streams[tag], name)
        for each in found:
            each.drop()
        assert arena.stats().resident == 0, name
        arena.close()
        return bool(aside)

    def _compare(self, tag: str, each: AttachedStream, verify: str, name: str) -> None:
        twin, session = self.sample.streams[tag], each.session
        assert session is not None
        if verify == "full":
            assert same(session, twin), (name, tag)
            assert session.last_truncate == twin.last_truncate, (name, tag)
            return
        # "tail" says that the last page of every layer is right; what it has not looked at does no harm.
        assert session.length == twin.length, (name, tag)
        for layer in range(session.spec.layers):
            sinks, length = session.spec.group(layer).sinks, session.length
            first = length - 1 - (length - 1 - sinks) % 128
            for got, want in zip(*(s.read(layer, first, length) for s in (session, twin)), strict=True):
                assert got.tobytes() == want.tobytes(), (name, tag)
            session.attend(layer, tokens(np.random.default_rng(0), session, layer, 1)[0])


def go_on(each: AttachedStream, twin: DecoderSession, name: str) -> None:
    """Three tokens more give what they would have given."""
    session, fork = each.session, twin.fork(max_new_tokens=5)
    assert session is not None
    for layer in range(session.spec.layers):
        q, k, v = tokens(np.random.default_rng(9), session, layer, 3)
        assert session.step(layer, q, k, v).tobytes() == fork.step(layer, q, k, v).tobytes(), name
    fork.close()


@pytest.fixture
def damaged(sample: Sample, tmp_path: Path) -> Damaged:
    return Damaged(sample, tmp_path / "arena")


MANY = pytest.mark.parametrize(
    "times", [1, pytest.param(30, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
)
VERIFY = pytest.mark.parametrize("verify", ["full", "tail"])


@MANY
@VERIFY
def test_a_flipped_byte(
    sample: Sample, damaged: Damaged, rng: np.random.Generator, verify: str, times: int
) -> None:
    """So many of every kind of field, whosever they are."""
    kinds: dict[str, list[Region]] = {}
    for region in sample.regions:
        if region.stop > region.start:
            kinds.setdefault(region.name, []).append(region)
    unnoticed = set(kinds)
    for kind, places in kinds.items():
        for number in range(times):
            region = places[int(rng.integers(len(places)))]
            at = int(rng.integers(region.start, region.stop))
            damaged.flip(at, 0xFF if number % 2 else 1 << int(rng.integers(8)))
            if damaged.judge(f"{kind} at {at}, {verify}", region.owners, verify):
                unnoticed.discard(kind)
    harmless = {kind for kind in kinds if kind.endswith(("unused", "between", "slab map: free"))}
    assert unnoticed >= harmless
    if times > 1 and verify == "full":
        # Not every byte of the others matters (padding of rows, slots that hold nothing), but many do.
        assert unnoticed == harmless


@MANY
@VERIFY
@pytest.mark.parametrize("how", ["zeros", "noise"])
def test_an_overwritten_block(
    sample: Sample, damaged: Damaged, rng: np.random.Generator, how: str, verify: str, times: int
) -> None:
    """4 KiB, as a disk or another program's stray write has it."""
    used = [region for region in sample.regions if region.owners]
    for _ in range(4 * times):
        at = used[int(rng.integers(len(used)))].start >> 12 << 12
        damaged.write(at, bytes(4096) if how == "zeros" else rng.bytes(4096))
        damaged.judge(f"{how} at {at}, {verify}", sample.owners(at, at + 4096), verify)


@MANY
def test_all_from_some_place_on_is_gone(
    sample: Sample, damaged: Damaged, rng: np.random.Generator, times: int
) -> None:
    """The file has its size again, as after a copy that broke off."""
    for _ in range(4 * times):
        at = sample.regions[int(rng.integers(len(sample.regions)))].start
        damaged.copy()
        with damaged.path.open("r+b") as file:
            file.truncate(at)
            file.truncate(sample.path.stat().st_size)
        damaged.judge(f"nothing from {at} on", sample.owners(at, 1 << 60), "full")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_place_where_a_small_file_may_end(tmp_path: Path) -> None:
    path = tmp_path / "arena"
    arena = Arena(2 * UNIT, path=path)
    grown(DecoderSession(SPECS["no sinks"], arena), 3)
    arena.close()
    for size in range(path.stat().st_size - 1, 0, -1):
        os.truncate(path, size)
        with pytest.raises(CorruptArena):
            Arena(2 * UNIT, path=path)
    assert path.read_bytes() == b"\x89"
