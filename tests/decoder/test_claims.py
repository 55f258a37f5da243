"""What one layer has overwritten says nothing about another's window; what a truncate leaves is whole."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mirror import Mirror, refused

from rondel.decoder.cache.layout import RingLayout
from rondel.decoder.errors import DuplicateTooOld, RollbackTooDeep, WindowEvicted
from rondel.decoder.spec import LayerGroup, StreamSpec

repeatable = settings(deadline=None, derandomize=True, database=None, max_examples=60)


def group(layers: tuple[int, ...], window: int | None, **changes: Any) -> LayerGroup:
    sizes: dict[str, Any] = {"query_heads": 2, "kv_heads": 1, "key_dim": 8, "value_dim": 8}
    return LayerGroup(layers=layers, window=window, **sizes, **changes)


def test_a_layer_that_runs_far_ahead_evicts_nobody_elses_window() -> None:
    """A layer that keeps everything may take a whole prompt before the others begin."""
    spec = StreamSpec(groups=(group((0,), 60, reserve=9), group((1,), None)), max_length=3000)
    mirror = Mirror(spec).grow(100)
    _, k, v = mirror.draw(1, 2800)
    mirror.append(1, k, v)
    assert (mirror.session.high_water, mirror.session.length) == (2900, 100)
    assert mirror.session.min_length == 0
    for position in (0, 41, 99):
        mirror.check_attend(0, 1, position)
    mirror.check_stored()
    mirror.truncate(30)
    mirror.grow(300)
    mirror.check_attend(0, 10, 290)
    mirror.check_stored()


def test_layers_of_one_group_wrap_each_for_itself() -> None:
    mirror = Mirror(StreamSpec(groups=(group((0, 1), 60, sinks=3, reserve=9),))).grow(250)
    _, k, v = mirror.draw(0, 10)
    mirror.append(0, k, v)  # 260 > 3 + 256: layer 0 has lost its first page, layer 1 has not
    with refused(mirror, WindowEvicted, oldest=131 + 59):
        mirror.session.attend(0, mirror.queries(0, 1), position=189)
    with refused(mirror, DuplicateTooOld):
        mirror.session.read(0, 130, 131)
    mirror.check_attend(1, 1, 70)
    with refused(mirror, RollbackTooDeep, limit=250):  # a truncate reaches both
        mirror.session.truncate(249)
    mirror.truncate(250)
    mirror.grow(251)
    mirror.check_stored()
    for layer in range(2):
        mirror.check_attend(layer, 2, 249)


@repeatable
@given(
    windows=st.tuples(st.integers(1, 140), st.integers(1, 300) | st.none()),
    reserves=st.tuples(st.integers(0, 40), st.integers(0, 140)),
    leads=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 400)), max_size=14),
)
def test_the_least_length_is_whole_in_every_layer(
    windows: tuple[int, int | None],
    reserves: tuple[int, int],
    leads: list[tuple[int, int]],
) -> None:
    """Layers 0 and 2 of one group, 1 of another, grown unevenly; then the deepest truncate."""
    second = {} if windows[1] is None else {"reserve": reserves[1]}
    groups = (group((0, 2), windows[0], reserve=reserves[0]), group((1,), windows[1], **second))
    mirror = Mirror(StreamSpec(groups=groups, max_length=3000))
    for layer, tokens in leads:
        if mirror.refusal_of_append([layer], tokens) is None:
            mirror.append(layer, *mirror.draw(layer, tokens)[1:])
    assert mirror.session.min_length == mirror.min_length
    mirror.truncate(mirror.min_length)
    for layer in range(3):
        if mirror.length:
            mirror.check_attend(layer, 1, mirror.length - 1)
        mirror.step(layer, *mirror.draw(layer, 1))
        mirror.check_attend(layer, 1, len(mirror.k[layer]) - 1)
    mirror.check_stored()


@pytest.mark.parametrize("sinks", [0, 5, 128])
@repeatable
@given(claimed=st.integers(0, 3000), more=st.integers(0, 3000), window=st.integers(1, 400))
def test_rewritten_pages_are_those_between_two_oldest_positions(
    sinks: int, claimed: int, more: int, window: int
) -> None:
    layout = RingLayout.of(group((0,), window, sinks=sinks, reserve=1), 2**40)
    lost = range(layout.oldest_whole(claimed), layout.oldest_whole(claimed + more))
    slots = {(p - sinks) % layout.capacity // 128 for p in lost}
    pages = layout.rewritten(claimed, claimed + more)
    assert set(pages) == slots
    assert len(pages) == len(slots)
