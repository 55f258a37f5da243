"""What several streams have of an arena together: what they have one by one, each page counted once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rondel.decoder.attach import attach
from rondel.decoder.cache.account import Account
from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import BudgetExceeded, QuotaExceeded
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec

SPEC = StreamSpec.uniform(layers=2, query_heads=2, kv_heads=1, head_dim=16, window=200, sinks=4, reserve=8)
Numbers = tuple[int, int, int]


def numbers(account: Account) -> Numbers:
    return account.reserved, account.resident, account.shared


def counted(sessions: list[DecoderSession]) -> Numbers:
    """The same from the page tables of the streams."""
    holders: dict[tuple[int, int], int] = {}
    for session in sessions:
        for rings in session._rings:
            tables = np.stack([rings.table(layer) for layer in rings.group.layers])
            for (_, column), offset in np.ndenumerate(tables):
                if offset >= 0:
                    page = rings.page_bytes(column), int(offset)
                    holders[page] = holders.get(page, 0) + 1
    return (
        sum(session.stats().bytes_reserved for session in sessions),
        sum(size for size, _ in holders),
        sum(size for (size, _), count in holders.items() if count > 1),
    )


class Lives:
    """Streams of several accounts that live at random."""

    def __init__(self, arena: Arena, rng: np.random.Generator, names: str = "abc") -> None:
        self.arena = arena
        self.rng = rng
        self.accounts = {name: Account() for name in names}
        self.sessions: dict[str, list[DecoderSession]] = {name: [] for name in names}

    def act(self) -> None:
        name = str(self.rng.choice(list(self.accounts)))
        sessions = self.sessions[name]
        action = self.rng.choice(["open", "grow", "grow", "grow", "fork", "fork", "truncate", "close"])
        if not sessions or (action == "open" and len(sessions) < 3):
            tag = f"{name}{self.rng.integers(1 << 40)}".encode()
            sessions.append(DecoderSession(SPEC, self.arena, account=self.accounts[name], tag=tag))
            return
        session = sessions[self.rng.integers(len(sessions))]
        if action == "grow":
            tokens = int(self.rng.integers(1, 150))
            k, v = self.rng.standard_normal((2, 2, tokens, 1, 16), np.float32)
            session.append_all(k, v)
        elif action == "fork" and len(sessions) < 8:
            sessions.append(session.fork(tag=f"{name}f{self.rng.integers(1 << 40)}".encode()))
        elif action == "truncate":
            session.truncate(max(session.min_length, session.length - 3))
        elif action == "close":
            sessions.remove(session)
            session.close()

    def check(self) -> None:
        for name, account in self.accounts.items():
            assert numbers(account) == counted(self.sessions[name])
        totals = np.sum([numbers(a) for a in (*self.accounts.values(), self.arena.account)], axis=0)
        stats = self.arena.stats()
        assert (totals[1], totals[2]) == (stats.resident, stats.shared)
        assert totals[0] <= stats.reserved

    def end(self) -> None:
        for sessions in self.sessions.values():
            while sessions:
                sessions.pop().close()


@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_accounts_are_what_their_streams_are_and_come_back_to_nothing(
    tmp_path: Path, seed: int, in_file: bool
) -> None:
    arena = Arena(64 << 20, path=tmp_path / "arena" if in_file else None)
    lives = Lives(arena, np.random.default_rng(seed))
    for _ in range(120):
        lives.act()
        lives.check()
    assert any(account.shared for account in lives.accounts.values())
    lives.end()
    lives.check()
    for account in (*lives.accounts.values(), arena.account):
        assert numbers(account) == (0, 0, 0)
    arena.close()


def test_a_session_that_is_forgotten_is_borne_no_longer() -> None:
    arena, account = Arena(16 << 20), Account()
    session = DecoderSession(SPEC, arena, account=account)
    assert account.reserved == session.stats().bytes_reserved > 0
    del session
    arena.stats()
    assert numbers(account) == (0, 0, 0)


def test_what_is_found_in_a_file_is_charged_with_all_that_share_it(tmp_path: Path) -> None:
    arena = Arena(64 << 20, path=tmp_path / "arena")
    lives = Lives(arena, np.random.default_rng(11))
    for _ in range(150):
        lives.act()
    before = {name: numbers(account) for name, account in lives.accounts.items()}
    lengths = sorted(s.length for sessions in lives.sessions.values() for s in sessions)
    arena.close()

    arena = Arena(64 << 20, path=tmp_path / "arena")
    again = Lives(arena, np.random.default_rng(12))
    assert arena.account.resident == arena.stats().resident > 0
    for stream in attach(arena):
        assert stream.session is not None
        name = stream.tag.decode()[0]
        again.sessions[name].append(stream.session)
        stream.session.charge(again.accounts[name])
        stream.session.charge(again.accounts[name])  # nothing more
    again.check()
    assert sorted(s.length for sessions in again.sessions.values() for s in sessions) == lengths
    # Layers were level, so nothing was dropped.
    assert {name: numbers(account) for name, account in again.accounts.items()} == before
    for _ in range(60):
        again.act()
        again.check()
    again.end()
    again.check()
    assert all(numbers(account) == (0, 0, 0) for account in again.accounts.values())
    arena.close()


def test_who_shares_an_arena_with_strangers_is_not_told_how_full_it_is() -> None:
    arena = Arena(8 << 20)
    large = StreamSpec.uniform(layers=1, query_heads=1, kv_heads=1, head_dim=64, max_length=20_000)
    sessions = [DecoderSession(large, arena)]
    answers = []
    for private in (False, True):
        with pytest.raises(BudgetExceeded) as caught:
            sessions += [DecoderSession(large, arena, account=Account(private=private)) for _ in range(9)]
        answers.append(caught.value)
    assert answers[0].requested > answers[0].available
    assert answers[0].facts
    assert (answers[1].requested, answers[1].available, answers[1].facts) == (0, 0, {})
    assert not any(letter.isdigit() for letter in answers[1].message)


class TestLimit:
    @pytest.fixture
    def arena(self) -> Arena:
        return Arena(64 << 20)

    @pytest.fixture
    def each(self) -> int:
        """Bytes that a stream reserves."""
        return DecoderSession(SPEC, Arena(64 << 20)).stats().bytes_reserved

    def test_no_byte_beyond_it_and_nothing_changes_when_refused(self, arena: Arena, each: int) -> None:
        account = Account(2 * each)
        first, second = (DecoderSession(SPEC, arena, account=account) for _ in range(2))
        before = numbers(account), arena.stats()
        with pytest.raises(QuotaExceeded) as caught:
            DecoderSession(SPEC, arena, account=account)
        facts = caught.value.facts
        assert (facts["requested"], facts["available"], facts["limit"]) == (each, 0, 2 * each)
        with pytest.raises(QuotaExceeded):
            first.fork()
        assert (numbers(account), arena.stats()) == before
        DecoderSession(SPEC, arena, account=Account(each))  # another's is another's
        second.close()
        account.limit = 2 * each - 1
        with pytest.raises(QuotaExceeded):
            DecoderSession(SPEC, arena, account=account)
        account.limit = 2 * each
        DecoderSession(SPEC, arena, account=account)

    def test_a_smaller_one_takes_nothing_away(self, arena: Arena, each: int) -> None:
        account = Account(each)
        session = DecoderSession(SPEC, arena, account=account)
        account.limit = 1
        k, v = np.zeros((2, 2, 500, 1, 16), np.float32)
        session.append_all(k, v)
        assert account.reserved == each
        session.seal()
        session.fork()  # reserves nothing

    def test_it_holds_for_copies_of_what_forks_pin(self, arena: Arena, each: int) -> None:
        """A fork without room of its own holds an old lap: whoever writes over it needs room for a copy."""
        account = Account()
        session = DecoderSession(SPEC, arena, account=account)
        rng = np.random.default_rng(0)

        def grow(tokens: int) -> None:
            k, v = rng.standard_normal((2, 2, tokens, 1, 16), np.float32)
            session.append_all(k, v)

        grow(400)
        fork = session.fork(max_new_tokens=0)
        account.limit = account.reserved
        q = rng.standard_normal((1, 2, 16), np.float32)
        seen = fork.attend(0, q)
        grow(int(session.max_chunk or 0))
        before = numbers(account), session.length
        with pytest.raises(QuotaExceeded, match="the quota is"):
            grow(200)
        assert (numbers(account), session.length) == before
        np.testing.assert_array_equal(fork.attend(0, q), seen)
        account.limit = None
        grow(200)
        assert account.reserved > each
        np.testing.assert_array_equal(fork.attend(0, q), seen)
        fork.close()
        session.close()
        assert numbers(account) == (0, 0, 0)
