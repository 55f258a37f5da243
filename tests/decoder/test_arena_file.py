"""An arena's file that is in use, does not fit, is of another version, or was damaged."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from deeds import tokens
from families import SPECS

from rondel.decoder.attach import attach
from rondel.decoder.cache.arena import Arena
from rondel.decoder.cache.superblock import _FIELDS, MAGIC
from rondel.decoder.errors import (
    ArenaFileBusy,
    ArenaFileError,
    CorruptArena,
    RondelError,
    UnsupportedArena,
)
from rondel.decoder.session import DecoderSession

BUDGET = 12 << 20
UNITS_AT = 2 << 20
SPEC = SPECS["ring"]


def grown(arena: Arena, count: int, seed: int, tag: bytes) -> DecoderSession:
    session, rng = DecoderSession(SPEC, arena, tag=tag), np.random.default_rng(seed)
    for part in session.chunks(count):
        for layer in range(SPEC.layers):
            session.append(layer, *tokens(rng, session, layer, part.stop - part.start)[1:])
    return session


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "arena"


@pytest.fixture
def content(path: Path) -> bytes:
    """A file with three streams, two of which share pages."""
    arena = Arena(BUDGET, path=path)
    grown(arena, 300, 0, b"a").fork(tag=b"fork")
    grown(arena, 500, 1, b"b")
    arena.close()
    return path.read_bytes()


def test_a_file_is_only_its_owners_and_has_all_its_bytes(path: Path) -> None:
    Arena(BUDGET, path=path)
    state = path.stat()
    assert state.st_mode & 0o777 == 0o600
    assert state.st_size == UNITS_AT + BUDGET
    assert state.st_blocks * 512 >= state.st_size


def test_a_second_owner_is_refused_until_the_first_has_closed(path: Path) -> None:
    arena = Arena(BUDGET, path=path)
    for _ in range(2):
        with pytest.raises(ArenaFileBusy, match="in use"):
            Arena(BUDGET, path=path)
    program = f"from rondel import Arena; Arena({BUDGET}, path={str(path)!r})"
    command, env = [sys.executable, "-c", program], {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    refused = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert "ArenaFileBusy" in refused.stderr
    arena.close()
    subprocess.run(command, env=env, check=True)
    Arena(BUDGET, path=path)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_an_error_at_the_start_and_leaves_nothing(path: Path) -> None:
    with largest_file(4 << 20), pytest.raises(ArenaFileError, match="no room"):
        Arena(BUDGET, path=path)
    assert not path.exists()
    Arena(BUDGET, path=path)


@pytest.mark.parametrize("name", ["folder", "fifo", "missing/arena"])
def test_what_is_no_plain_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ArenaFileError):
        Arena(BUDGET, path=tmp_path / name)


@pytest.mark.parametrize(
    "text", [b"x", b"some text\n" * 1000, bytes(1 << 20)], ids=["short", "text", "zeros"]
)
def test_a_file_of_something_else_is_left_alone(path: Path, text: bytes) -> None:
    path.write_bytes(text)
    with pytest.raises(CorruptArena, match="no arena"):
        Arena(BUDGET, path=path)
    assert path.read_bytes() == text


def test_another_size_is_refused(path: Path, content: bytes) -> None:
    with pytest.raises(ArenaFileError, match=f"arena of {BUDGET} bytes, asked for were {4 << 20}") as caught:
        Arena(4 << 20, path=path)
    assert caught.value.facts["budget"] == BUDGET
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("field", "name"), [(1, "version"), (2, "page format"), (3, "unit"), (0, "byte order")]
)
def test_another_version_is_refused_and_left_alone(path: Path, content: bytes, field: int, name: str) -> None:
    fields = list(_FIELDS.unpack_from(content, len(MAGIC)))
    fields[field] *= 2
    raw = _FIELDS.pack(*fields)
    changed = MAGIC + raw + zlib.crc32(raw).to_bytes(4, "little") + content[len(MAGIC) + len(raw) + 4 :]
    path.write_bytes(changed)
    with pytest.raises(UnsupportedArena, match=name) as caught:
        Arena(BUDGET, path=path)
    assert caught.value.version == fields[field]
    assert path.read_bytes() == changed


@pytest.mark.parametrize(
    "size", [1, 8, 55, 56, 4096, 4100, 8192, UNITS_AT, UNITS_AT + 1, UNITS_AT + BUDGET - 1]
)
def test_a_file_that_was_cut_is_refused_and_left_alone(path: Path, content: bytes, size: int) -> None:
    path.write_bytes(content[:size])
    with pytest.raises(CorruptArena):
        Arena(BUDGET, path=path)
    assert path.read_bytes() == content[:size]


def test_a_file_that_was_never_finished_is_begun_anew(path: Path, content: bytes) -> None:
    path.write_bytes(b"\x89RNDLNEW" + content[8:5000])
    assert attach(Arena(BUDGET, path=path)) == []
    assert path.stat().st_size == UNITS_AT + BUDGET


def test_a_damaged_stream_is_set_aside_at_every_start_until_it_is_dropped(path: Path, content: bytes) -> None:
    at = content.find(b"RNDLSTRM", content.find(b"RNDLSTRM") + 1) + 100
    path.write_bytes(content[:at] + b"?" + content[at + 1 :])
    for _ in range(3):
        arena = Arena(BUDGET, path=path)
        found = attach(arena)
        (aside,) = [each for each in found if each.reason]
        assert "record" in aside.reason
        arena.close()
    arena = Arena(BUDGET, path=path)
    for each in attach(arena):
        each.drop()
    assert arena.stats().reserved == 0
    arena.close()
    assert attach(Arena(BUDGET, path=path)) == []


def test_tail_sees_the_last_page_and_full_sees_all(path: Path) -> None:
    arena = Arena(BUDGET, path=path)
    session = grown(arena, 200, 0, b"s")
    first, last = (int(session._ring(0).table(0)[1 + page]) for page in (0, 1))
    arena.close()
    content = path.read_bytes()
    for offset, tail in ((first, ""), (last, "layer 0")):
        changed = bytearray(content)
        changed[UNITS_AT + offset] ^= 1
        path.write_bytes(changed)
        for verify, reason in (("tail", tail), ("full", "layer 0")):
            arena = Arena(BUDGET, path=path)
            (each,) = attach(arena, verify=verify)
            assert reason in each.reason
            assert bool(reason) == bool(each.reason)
            arena.close()


def test_errors_are_of_the_tree() -> None:
    for kind in (ArenaFileError, ArenaFileBusy, CorruptArena, UnsupportedArena):
        assert issubclass(kind, RondelError)
        assert issubclass(kind, OSError)
        assert str(kind("text")) == "text"
