"""The read loops read what attention reads: all of it, nothing else, whichever loop and tier."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from ours import Stored, spec_of
from reading import ReadLoops
from rondel.decoder import kernels
from rondel.decoder.cache.layout import RingLayout
from shapes import Shape, draw

SHAPES = (Shape("one head", 2, 1, 8, 128), Shape("odd dims", 6, 3, 20, 300), Shape("usual", 4, 2, 64, 1000))


def expected(stored: Stored) -> int:
    """The exclusive or of the words of every run's keys, values and scales."""
    layout = RingLayout.of(stored.session.spec.groups[0], stored.problem.shape.keys)
    page = layout.page
    used = stored.bytes_read // (page.kv_heads * stored.pages)
    memory: NDArray[np.uint8] = stored.session._arena._bytes
    words = [
        memory[offset + head * page.run_bytes : offset + head * page.run_bytes + used].view(np.uint64)
        for offset in stored.session._rings[0].table(0)[1:]
        for head in range(page.kv_heads)
    ]
    return int(np.bitwise_xor.reduce(np.concatenate(words)))


@pytest.mark.parametrize("storage", ["int8", "float32"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_every_loop_reads_the_same_bytes(shape: Shape, storage: str) -> None:
    stored = Stored(draw(shape), storage)
    want, rings = expected(stored), stored.session._rings[0]
    for tier in kernels.available():
        for variant in range(len(kernels.READ_LOOPS)):
            read = kernels.load(tier).read_pages
            got = read(rings.words, stored.session._arena.base, rings.table(0), 0, stored.pages, variant)
            assert got == want, (tier, kernels.READ_LOOPS[variant])
    stored.close()


def test_parts_add_up() -> None:
    stored = Stored(draw(SHAPES[2]), "int8")
    loops = ReadLoops(stored, 3)
    assert {call() for call in loops.calls.values()} == {expected(stored)}
    loops.close()
    with pytest.raises(ValueError, match="closed"):
        loops.calls[kernels.READ_LOOPS[0]]()
    stored.close()


def test_wrong_arguments_are_refused() -> None:
    stored = Stored(draw(SHAPES[1]), "int8")
    rings, base = stored.session._rings[0], stored.session._arena.base
    table = rings.table(0)
    read = kernels.KERNELS.read_pages
    assert read(rings.words, base, table, 1, 1, 0) == 0
    for start, stop, variant, text in (
        (0, 4, 0, "within 0 to 3, got 0 to 4"),
        (-1, 2, 0, "got -1 to 2"),
        (2, 1, 0, "got 2 to 1"),
        (0, 3, 6, "from 0 to 5, got 6"),
    ):
        with pytest.raises(ValueError, match=text):
            read(rings.words, base, table, start, stop, variant)
    with pytest.raises(ValueError, match="ring page 1 is not there"):
        read(rings.words, base, np.array([-1, table[1], -1, table[3]]), 0, 3, 0)
    stored.close()


def test_the_spec_is_the_shape() -> None:
    spec = spec_of(SHAPES[1], "int8", layers=2, room=5)
    assert (spec.layers, spec.length_limit, spec.groups[0].key_dim) == (2, 305, 20)
