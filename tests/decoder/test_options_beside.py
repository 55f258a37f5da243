"""What other rows of a call hide, or a bias of zeros, changes no bit of a row."""

from __future__ import annotations

import numpy as np
import pytest
from comparators import assert_same_bits
from oracle import ENGINES

from rondel.decoder.cache.arena import Arena
from rondel.decoder.options import AttendOptions
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec

TOKENS, ROWS = 300, 6


@pytest.mark.parametrize(("tier", "storage"), ENGINES)
@pytest.mark.parametrize("size", [1.0, 0.02])
@pytest.mark.parametrize("dim", [16, 256])
def test_a_row_among_others(tier: str, storage: str, size: float, dim: int) -> None:
    for seed in range(3):
        rng = np.random.default_rng(seed)
        spec = StreamSpec.uniform(
            layers=1, query_heads=4, kv_heads=2, head_dim=dim, storage=storage, max_length=TOKENS
        )
        session = DecoderSession(spec, Arena(budget=64 << 20), tier=tier)
        k, v = (rng.standard_normal((TOKENS, 2, dim), np.float32) for _ in "kv")
        session.append(0, k, v)
        q = np.float32(size) * rng.standard_normal((ROWS, 4, dim), np.float32)
        first = TOKENS - ROWS
        plain = session.attend(0, q)
        mask = rng.random((1, ROWS, TOKENS)) < 0.7
        mask[0, 0] = True
        mask[0, 1, :200] = True  # nothing hidden in the first page, something in later ones
        together = session.attend(0, q, options=AttendOptions(mask=mask))
        assert_same_bits(together[:1], plain[:1], "a row from which nothing is hidden")
        for row in range(ROWS):
            alone = session.attend(
                0, q[row : row + 1], position=first + row, options=AttendOptions(mask=mask[:, row : row + 1])
            )
            assert_same_bits(alone, together[row : row + 1], f"row {row} alone")
        zeros = AttendOptions(bias=np.zeros((1, 1, TOKENS), np.float32))
        assert_same_bits(session.attend(0, q, options=zeros), plain, "a bias of zeros")
