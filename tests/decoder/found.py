"""Streams with tokens in them, and the same streams found again in their file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from deeds import Streams, tokens

from rondel.decoder.attach import attach
from rondel.decoder.cache.arena import Arena
from rondel.decoder.session import DecoderSession

BUDGET = 32 << 20


def fill(session: DecoderSession, count: int, seed: int = 0) -> DecoderSession:
    """So many tokens more in every layer."""
    rng = np.random.default_rng(seed)
    for part in session.chunks(count):
        for layer in range(session.spec.layers):
            _, k, v = tokens(rng, session, layer, part.stop - part.start)
            session.append(layer, k, v)
    return session


def attached(arena: Arena, **options: str) -> Streams:
    """The sessions in a file, by tag; none was set aside."""
    found = attach(arena, **options)
    assert [each.reason for each in found] == [""] * len(found)
    return {each.tag.decode(): each.session for each in found if each.session is not None}


def again(arena: Arena, path: Path) -> tuple[Arena, Streams]:
    """Close an arena, open the file again and attach."""
    arena.close()
    arena = Arena(BUDGET, path=path)
    return arena, attached(arena)
