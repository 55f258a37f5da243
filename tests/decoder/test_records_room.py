"""Where a file has no room for what a stream's record needs: nothing is lost, no stranger's use is told."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from rondel.decoder.cache.account import Account
from rondel.decoder.cache.arena import UNIT, Arena
from rondel.decoder.errors import BudgetExceeded, ChunkTooLong
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec

SPEC = StreamSpec.uniform(layers=1, query_heads=1, kv_heads=1, head_dim=64, window=128, reserve=4)


def says_nothing(error: Exception) -> bool:
    """Whether an error tells how much room there is, or is needed."""
    return str(UNIT) not in str(error) and "unclaimed" not in str(error)


def test_a_refused_stream_takes_no_place_in_the_table(tmp_path: Path) -> None:
    arena = Arena(UNIT, path=tmp_path / "arena", overcommit=8.0)
    everything = arena.reserve({UNIT: 1})
    everything.take(UNIT)
    before = arena.stats()
    for _ in range(600):  # the table has 512 places
        with pytest.raises(BudgetExceeded, match="overcommitted"):
            DecoderSession(SPEC, arena)
    assert arena.stats() == before
    everything.release()
    DecoderSession(SPEC, arena).close()


@pytest.mark.parametrize("private", [False, True])
def test_strangers_are_not_told_that_records_lack_room(tmp_path: Path, private: bool) -> None:
    arena = Arena(3 * UNIT, path=tmp_path / "arena")
    others = arena.reserve({UNIT: 2})
    account = Account(private=private)
    with pytest.raises(BudgetExceeded) as caught:
        DecoderSession(SPEC, arena, account=account)
    assert says_nothing(caught.value) == private
    assert bool(caught.value.facts) != private
    assert (account.reserved, account.resident) == (0, 0)
    others.release()
    assert arena.stats().reserved == 0


@pytest.mark.parametrize("private", [False, True])
def test_strangers_are_not_told_that_copies_lack_room(tmp_path: Path, private: bool) -> None:
    arena = Arena(2 * UNIT, path=tmp_path / "arena")
    session = DecoderSession(SPEC, arena, account=Account(private=private))
    k = np.zeros((1, 300, 1, 64), np.float32)
    session.append_all(k, k)
    size = session._rings[0].page_bytes(1)
    with suppress(BudgetExceeded):
        while True:
            arena.reserve({size: 1})
    before = arena.stats()
    with pytest.raises(ChunkTooLong) as caught:
        session.append_all(k, k)
    assert caught.value.limit == 5
    assert says_nothing(caught.value) == private
    assert (arena.stats(), session.length) == (before, 300)
