"""What each owner's streams have: by the page tables of all its sessions, whatever was done to them."""

from __future__ import annotations

import gc
import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from families import SPECS, Twin
from snapshot_parts import written

from rondel.decoder.attach import attach
from rondel.decoder.cache.accounts import Usage
from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import InvalidRequest, QuotaExceeded
from rondel.decoder.kernels import TIER
from rondel.decoder.session import DecoderSession

BUDGET = 48 << 20
OWNERS = ("", "ann", "bob", "cäcilie")


def twin(session: DecoderSession, seed: int = 0) -> Twin:
    """A session that is there, beside one that is alone."""
    new = object.__new__(Twin)
    new._begin(session, TIER, seed, [])
    return new


def expected(sessions: Iterable[DecoderSession]) -> dict[str, Usage]:
    """By owner, counted page by page; in a file with the page of each stream's record."""
    found: dict[str, Usage] = {}
    sessions = list(sessions)
    for owner in {session.owner for session in sessions}:
        holders: Counter[tuple[int, int]] = Counter()
        reserved = 0
        for session in sessions:
            if session.owner != owner:
                continue
            reserved += session.stats().bytes_reserved
            for ring in session._rings:
                for column in ring.columns_of_table:
                    holders.update((offset, ring.page_bytes(column)) for offset in ring.pages(column))
            if session._pages.record is not None:
                (record,) = session._pages.record.pages._held()
                holders.update((offset, record[0]) for offset in record[1])
                reserved += record[0]
        resident = sum(size for _, size in holders)
        shared = sum(size for (_, size), count in holders.items() if count > 1)
        found[owner] = Usage(reserved, resident, shared)
    return {owner: usage for owner, usage in found.items() if usage != Usage()}


def check(arena: Arena, sessions: Iterable[DecoderSession]) -> None:
    usages, stats = arena.usages(), arena.stats()
    assert usages == expected(sessions)
    assert sum(usage.resident for usage in usages.values()) == stats.resident
    assert sum(usage.shared for usage in usages.values()) == stats.shared
    assert sum(usage.reserved for usage in usages.values()) <= stats.reserved
    assert all(arena.usage(owner) == usages.get(owner, Usage()) for owner in OWNERS)


def live_of(arena: Arena, luck: random.Random, moves: int) -> list[Twin]:
    """Streams of several owners after so many moves, each of which is counted right."""
    live: list[Twin] = []
    for number in range(moves):
        move, one = luck.random(), luck.choice(live) if live else None
        if one is None or move < 0.25:
            spec, owner = SPECS[luck.choice(["ring", "endless"])], luck.choice(OWNERS)
            tag = owner.encode() + b" %d" % number
            live.append(twin(DecoderSession(spec, arena, owner=owner, tag=tag), number))
        elif move < 0.5:
            tag = one.session.owner.encode() + b" %d" % number
            live.append(one.fork(number, max_new_tokens=luck.choice([None, 0, 40]), tag=tag))
            assert live[-1].session.owner == one.session.owner
        elif move < 0.65:
            live.remove(one)
            one.session.close()
        elif move < 0.9:
            try:
                one.grow(min(luck.choice([1, 30, 200]), one.session.spec.length_limit - one.session.length))
            except QuotaExceeded:
                one.check_visible()
        check(arena, [each.session for each in live])
    return live


@pytest.mark.parametrize("where", ["memory", "file"])
def test_usage_is_exact_through_any_life_and_zero_in_the_end(where: str, tmp_path: Path) -> None:
    arena = Arena(BUDGET, path=tmp_path / "arena" if where == "file" else None)
    live = live_of(arena, random.Random(1), 90)
    assert len({each.session.owner for each in live}) > 1
    for each in live:
        each.session.close()
    assert arena.usages() == {}
    assert arena.usage("ann") == arena.usage("nobody") == Usage()


def test_the_charge_moves_within_the_owner() -> None:
    arena = Arena(BUDGET)
    session = DecoderSession(SPECS["endless"], arena, owner="ann")
    twin(session).grow(300)
    fork = session.fork(max_new_tokens=0)
    before, whole = arena.usage("ann"), session.stats().bytes_reserved
    assert before.shared == before.resident == session.stats().bytes_resident
    session.close()
    after = arena.usage("ann")
    assert after == Usage(fork.stats().bytes_reserved, before.resident, 0)
    assert before.resident <= after.reserved < whole
    fork.close()
    assert arena.usages() == {}


def test_an_export_apart_is_its_streams_owners() -> None:
    arena = Arena(BUDGET)
    session = DecoderSession(SPECS["ring"], arena, owner="ann")
    twin(session).grow(200)
    before, pieces = arena.usages(), session.snapshot_pieces(apart=True)
    assert arena.usage("ann").reserved == before["ann"].reserved + before["ann"].resident
    raw = b"".join(pieces)
    assert (raw, arena.usages()) == (written(session), before)
    del session
    gc.collect()
    assert arena.usages() == {}


def owner_of(tag: bytes) -> str:
    return tag.rpartition(b" ")[0].decode()


def test_a_start_on_a_file_knows_owners_by_tags(tmp_path: Path) -> None:
    arena = Arena(BUDGET, path=tmp_path / "arena")
    live = live_of(arena, random.Random(3), 60)
    before = arena.usages()
    assert len(before) > 2
    arena.close()
    arena = Arena(BUDGET, path=tmp_path / "arena")
    total = arena.stats()
    assert set(arena.usages()) == {""}
    found = attach(arena, owner_of=owner_of)
    sessions = [each.session for each in found if each.session is not None]
    assert len(sessions) == len(live)
    check(arena, sessions)
    assert arena.usages() == before
    assert arena.stats() == total
    for session in sessions:
        session.close()
    assert arena.usages() == {}


def test_streams_that_share_pages_have_one_owner(tmp_path: Path) -> None:
    """A tag that says otherwise sets its stream aside, and leaves the others alone."""
    arena = Arena(BUDGET, path=tmp_path / "arena")
    first = DecoderSession(SPECS["ring"], arena, tag=b"ann 1")
    twin(first).grow(100)
    first.fork(tag=b"bob 2")
    DecoderSession(SPECS["ring"], arena, tag=b"bob 3")
    arena.close()
    arena = Arena(BUDGET, path=tmp_path / "arena")
    found = {each.tag: each for each in attach(arena, owner_of=owner_of)}
    assert {tag: each.reason for tag, each in found.items() if each.reason} == {
        b"bob 2": "it shares pages with a stream of owner 'ann', got 'bob'"
    }
    resident = arena.stats().resident
    assert arena.usage("ann").resident + arena.usage("bob").resident == resident
    for each in found.values():
        each.drop()
    assert arena.usages() == {}


@pytest.mark.parametrize("owner", [None, 1, b"ann", ["ann"]], ids=repr)
def test_owners_are_texts(owner: Any) -> None:
    arena = Arena(BUDGET)
    with pytest.raises(InvalidRequest) as caught:
        DecoderSession(SPECS["ring"], arena, owner=owner)
    assert caught.value.facts["field"] == "owner"
    assert arena.stats().reserved == 0
