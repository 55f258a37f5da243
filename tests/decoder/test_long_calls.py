"""Calls that a wrapped ring cannot take at once, killed in the middle: there whole, or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from deeds import tokens
from families import SPECS, pages_of
from moments import Moment, copies_at, moments_of, some_of, survivors_of
from survivors import same

from rondel.decoder.arena_report import report
from rondel.decoder.attach import attach
from rondel.decoder.batch import Step, StepResult, run_steps
from rondel.decoder.cache.arena import Arena, ArenaStats, Reservation
from rondel.decoder.cache.arena_file import ArenaFile
from rondel.decoder.cache.record import StreamRecord
from rondel.decoder.cache.slab_map import SlabMap
from rondel.decoder.cache.survey import survey
from rondel.decoder.errors import BudgetExceeded, ChunkTooLong
from rondel.decoder.session import DecoderSession

BUDGET = 6 << 20
LONG = 280
"""Tokens of a call: more than the rings have slots."""
Call = Callable[[DecoderSession], object]


def drawn(session: DecoderSession, count: int, seed: int) -> list[np.ndarray]:
    """q, k and v of all layers."""
    rng = np.random.default_rng(seed)
    rows = [tokens(rng, session, layer, count) for layer in range(session.spec.layers)]
    return [np.stack(arrays) for arrays in zip(*rows, strict=True)]


def grown(session: DecoderSession, count: int, seed: int = 0) -> DecoderSession:
    _, k, v = drawn(session, count, seed)
    session.append_all(k, v)
    return session


def long_append(session: DecoderSession) -> None:
    grown(session, LONG, 7)


def long_step(session: DecoderSession) -> None:
    session.step_all(*drawn(session, LONG, 7))


def one_layer_step(session: DecoderSession) -> None:
    q, k, v = drawn(session, LONG, 7)
    session.step(0, q[0], k[0], v[0])


def batched(session: DecoderSession) -> None:
    q, k, v = drawn(session, LONG, 7)
    (result,) = run_steps([Step(session, 0, q[0], k[0], v[0])])
    assert isinstance(result, StepResult)


def failing(call: Call) -> Call:
    def run(session: DecoderSession) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("rondel.decoder.call.LayerCall.finish", _refuse)
            with pytest.raises(MemoryError):
                call(session)

    return run


def _refuse(call: object) -> None:
    raise MemoryError


def none(session: DecoderSession) -> None: ...


def undone(session: DecoderSession) -> None:
    """Layers have claimed more than they hold."""
    session.truncate(session.length - 5)


def uneven(ahead: int) -> Call:
    """One layer has claimed so much more than all hold."""

    def run(session: DecoderSession) -> None:
        _, k, v = drawn(session, ahead, 5)
        session.append(0, k[0], v[0])
        session.truncate(session.length)

    return run


CASES = {
    # name: kind, tokens before, what is done before, the call
    "append": ("ring", 700, none, long_append),
    "float32": ("ring float32", 700, none, long_append),
    "step": ("ring centred", 700, none, long_step),
    "one layer": ("no sinks", 900, none, one_layer_step),
    "in a batch": ("no sinks", 900, none, batched),
    "wraps within": ("ring", 100, none, long_append),
    "from nothing": ("ring", 0, none, long_append),
    "after a truncate": ("ring", 700, undone, long_append),
    "after one layer's": ("ring", 700, uneven(7), long_append),
    "after all that one layer may": ("ring", 700, uneven(10), long_append),
}
FAILING = {
    "fails": ("ring", 700, none, long_append),
    "fails, one layer": ("no sinks", 900, none, one_layer_step),
}


def begun(path: Path, kind: str, count: int, first: Call = none) -> DecoderSession:
    """A stream in a file."""
    session = grown(DecoderSession(SPECS[kind], Arena(BUDGET, path=path), tag=b"s"), count)
    first(session)
    return session


def twin_of(kind: str, count: int, *calls: Call) -> DecoderSession:
    """The same in memory."""
    twin = grown(DecoderSession(SPECS[kind], Arena(64 << 20)), count)
    for call in calls:
        call(twin)
    return twin


def copies_of(
    tmp_path: Path, kind: str, count: int, first: Call, call: Call, ends: int, between: int
) -> list[Path]:
    """Files as they are at moments of the call; beside the stream there is a fork of it."""
    found: list[Moment] = []
    for number, path in enumerate((tmp_path / "counted", tmp_path / "arena")):
        session = begun(path, kind, count, first)
        fork = session.fork(tag=b"fork")
        if number == 0:
            found = moments_of(partial(call, session))
        else:
            copies = copies_at(some_of(found, ends, between), path, tmp_path, partial(call, session))
            assert same(fork, twin_of(kind, count, first))
    return copies


@pytest.mark.parametrize("name", [*CASES, *FAILING])
def test_at_every_moment_a_long_call_is_there_or_is_not(name: str, tmp_path: Path) -> None:
    kind, count, first, call = {**CASES, **FAILING}[name]
    before, after = twin_of(kind, count, first), twin_of(kind, count, first, call)
    outcomes = []
    carried_out = failing(call) if name in FAILING else call
    for number, copy in enumerate(copies_of(tmp_path, kind, count, first, carried_out, 3, 6)):
        arena, there = survivors_of(copy, BUDGET)
        outcomes.append(same(there["s"], after))
        assert outcomes[-1] or same(there["s"], before), (copy.name, there["s"].length)
        if number % 4 == 0:  # it goes on as one that was never interrupted, through all that its ring holds
            calls = (first, call) if outcomes[-1] else (first,)
            assert same(grown(there["s"], 300, 3), grown(twin_of(kind, count, *calls), 300, 3))
        assert same(there["fork"], before)
        for each in there.values():
            each.close()
        assert arena.stats() == ArenaStats(BUDGET, 0, 0)
        arena.close()
    assert not outcomes[0]
    if name in FAILING:  # there as if it had not failed until it was undone: nobody was told yet
        assert not outcomes[-1]
    else:
        assert outcomes == sorted(outcomes)
        assert outcomes[-1]


def middle_of(tmp_path: Path) -> Path:
    """A file as it is in the middle of a call."""
    return copies_of(tmp_path, "ring", 700, none, long_append, 0, 3)[1]


def test_a_process_may_be_killed_while_it_goes_back(tmp_path: Path) -> None:
    path, before = middle_of(tmp_path), twin_of("ring", 700)
    shutil.copyfile(path, tmp_path / "twice")
    found = moments_of(lambda: survivors_of(tmp_path / "twice", BUDGET))
    for copy in copies_at(some_of(found, 2, 6), path, tmp_path, lambda: survivors_of(path, BUDGET)):
        arena, there = survivors_of(copy, BUDGET)
        assert same(there["s"], before)
        assert same(there["fork"], before)
        arena.close()


def test_nothing_is_kept_beyond_the_call(tmp_path: Path) -> None:
    session = begun(tmp_path / "arena", "ring", 700)
    arena = session._arena
    before, reserved, record = arena.stats(), arena.account.reserved, session._pages.record
    assert isinstance(record, StreamRecord)
    for call in (long_append, failing(long_append)):
        call(session)
        assert (arena.stats(), arena.account.reserved) == (before, reserved)
        assert list(record.words.used(record.shape.saved)) == []


def test_without_room_for_the_copies_it_is_refused_and_short_calls_go_on(tmp_path: Path) -> None:
    session = begun(tmp_path / "arena", "ring", 700)
    fillers = filled(session._arena, session._rings[0].page_bytes(1))
    before, pages = session.stats(), pages_of(session)
    for call in (long_append, long_step):
        with pytest.raises(ChunkTooLong, match="no room to keep") as caught:
            call(session)
        assert caught.value.limit == session.max_chunk == 10
        assert (session.stats(), pages_of(session)) == (before, pages)
    _, k, v = drawn(session, LONG, 7)
    for start in range(0, LONG, 10):
        session.append_all(k[:, start : start + 10], v[:, start : start + 10])
    assert same(session, twin_of("ring", 700, long_append))
    fillers[0].release()
    fillers[1].release()
    grown(session, 20, 9)


def filled(arena: Arena, page_bytes: int) -> list[Reservation]:
    """Reservations of all that is left."""
    found = []
    while True:
        try:
            found.append(arena.reserve({page_bytes: 1}))
        except BudgetExceeded:
            return found


def test_a_report_tells_what_the_stream_goes_back_to(tmp_path: Path) -> None:
    path = middle_of(tmp_path)
    content = path.read_bytes()
    for stream in report(path, verify="full").streams:
        assert (stream.length, stream.reason) == (700, "")
    assert path.read_bytes() == content


def test_a_damaged_copy_sets_the_stream_aside(tmp_path: Path) -> None:
    """What it would go back to is looked at as everything is; its fork goes on."""
    path = middle_of(tmp_path)
    file = ArenaFile(path, None)
    drafts = {each.tag: each for each in survey(file, SlabMap.of(file))}
    assert drafts[b"s"].saved
    copies = set(drafts[b"s"].tables[0].ravel()) - set(drafts[b"fork"].tables[0].ravel())
    file.bytes[min(copies) + 5] ^= 1
    file.close()
    found = {each.tag: each for each in attach(Arena(BUDGET, path=path))}
    assert "is not what was stored" in found[b"s"].reason
    assert found[b"fork"].session is not None
