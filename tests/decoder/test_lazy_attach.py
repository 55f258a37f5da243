"""Streams of a file that are looked at when they are used: never one that is not, and no more than those."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from families import SPECS
from mirror import Mirror
from survivors import same

from rondel.decoder import attach as attaching
from rondel.decoder.attach import AttachedStream, attach
from rondel.decoder.batch import Step, StepResult, run_steps
from rondel.decoder.cache.arena import Arena, ArenaStats
from rondel.decoder.errors import StreamClosed, StreamDamaged
from rondel.decoder.session import DecoderSession

BUDGET = 12 << 20
UNITS_AT = 2 << 20
SPEC = SPECS["ring"]


def grown(session: DecoderSession, seed: int) -> DecoderSession:
    _, k, v = Mirror(SPEC, seed=seed).draw_stack(range(SPEC.layers), 300)
    session.append_all(k, v)
    return session


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with streams 0 to 3; stream 1 is damaged, not in the last page of its layer."""
    arena = Arena(BUDGET, path=tmp_path / "arena")
    for number in range(4):
        session = grown(DecoderSession(SPEC, arena, tag=b"%d" % number), number)
        if number == 1:
            page = int(session._rings[0].table(0)[2])
    arena.close()
    content = bytearray((tmp_path / "arena").read_bytes())
    content[UNITS_AT + page + 7] ^= 1
    (tmp_path / "arena").write_bytes(content)
    return tmp_path / "arena"


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of the streams that were looked at."""
    found: list[int] = []

    def counted(*given: Any, **more: Any) -> str:
        found.append(given[4])
        return real(*given, **more)

    real = attaching.damage
    monkeypatch.setattr(attaching, "damage", counted)
    return found


def started(path: Path, **options: Any) -> tuple[Arena, dict[bytes, AttachedStream]]:
    arena = Arena(BUDGET, path=path)
    return arena, {each.tag: each for each in attach(arena, lazily=True, **options)}


def session_of(stream: AttachedStream) -> DecoderSession:
    assert stream.session is not None
    return stream.session


def test_a_stream_is_looked_at_when_it_is_first_used_and_no_other(path: Path, looked: list[int]) -> None:
    _, found = started(path)
    sessions = {tag: session_of(each) for tag, each in found.items()}
    assert [session.length for session in sessions.values()] == [300] * 4  # that much the records say
    assert looked == []
    assert not any(session.looked_at for session in sessions.values())
    twin = grown(DecoderSession(SPEC, Arena(BUDGET)), 0)
    assert same(sessions[b"0"], twin)
    assert looked == [300]
    assert sessions[b"0"].looked_at
    twin.truncate(299)
    sessions[b"0"].truncate(299)
    assert same(sessions[b"0"], twin)
    fork = sessions[b"2"].fork()
    assert same(fork, grown(DecoderSession(SPEC, Arena(BUDGET)), 2))
    assert looked == [300, 300]
    assert found[b"3"].verify() == ""
    assert looked == [300] * 3
    assert found[b"3"].verify() == ""
    sessions[b"3"].check_sound()
    assert looked == [300] * 3


def test_nothing_is_done_with_a_damaged_stream_and_the_others_go_on(path: Path) -> None:
    arena, found = started(path)
    damaged = session_of(found[b"1"])
    mirror = Mirror(SPEC)
    mirror.session = damaged
    for tokens in (*mirror.k, *mirror.v):
        tokens.extend([None] * 300)  # type: ignore[list-item]
    for _ in range(2):
        for name, call in mirror.calls().items():
            with pytest.raises(StreamDamaged, match="layer 0"):
                call()
            assert damaged.length == 300, name
        for call in (damaged.seal, damaged.check_sound, lambda: damaged.stats(quality=True)):
            with pytest.raises(StreamDamaged):
                call()
    assert "layer 0" in found[b"1"].reason
    _, k, v = mirror.draw_stack(range(SPEC.layers), 1)
    q = mirror.queries(0, 1)
    steps = [Step(session_of(each), 0, q, k[0], v[0]) for each in found.values()]
    kinds = [type(result) for result in run_steps(steps)]
    assert kinds == [StepResult, StreamDamaged, StepResult, StepResult]
    before = arena.stats().resident
    assert found[b"1"].drop() > 0
    assert arena.stats().resident < before
    with pytest.raises(StreamClosed):
        damaged.check_sound()
    for each in found.values():
        each.drop()
    assert arena.stats() == ArenaStats(BUDGET, 0, 0)


def test_a_damaged_stream_that_nobody_drops_is_there_at_the_next_start(path: Path) -> None:
    for _ in range(2):
        arena, found = started(path)
        assert [bool(each.verify()) for each in found.values()] == [False, True, False, False]
        session_of(found[b"1"]).detach()
        arena.close()
    (aside,) = [each for each in attach(Arena(BUDGET, path=path)) if each.session is None]
    assert aside.tag == b"1"


def test_the_end_of_an_arena_waits_for_no_look(path: Path, looked: list[int]) -> None:
    arena, found = started(path)
    session_of(found[b"2"]).close()
    session_of(found[b"3"]).detach()
    arena.close()
    assert looked == []
    assert found[b"0"].verify() == ""
    assert looked == []
    arena, found = started(path)
    assert set(found) == {b"0", b"1", b"3"}


def test_a_call_waits_for_a_look_that_is_under_way_and_other_streams_do_not(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, leave, real = threading.Event(), threading.Event(), attaching.damage

    def slow(*given: Any, **more: Any) -> str:
        if not inside.is_set():
            inside.set()
            assert leave.wait(20)
        return real(*given, **more)

    monkeypatch.setattr(attaching, "damage", slow)
    _, found = started(path)
    with ThreadPoolExecutor(2) as pool:
        looking = pool.submit(found[b"0"].verify)
        assert inside.wait(20)
        calling = pool.submit(session_of(found[b"0"]).read, 0, 299, 300)
        session_of(found[b"2"]).check_sound()
        with pytest.raises(StreamDamaged):
            session_of(found[b"1"]).check_sound()
        assert not calling.done()
        leave.set()
        assert looking.result(20) == ""
        assert len(calling.result(20)[0]) == 1


@pytest.mark.parametrize("verify", ["tail", "full"])
def test_how_much_is_looked_at_is_as_without_laziness(path: Path, verify: str) -> None:
    _, found = started(path, verify=verify)
    reasons = [each.verify() for each in found.values()]
    assert [bool(reason) for reason in reasons] == [False, verify == "full", False, False]


def test_any_call_may_be_the_first(path: Path, looked: list[int]) -> None:
    """None gets by without a look."""
    calls: dict[str, Callable[[], object]] = {}
    for number, name in enumerate(Mirror(SPEC).grow(1).calls()):
        arena, found = started(path)
        mirror = Mirror(SPEC)
        mirror.session = session_of(found[b"0"])
        for tokens in (*mirror.k, *mirror.v):
            tokens.extend([None] * 300)  # type: ignore[list-item]
        calls = mirror.calls()
        calls[name]()
        assert len(looked) == number + 1, name
        arena.close()
    assert len(calls) > 5
