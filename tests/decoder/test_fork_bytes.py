"""What forks cost: each page once, each promise once, and nothing in the end."""

from __future__ import annotations

import gc
import random
from itertools import permutations

import numpy as np
import pytest
from families import SPECS, Twin, assert_empty, check_gauges
from mirror import Mirror, refused, small
from oracle import TIERS

from rondel.decoder.cache.arena import UNIT, Arena
from rondel.decoder.errors import BudgetExceeded, QuotaExceeded
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec

SMOLLM2 = StreamSpec.uniform(layers=30, query_heads=9, kv_heads=3, head_dim=64, max_length=2304)
PAGE = 51_840  # bytes of a page of one of its layers


def smol(arena: Arena, tokens: int) -> DecoderSession:
    session = DecoderSession(SMOLLM2, arena)
    kv = np.random.default_rng(4).standard_normal((30, tokens, 3, 64), dtype=np.float32)
    session.append_all(kv, kv)
    return session


def test_a_thousand_forks_cost_one_prompt_and_their_own_tails() -> None:
    """2,000 tokens are 15 full pages per layer and one begun; 40 more stay within that."""
    arena = Arena(2 << 30)
    parent = smol(arena, 2000)
    prompt, tail = 30 * 16 * PAGE, 30 * PAGE
    assert (arena.stats().resident, parent.stats().bytes_reserved) == (prompt, 30 * 18 * PAGE)
    forks = [parent.fork(max_new_tokens=40) for _ in range(1000)]
    stats = arena.stats()
    assert (stats.resident, stats.shared) == (prompt, prompt)
    assert {fork.stats().bytes_reserved for fork in forks} == {tail}
    slabs = -(-(30 * 18 + 1000 * 30) // (UNIT // PAGE))
    assert stats.reserved == slabs * UNIT

    token = np.ones((30, 1, 3, 64), np.float32)
    for number in (0, 1, 500, 999):
        forks[number].append_all(token, token)
        assert forks[number].stats().bytes_shared == prompt - tail
    assert arena.stats().resident == prompt + 4 * tail
    for fork in forks[2:500]:
        fork.append(7, token[7], token[7])  # one layer: one page
    assert arena.stats().resident == prompt + 4 * tail + 498 * PAGE
    parent.close()  # its prompt is held by others: nothing goes
    assert arena.stats().resident == prompt + 4 * tail + 498 * PAGE
    assert sum(fork.stats().bytes_reserved for fork in forks) == prompt - tail + 1000 * tail
    for fork in forks[:-1]:
        fork.close()
    assert arena.stats().resident == prompt == forks[-1].stats().bytes_resident
    assert (arena.stats().shared, forks[-1].stats().bytes_reserved) == (0, prompt)
    forks[-1].close()
    assert_empty(arena)


def test_a_page_is_charged_to_one_and_the_charge_moves_on() -> None:
    """Whoever closes, in whatever order: what is promised is what is needed, never more."""
    for order in permutations(range(4)):
        arena = Arena(64 << 20)
        root = Mirror(small(), arena=arena).grow(200)
        forks = [root, root.fork(50), root.fork(None)]
        forks.append(forks[1].fork(10))
        whole = forks[0].session.stats().bytes_reserved
        live = dict(enumerate(forks))
        for number in order:
            sessions = [mirror.session for mirror in live.values()]
            check_gauges(arena, sessions)
            promised = sum(session.stats().bytes_reserved for session in sessions)
            freed = live.pop(number).session.close()
            left = [mirror.session.stats() for mirror in live.values()]
            assert sum(stats.bytes_reserved for stats in left) == promised - freed
            assert sum(stats.bytes_reserved for stats in left) >= arena.stats().resident
            for mirror in live.values():
                mirror.check_stored()
            if len(live) == 1:
                (last,) = left
                assert (last.bytes_shared, last.bytes_resident) == (0, arena.stats().resident)
                assert last.bytes_reserved <= whole
        assert_empty(arena)


def test_the_last_holder_writes_in_place() -> None:
    arena = Arena(64 << 20)
    mirror = Mirror(small(), arena=arena).grow(200)
    before = arena.stats().resident
    fork = mirror.fork(max_new_tokens=8)
    mirror.session.close()
    fork.grow(208).check_stored()
    assert arena.stats().resident == before
    fork.session.close()
    assert_empty(arena)


def test_no_room_for_a_fork() -> None:
    """The fork is refused, and nothing has changed; those before it come to their end, whatever is shared."""
    arena = Arena(2 * UNIT)
    mirror = Mirror(small(layers=40, sinks=0), arena=arena).grow(200)
    assert arena.stats().reserved == UNIT
    others: list[Mirror] = []
    while True:
        try:
            others.append(mirror.fork())
        except BudgetExceeded:
            break
    assert others
    for most in (None, 200):
        with refused(mirror, BudgetExceeded):
            mirror.session.fork(max_new_tokens=most)
    check_gauges(arena, [mirror.session, *(other.session for other in others)])
    for one in (mirror, *others):
        one.grow(600).check_stored()
    for one in (mirror, *others):
        one.session.close()
    assert_empty(arena)


def full(arena: Arena, page_bytes: int) -> None:
    """Leave no room."""
    while True:
        try:
            arena.reserve({page_bytes: 1})
        except BudgetExceeded:
            return


@pytest.mark.parametrize("most", [0, 5])
def test_a_stream_goes_on_beside_a_fork_with_a_limit(most: int) -> None:
    """The fork saw to the pages it writes to next; those of its old lap take room, if there is any."""
    arena = Arena(8 << 20)
    mirror = Mirror(small(sinks=0), arena=arena).grow(700)
    fork = mirror.fork(max_new_tokens=most)
    full(arena, mirror.session._rings[0].page_bytes(1))
    mirror.grow(768)  # to the end of the page begun
    _, k, v = mirror.draw_stack(range(2), 1)
    with refused(mirror, QuotaExceeded):
        mirror.session.append_all(k, v)
    with refused(mirror, QuotaExceeded):
        mirror.session.append(1, k[1], v[1])
    fork.grow(700 + most).check_stored()
    if most:
        fork.session.close()
    else:
        del fork  # dropped without an end
        gc.collect()
    mirror.grow(1500).check_stored()


def test_a_stream_goes_on_beside_many_forks_with_a_limit_while_there_is_room() -> None:
    arena = Arena(8 << 20)
    mirror = Mirror(small(), arena=arena).grow(700)
    forks = [mirror.fork(max_new_tokens=5) for _ in range(3)]
    mirror.grow(1500).check_stored()
    for fork in forks:
        fork.grow(705).check_stored()
        check_gauges(arena, [mirror.session, *(fork.session for fork in forks)])
    for one in (*forks, mirror):
        one.session.close()
    assert_empty(arena)


def test_a_limited_fork_may_not_write_below_its_origin() -> None:
    """Beyond the page that it began in: that one it has a copy of."""
    mirror = Mirror(small(window=None, sinks=0, reserve=0, max_length=600), arena=Arena(64 << 20)).grow(300)
    fork = mirror.fork(max_new_tokens=20)
    fork.truncate(256).grow(300).truncate(255)
    for layers in ([0, 1], [1]):
        _, k, v = fork.draw_stack(layers, 3)
        with refused(fork, QuotaExceeded):
            fork.session.append_all(k, v) if len(layers) == 2 else fork.session.append(1, k[0], v[0])
    mirror.truncate(10).grow(400).check_stored()  # the parent may
    fork.check_stored()
    mirror.session.close()
    fork.grow(320).check_stored()  # and the fork, now that the pages are its alone


@pytest.mark.parametrize("seed", range(3))
def test_a_thousand_moves_and_nothing_is_left(seed: int) -> None:
    """Forks of forks, limited or not, refused calls among them; closed at random or dropped."""
    luck, arena = random.Random(seed), Arena(24 << 20)
    names, live = list(SPECS), list[DecoderSession]()
    forked = refusals = 0
    for turn in range(1000):
        move = luck.random()
        try:
            if move < 0.1 or not live:
                live.append(DecoderSession(SPECS[luck.choice(names)], arena))
            elif move < 0.3:
                live.append(luck.choice(live).fork(max_new_tokens=luck.choice([None, 0, 1, 40, 300])))
                forked += 1
            elif move < 0.7:
                append(luck.choice(live), luck.choice([1, 7, 130]))
            elif move < 0.75:
                truncate(luck.choice(live), luck)
            elif move < 0.95:
                live.pop(luck.randrange(len(live))).close()
            else:
                live.pop(luck.randrange(len(live)))
                gc.collect()
        except (BudgetExceeded, QuotaExceeded):
            refusals += 1
        if turn % 4 == 0:  # costs more than the moves; a gauge that is wrong stays so
            check_gauges(arena, live)
    assert forked > 80
    assert refusals > 20
    luck.shuffle(live)
    for session in live:
        session.close()
    assert_empty(arena)


def truncate(session: DecoderSession, luck: random.Random) -> None:
    session.truncate(luck.randint(session.min_length, session.length))


def append(session: DecoderSession, tokens: int) -> None:
    tokens = min(tokens, session.spec.length_limit - session.length)
    for part in session.chunks(tokens):
        for layer in range(session.spec.layers):
            group, n = session.spec.group(layer), part.stop - part.start
            if session.layer_length(layer) == session.length:
                session.append(layer, np.ones((n, group.kv_heads, group.key_dim), np.float32),
                               np.ones((n, group.kv_heads, group.value_dim), np.float32))  # fmt: skip


def test_sessions_dropped_without_close_give_up_what_they_share() -> None:
    arena = Arena(64 << 20)
    mirror = Mirror(small(), arena=arena).grow(200)
    before = arena.stats()
    for _ in range(10):
        mirror.fork().grow(260)
        gc.collect()
    assert arena.stats() == before
    fork = mirror.fork()
    mirror.session = None  # type: ignore[assignment]
    gc.collect()
    fork.grow(700).check_stored()
    assert arena.stats().shared == 0
    fork.session.close()
    assert_empty(arena)


def test_a_failed_call_of_a_sharer_changes_none() -> None:
    """The copies that it took stay; what they hold is what was there."""
    for length in (100, 259, 700):
        arena = Arena(64 << 20)
        parent = Twin(SPECS["ring centred"], arena, TIERS[-1]).grow(length)
        fork = parent.fork(1)
        for twin in (fork, parent):
            session = twin.session
            real = session._kernels
            session._kernels = Broken(real)  # type: ignore[assignment]
            q, k, v = twin.draw(0, 10)
            with pytest.raises(MemoryError):
                session.step(0, q, k * 100, v * 1e6)
            session._kernels = real
            for one in (parent, fork):
                one.check_visible()
            check_gauges(arena, [parent.session, fork.session])
        for twin in (parent, fork):
            twin.grow(700).check()  # all slots have been written again
            twin.session.close()
        assert_empty(arena)


class Broken:
    """Kernels that store tokens, and then find no memory to attend with."""

    def __init__(self, real: object) -> None:
        self.real = real

    def __getattr__(self, name: str) -> object:
        return getattr(self.real, name)

    def attend(self, queries: object) -> None:
        raise MemoryError("none left")
