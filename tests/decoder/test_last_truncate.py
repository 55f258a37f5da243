"""What the last truncate of a stream did, known beyond a kill: so whoever repeats it can be told."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from families import SPECS
from mirror import Mirror, refused, small
from moments import copies_at, moments_of, survivors_of
from survivors import same

from rondel.decoder.attach import attach
from rondel.decoder.cache.arena import Arena
from rondel.decoder.cache.cuts import MAX_NOTE, Cut
from rondel.decoder.errors import InvalidRequest, RollbackTooDeep, SequenceGap
from rondel.decoder.session import DecoderSession

BUDGET = 6 << 20


def grown(session: DecoderSession, count: int) -> DecoderSession:
    mirror = Mirror(session.spec, seed=count)
    _, k, v = mirror.draw_stack(range(session.spec.layers), count)
    session.append_all(k, v)
    return session


def test_the_last_truncate_and_its_note() -> None:
    session = grown(DecoderSession(small(), Arena(BUDGET)), 50)
    assert session.last_truncate is None
    session.truncate(40, note=b"first")
    assert session.last_truncate == Cut(1, 40, b"first")
    grown(session, 3)
    assert session.last_truncate == Cut(1, 40, b"first")
    fork = session.fork()
    assert fork.last_truncate is None
    session.truncate(43)
    assert session.last_truncate == Cut(2, 43, b"")


def test_a_refused_truncate_is_none() -> None:
    mirror = Mirror(small()).grow(700)
    mirror.truncate(699)
    mirror.session.truncate(699, note=b"done")
    for error, length in ((SequenceGap, 800), (RollbackTooDeep, 100)):
        with refused(mirror, error):
            mirror.session.truncate(length, note=b"refused")
    assert mirror.session.last_truncate == Cut(2, 699, b"done")


@pytest.mark.parametrize("note", [bytes(MAX_NOTE + 1), "text", None, 5], ids=repr)
def test_impossible_notes(note: Any) -> None:
    mirror = Mirror(small()).grow(20)
    with refused(mirror, InvalidRequest) as caught:
        mirror.session.truncate(10, note=note)
    assert caught.value.facts["field"] == "note"


@pytest.mark.parametrize("note", [b"", b"x", bytes(range(MAX_NOTE))])
def test_it_is_known_after_any_number_of_starts(note: bytes, tmp_path: Path) -> None:
    arena = Arena(BUDGET, path=tmp_path / "arena")
    session = grown(DecoderSession(SPECS["ring"], arena, tag=b"s"), 60)
    for number in range(3):  # both places take their turns
        session.truncate(59 - number, note=b"%d" % number)
    session.truncate(50, note=note)
    grown(session, 5)
    for generation in (5, 6, 7):
        arena.close()
        arena, there = survivors_of(tmp_path / "arena", BUDGET)
        assert there["s"].last_truncate == Cut(4, 50, note)
        assert (there["s"].length, there["s"].generation) == (55, generation)
    there["s"].truncate(20, note=b"later")
    arena.close()
    arena, there = survivors_of(tmp_path / "arena", BUDGET)
    assert there["s"].last_truncate == Cut(8, 20, b"later")
    assert there["s"].generation == 9


def start(path: Path) -> None:
    """A start of a server that is stopped at once."""
    survivors_of(path, BUDGET)[0].close()


@pytest.mark.parametrize("kind", ["ring", "endless"])
def test_at_every_moment_it_is_carried_out_and_known_or_neither(kind: str, tmp_path: Path) -> None:
    def begun(path: Path) -> DecoderSession:
        session = DecoderSession(SPECS[kind], Arena(BUDGET, path=path), tag=b"s")
        for part in session.chunks(386):
            for layer in range(session.spec.layers):
                _, k, v = Mirror(session.spec, seed=layer).draw(layer, part.stop - part.start)
                session.append(layer, k, v)
        session.truncate(384, note=b"before")
        return session

    found = moments_of(partial(begun(tmp_path / "counted").truncate, 380, note=b"now"))
    session = begun(tmp_path / "arena")
    copies = copies_at(set(found), tmp_path / "arena", tmp_path, partial(session.truncate, 380, note=b"now"))
    before, after = begun(tmp_path / "1"), begun(tmp_path / "2")
    after.truncate(380)
    outcomes = []
    for number, copy in enumerate(copies):
        folder = tmp_path / f"again {number}"
        folder.mkdir()
        shutil.copyfile(copy, folder / "counted")
        once = moments_of(partial(start, folder / "counted"))
        # Killed once more, at the start: what is found then is what would have been found.
        for again in [*copies_at(set(once[::7]), copy, folder, partial(start, copy)), copy]:
            arena, there = survivors_of(again, BUDGET)
            stream = there["s"]
            done = stream.length == 380
            assert same(stream, after if done else before), again.name
            assert stream.last_truncate == (Cut(2, 380, b"now") if done else Cut(1, 384, b"before"))
            assert stream.generation > (2 if done else 1)
            arena.close()
        outcomes.append(done)
    assert outcomes == sorted(outcomes)
    assert (outcomes[0], outcomes[-1]) == (False, True)


def test_damage_to_what_is_known_sets_the_stream_aside(tmp_path: Path) -> None:
    path = tmp_path / "arena"
    arena = Arena(BUDGET, path=path)
    grown(DecoderSession(SPECS["ring"], arena, tag=b"other"), 60)
    grown(DecoderSession(SPECS["ring"], arena, tag=b"s"), 60).truncate(50, note=b"a note to be found")
    arena.close()
    content = path.read_bytes()
    at = content.find(b"a note to be found")
    for place in (at, at - 4, at - 8, at - 16, at - 24):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        arena = Arena(BUDGET, path=path)
        found = {each.tag: each for each in attach(arena)}
        assert "truncate" in found[b"s"].reason
        assert found[b"other"].session is not None
        arena.close()
