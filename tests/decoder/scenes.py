"""Calls to be killed within, one of each kind, and how what is left behind in the file is judged.

Each stream must be as before the call or as after it, and must go on as one that was never interrupted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from deeds import Deed, Streams, carry_out, tokens
from families import SPECS
from survivors import same

from rondel.decoder.attach import attach
from rondel.decoder.cache.arena import Arena, ArenaStats
from rondel.decoder.errors import QuotaExceeded
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec

BUDGET = 6 << 20
Act = Callable[[Streams, Arena], object]


def deed(do: str, on: object = "s", **more: object) -> Act:
    plain: Deed = {"do": do, "number": 77, "new": "new", "on": on, **more}
    return lambda streams, arena: carry_out(plain, streams, arena)


NOTHING = deed("none")


@dataclass(frozen=True)
class Scene:
    """A stream ``s`` of so many tokens, what is done before, and the call. ``done`` is what the call comes to
    once it is there, if that is another one."""

    kind: str
    tokens: int
    act: Act
    first: Act = NOTHING
    done: Act | None = None

    def begin(self, arena: Arena) -> Streams:
        """All up to the call."""
        streams = {"s": grown(DecoderSession(SPECS[self.kind], arena, tag=b"s"), self.tokens)}
        self.first(streams, arena)
        return streams

    def judge(self, path: Path) -> None:
        """Hold a file to what it may have after a kill within the call."""
        before, after = self._in_memory(), self._in_memory(self.done or self.act)
        arena = Arena(BUDGET, path=path)
        there: Streams = {}
        for each in attach(arena):
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

    def _in_memory(self, *acts: Act) -> Streams:
        """The same without a file, as it would be attached to."""
        arena = Arena(64 << 20)
        streams = self.begin(arena)
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


def all_pages(spec: StreamSpec) -> int:
    """Tokens that a stream takes to have all pages that it ever has."""
    return min(spec.length_limit, 700)


def failing(act: Act) -> Act:
    """A call that fails at its end, and is undone. One that is killed meanwhile may be there as if it had not
    failed: nobody was told yet."""

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


def start_again(streams: Streams, arena: Arena) -> None:
    """What a server does when it starts. A memory arena has no such thing."""
    if arena.file is not None:
        arena.close()
        attach(Arena(BUDGET, path=arena.file.path))


GROW = deed("all", tokens=5)
LONG = deed("long", tokens=600)
AHEAD = deed("append", layer=0, tokens=3)
FORK = deed("fork", quota=None)
SCENES = {
    "open": Scene("ring", 0, deed("open", spec="ring")),
    "first tokens": Scene("ring", 0, GROW),
    "first tokens of endless": Scene("endless", 0, GROW),
    "a new page": Scene("endless", 126, GROW),
    "rewriting a page": Scene("ring", 386, GROW),
    "one layer": Scene("ring", 386, deed("step", layer=1, tokens=9)),
    "steps of two streams": Scene(
        "no sinks", 383, deed("steps", on=["s", "new"], tokens=2), deed("open", spec="no sinks")
    ),
    "pieces": Scene("endless", 100, LONG),
    "pieces that overwrite": Scene("ring", 386, LONG),
    "truncate": Scene("ring", 386, deed("truncate", length=380)),
    "truncate of layers that are not level": Scene("ring", 386, deed("truncate", length=380), AHEAD),
    "fork": Scene("endless", 300, FORK),
    "fork with a quota": Scene("endless", 300, deed("fork", quota=9)),
    "writing to a shared page": Scene("endless", 300, GROW, FORK),
    "rewriting a shared page": Scene("ring", 386, GROW, FORK),
    "a fork writes": Scene("endless", 300, deed("all", on="new", tokens=5), deed("fork", quota=9)),
    "close": Scene("endless", 300, deed("close")),
    "close beside a fork": Scene("endless", 300, deed("close"), deed("fork", quota=0)),
    "seal": Scene("endless", 300, deed("seal")),
    "restore": Scene("ring", 386, deed("restore")),
    "close and open": Scene("ring", 300, one_after_another(deed("close"), deed("open", spec="endless"))),
    "attach": Scene("ring", 386, start_again, one_after_another(FORK, AHEAD)),
    "a failed call": Scene("ring", 386, failing(GROW), done=GROW),
    "failed pieces": Scene("endless", 100, failing(LONG), done=LONG),
    "failed pieces that overwrite": Scene("ring", 386, failing(LONG), done=LONG),
}
