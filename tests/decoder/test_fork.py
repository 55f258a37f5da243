"""Forks: each goes on as if it had been told everything itself, whatever the others do."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from families import SPECS, Twin, assert_empty, check_gauges
from mirror import Mirror, refused, small
from oracle import TIERS, gaussian

from rondel.decoder.batch import Step, StepResult, run_steps
from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import InvalidRequest, QuotaExceeded, StreamClosed, StreamSealed
from rondel.decoder.session import DecoderSession

BUDGET = 96 << 20
specs = pytest.mark.parametrize("name", list(SPECS))


@pytest.mark.parametrize("most", [None, 400])
@pytest.mark.parametrize("length", [0, 1, 3, 100, 131, 259, 300, 387, 400])
@specs
def test_forks_and_their_parent_part_ways(name: str, length: int, most: int | None) -> None:
    """Single layers and all of them, in turn; the second fork comes off the first, later."""
    arena = Arena(BUDGET)
    parent = Twin(SPECS[name], arena, TIERS[-1]).grow(length)
    first = parent.fork(1, max_new_tokens=most)
    family = [parent, first]
    check_gauges(arena, [twin.session for twin in family])
    assert (first.session.length, first.session.generation) == (length, 0)
    for tokens in (1, 2, 60, 9, 1, 130):
        for twin in family:
            twin.grow(tokens)
            twin.check()
        if tokens == 2:
            family.append(first.fork(2, max_new_tokens=most))
        check_gauges(arena, [twin.session for twin in family])
    for twin in family:
        twin.check()
        twin.session.close()
    assert_empty(arena)


@pytest.mark.parametrize("seed", range(4))
@specs
def test_any_moves_of_a_family(name: str, seed: int) -> None:
    """Fork, step one layer or all, truncate, close, in any order, the eldest too."""
    luck, arena = random.Random(f"{name}{seed}"), Arena(BUDGET)
    spec = SPECS[name]
    family = [Twin(spec, arena, TIERS[seed % len(TIERS)], seed).grow(luck.choice([2, 130, 270]))]
    born = 0
    for turn in range(60):
        twin, move = luck.choice(family), luck.random()
        session = twin.session
        room = spec.length_limit - max(session.layer_length(layer) for layer in range(spec.layers))
        level = session.length == max(session.layer_length(layer) for layer in range(spec.layers))
        if move < 0.2 and len(family) < 6:
            born += 1
            family.append(twin.fork(100 + born))
        elif move < 0.6 and level:
            twin.grow(min(room, luck.choice([1, 5, 30, 129])))
        elif move < 0.8 and level:
            twin.step(luck.randrange(spec.layers), min(room, luck.randint(1, 10)))
        elif move < 0.9:
            twin.do("truncate", luck.randint(session.min_length, session.length))
        elif len(family) > 1:
            family.remove(twin)
            session.close()
        if turn % 7 == 0:
            check_gauges(arena, [twin.session for twin in family])
            luck.choice(family).check()
    assert born > 3
    for twin in family:
        twin.check()
        twin.session.close()
    assert_empty(arena)


@specs
def test_layers_that_are_ahead_are_ahead_in_the_fork(name: str) -> None:
    arena, spec = Arena(BUDGET), SPECS[name]
    for length in (0, 120, 381):
        parent = Twin(spec, arena, TIERS[-1]).grow(length)
        if spec.layers > 1:
            parent.step(spec.layers - 1, 10)
        fork = parent.fork(1, max_new_tokens=0)
        fork.check()
        parent.grow(1) if spec.layers == 1 else [parent.step(n, 10) for n in range(spec.layers - 1)]
        parent.check()
        fork.do("truncate", length)
        fork.check()
        parent.session.close()
        fork.check()
        fork.session.close()
    assert_empty(arena)


def test_a_truncate_leaves_the_others_alone() -> None:
    for length in (200, 700):
        mirror = Mirror(small()).grow(length)
        fork, other = mirror.fork(), mirror.fork()
        fork.truncate(length - 9).grow(length + 40)
        mirror.truncate(length - 5)
        other.check_stored()
        mirror.grow(length + 300).check_stored()
        fork.check_stored()
        other.grow(length + 130).check_stored()
        assert (fork.session.generation, mirror.session.generation, other.session.generation) == (1, 1, 0)


@pytest.mark.parametrize("tier", TIERS)
def test_a_fork_keeps_what_it_was_forked_with(tier: str) -> None:
    spec = small()
    with DecoderSession(spec, Arena(BUDGET), tier=tier) as session, session.fork() as fork:
        assert fork.spec is session.spec
        assert fork.projections is session.projections
        assert fork._kernels is session._kernels
    with pytest.raises(StreamClosed):
        session.fork()


def test_claims_go_with_a_fork() -> None:
    """A fork can be undone as far as its origin, and no further."""
    mirror = Mirror(small()).grow(700)
    mirror.truncate(695)
    fork = mirror.fork()
    assert (fork.session.high_water, fork.session.min_length, fork.session.length) == (700, 691, 695)
    fork.truncate(691).grow(701).check_stored()


def test_forks_of_a_sealed_stream_read_and_cost_nothing() -> None:
    spec = small(window=None, sinks=0, reserve=0, max_length=300, causal=False)
    arena = Arena(BUDGET)
    session = DecoderSession(spec, arena)
    rng = np.random.default_rng(1)
    for layer in range(2):
        session.append(layer, gaussian(rng, 150, 2, 16), gaussian(rng, 150, 2, 24))
    session.seal()
    before, q = arena.stats(), gaussian(rng, 5, 4, 16)
    want = session.attend(0, q)
    readers = [session.fork() for _ in range(20)]
    with pytest.raises(StreamSealed):
        session.fork(max_new_tokens=1)
    readers.append(session.fork(max_new_tokens=0))
    assert arena.stats().reserved == before.reserved
    assert {reader.stats().bytes_reserved for reader in readers} == {0}
    session.close()
    for reader in readers:
        assert reader.sealed
        assert reader.attend(0, q).tobytes() == want.tobytes()
        with pytest.raises(StreamSealed):
            reader.truncate(1)
        reader.close()
    assert_empty(arena)


@pytest.mark.parametrize("most", [-1, 1.5, "3", True])
def test_impossible_limits(most: Any) -> None:
    mirror = Mirror(small()).grow(10)
    with refused(mirror, InvalidRequest):
        mirror.session.fork(max_new_tokens=most)


@pytest.mark.parametrize("length", [0, 3, 100, 131, 259, 700])
@pytest.mark.parametrize("most", [0, 1, 28, 29, 300])
def test_a_fork_takes_what_it_reserved_and_not_one_token_more(length: int, most: int) -> None:
    for ahead in (0, 5):
        mirror = Mirror(small(), arena=Arena(BUDGET)).grow(length)
        if ahead:
            mirror.append(1, *mirror.draw(1, ahead)[1:])
        fork = mirror.fork(max_new_tokens=most)
        if ahead:
            fork.truncate(length)
        for tokens in (most + 1, 2 * most + 2):
            _, k, v = fork.draw_stack(range(2), tokens)
            with refused(fork, QuotaExceeded, facts={"limit": length + most}):
                fork.session.append_all(k, v)
        fork.grow(length + most).check_stored()
        _, k, v = fork.draw(0, 1)
        with refused(fork, QuotaExceeded):
            fork.session.append(0, k, v)
        mirror.check_stored()


@pytest.mark.parametrize("name", ["ring centred", "several"])
@pytest.mark.parametrize("length", [100, 130, 386])
def test_a_family_in_one_batch(name: str, length: int) -> None:
    """The first to be stored copies, the last has the page: all are answered as alone, but who may not."""
    arena = Arena(BUDGET)
    parent = Twin(SPECS[name], arena, TIERS[-1]).grow(length)
    family = [parent, *(parent.fork(seed, max_new_tokens=20) for seed in range(1, 5))]
    full = parent.fork(9, max_new_tokens=0)
    for layer in range(parent.session.spec.layers):
        tokens = [twin.draw(layer, 9) for twin in (*family, full)]
        steps = [Step(twin.session, layer, *qkv) for twin, qkv in zip((*family, full), tokens, strict=True)]
        *results, refused_one = run_steps(steps)
        assert isinstance(refused_one, QuotaExceeded)
        for twin, qkv, result in zip(family, tokens[:-1], results, strict=True):
            assert isinstance(result, StepResult)
            twin.calls.append(("step", (layer, *qkv), {}))
            assert result.out.tobytes() == twin.alone.step(layer, *qkv).tobytes()
    check_gauges(arena, [twin.session for twin in (*family, full)])
    for twin in (*family, full):
        twin.check()
        twin.session.close()
    assert_empty(arena)
