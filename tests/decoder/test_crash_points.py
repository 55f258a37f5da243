"""What a file holds at every moment of a call: before each store that matters and after it.

The file is copied there, and the copy attached to: as if the process had been killed at that very place. Each
stream must be as before the call or as after it, and must go on as one that was never interrupted.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from deeds import Deed, Streams, carry_out, tokens
from families import SPECS
from survivors import same

from rondel.decoder.attach import attach
from rondel.decoder.cache import crash
from rondel.decoder.cache.arena import Arena, ArenaStats
from rondel.decoder.errors import QuotaExceeded
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec

BUDGET = 6 << 20
SPEC = SPECS["ring"]
Act = Callable[[Streams, Arena], object]


def deed(do: str, on: str = "s", **more: object) -> Act:
    plain: Deed = {"do": do, "number": 77, "new": "new", "on": on, **more}
    return lambda streams, arena: carry_out(plain, streams, arena)


def failing(act: Act) -> Act:
    """A call that fails at its end, and is undone."""

    def run(streams: Streams, arena: Arena) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("rondel.decoder.call.LayerCall.finish", _refuse)
            with pytest.raises(MemoryError):
                act(streams, arena)

    return run


def _refuse(call: object) -> None:
    raise MemoryError


def one_after_another(*acts: Act) -> Act:
    def run(streams: Streams, arena: Arena) -> None:
        for act in acts:
            act(streams, arena)

    return run


GROW = deed("all", tokens=5)
ACTS: dict[str, tuple[str, int, Act, Act]] = {
    # name: kind of stream, tokens, what is done before, the call
    "open": ("ring", 0, deed("none"), deed("open", spec="ring")),
    "first tokens": ("ring", 0, deed("none"), GROW),
    "first tokens of endless": ("endless", 0, deed("none"), GROW),
    "a new page": ("endless", 126, deed("none"), GROW),
    "rewriting a page": ("ring", 386, deed("none"), GROW),
    "one layer": ("ring", 386, deed("none"), deed("step", layer=1, tokens=9)),
    "pieces": ("endless", 100, deed("none"), deed("long", tokens=600)),
    "truncate": ("ring", 386, deed("none"), deed("truncate", length=380)),
    "truncate of layers that are not level": (
        "ring",
        386,
        deed("append", layer=0, tokens=3),
        deed("truncate", length=380),
    ),
    "fork": ("endless", 300, deed("none"), deed("fork", quota=None)),
    "fork with a quota": ("endless", 300, deed("none"), deed("fork", quota=9)),
    "writing to a shared page": ("endless", 300, deed("fork", quota=None), GROW),
    "rewriting a shared page": ("ring", 386, deed("fork", quota=None), GROW),
    "a fork writes": ("endless", 300, deed("fork", quota=9), deed("all", on="new", tokens=5)),
    "close": ("endless", 300, deed("none"), deed("close")),
    "close beside a fork": ("endless", 300, deed("fork", quota=0), deed("close")),
    "seal": ("endless", 300, deed("none"), deed("seal")),
    "restore": ("ring", 386, deed("none"), deed("restore")),
    "close and open": (
        "ring",
        300,
        deed("none"),
        one_after_another(deed("close"), deed("open", spec="endless")),
    ),
}


FAILING = {
    "a failed call": ("ring", 386, GROW),
    "failed pieces": ("endless", 100, deed("long", tokens=600)),
}


@contextmanager
def copies(path: Path, to: Path) -> Iterator[list[Path]]:
    """Copies of a file as it is at every crash point within the block."""
    made: list[Path] = []

    def copy(name: str) -> None:
        made.append(to / f"{len(made)} {name}")
        shutil.copyfile(path, made[-1])

    before, crash.crash_point = crash.crash_point, copy
    try:
        yield made
    finally:
        crash.crash_point = before


def memory(kind: str, count: int, *acts: Act) -> Streams:
    """The same without a file."""
    arena = Arena(64 << 20)
    streams = {"s": grown(DecoderSession(SPECS[kind], arena, tag=b"s"), count)}
    for act in acts:
        act(streams, arena)
    for each in streams.values():
        if not each.sealed:
            each.truncate(each.length)
    return streams


def grown(session: DecoderSession, count: int, seed: int = 0) -> DecoderSession:
    rng = np.random.default_rng(seed)
    for part in session.chunks(count):
        for layer in range(session.spec.layers):
            session.append(layer, *tokens(rng, session, layer, part.stop - part.start)[1:])
    return session


def all_pages(spec: StreamSpec) -> int:
    """Tokens that a stream takes to have all pages that it ever has."""
    return min(spec.length_limit, 700)


EVERY = pytest.mark.parametrize("most", [12, pytest.param(10**9, marks=pytest.mark.slow)])


@EVERY
@pytest.mark.parametrize("name", ACTS)
def test_at_every_moment_a_call_is_there_or_is_not(name: str, most: int, tmp_path: Path) -> None:
    kind, count, first, act = ACTS[name]
    compare(tmp_path, kind, count, first, act, act, most)


@EVERY
@pytest.mark.parametrize("name", FAILING)
def test_at_every_moment_a_call_that_fails_is_there_or_is_not(name: str, most: int, tmp_path: Path) -> None:
    """There as if it had not failed: nobody was told yet."""
    kind, count, act = FAILING[name]
    compare(tmp_path, kind, count, deed("none"), failing(act), act, most)


def compare(tmp_path: Path, kind: str, count: int, first: Act, act: Act, done: Act, most: int) -> None:
    """At ``most`` moments of the call."""
    path = tmp_path / "arena"
    arena = Arena(BUDGET, path=path)
    streams = {"s": grown(DecoderSession(SPECS[kind], arena, tag=b"s"), count)}
    first(streams, arena)
    with copies(path, tmp_path) as made:
        act(streams, arena)
    assert made
    for copy in made[:: -(-len(made) // most)]:
        check(copy, memory(kind, count, first), memory(kind, count, first, done))


def check(path: Path, before: Streams, after: Streams) -> None:
    arena = Arena(BUDGET, path=path)
    found = attach(arena)
    there: Streams = {}
    for each in found:
        assert each.session is not None, (path.name, each.reason)
        there[each.tag.decode()] = each.session
    for name in {*before, *after, *there}:
        outcomes = [streams.get(name) for streams in (before, after)]
        if name not in there:
            assert None in outcomes, (path.name, name)
            continue
        twins = [each for each in outcomes if each is not None and same(there[name], each)]
        assert twins, (path.name, name, there[name].length)
        go_on(there[name], twins[0])
    for session in there.values():
        session.close()
    assert arena.stats() == ArenaStats(BUDGET, 0, 0), path.name
    assert not arena._pools
    arena.close()


def go_on(session: DecoderSession, twin: DecoderSession) -> None:
    """Until it has all its pages, or all that its quota allows."""
    if session.sealed:
        return
    wanted = all_pages(session.spec) - session.length
    quota = session._extent.quota
    if quota is not None:
        with pytest.raises(QuotaExceeded):
            grown(session, quota - session.length + 1, 3)
        wanted = session.length - twin.length
    else:
        grown(session, wanted, 3)
    grown(twin, wanted, 3)
    assert same(session, twin)


@pytest.mark.parametrize("moment", range(4))
def test_a_file_whose_making_was_cut_short_is_begun_anew(moment: int, tmp_path: Path) -> None:
    path = tmp_path / "arena"
    with copies(path, tmp_path) as made:
        Arena(BUDGET, path=path)
    copy = made[moment % len(made)]
    arena = Arena(BUDGET, path=copy)
    assert attach(arena) == []
    grown(DecoderSession(SPEC, arena), 10)
