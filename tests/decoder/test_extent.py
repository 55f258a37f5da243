"""The rules of positions alone, against a ring of plain integers that is really written and overwritten."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rondel.decoder.cache.extent import StreamExtent
from rondel.decoder.cache.layout import RingLayout
from rondel.decoder.errors import (
    ChunkTooLong,
    DuplicateTooOld,
    LengthExceeded,
    RollbackTooDeep,
    RondelError,
    SequenceGap,
    WindowEvicted,
)
from rondel.decoder.spec import LayerGroup, StreamSpec

PAGE = 128
repeatable = settings(deadline=None, derandomize=True, database=None, max_examples=100)


def group(layers: tuple[int, ...], window: int | None, sinks: int = 0, reserve: int = 0) -> LayerGroup:
    return LayerGroup(layers=layers, query_heads=1, kv_heads=1, key_dim=8, value_dim=8, window=window,
                      sinks=sinks, reserve=reserve)  # fmt: skip


def extent_of(*groups: LayerGroup, max_length: int | None = None) -> StreamExtent:
    spec = StreamSpec(groups=groups, max_length=max_length)
    return StreamExtent(spec, [RingLayout.of(g, spec.length_limit) for g in groups])


@dataclass
class Ring:
    """One layer's slots. Writing a page's first new slot kills the page's whole old lap."""

    window: int
    sinks: int
    reserve: int
    sink: set[int] = field(default_factory=set)
    slots: dict[int, int] = field(default_factory=dict)
    begun: dict[int, int] = field(default_factory=dict)  # page -> newest lap that it was begun for
    written: int = 0

    @property
    def capacity(self) -> int:
        return PAGE * (-(-(self.window + self.reserve) // PAGE) + 1)

    def write(self, p: int) -> None:
        self.written = max(self.written, p + 1)
        if p < self.sinks:
            self.sink.add(p)
            return
        lap, slot = divmod(p - self.sinks, self.capacity)
        page = slot // PAGE
        if lap > self.begun.get(page, -1):
            self.begun[page] = lap
            self.slots = {s: held for s, held in self.slots.items() if s // PAGE != page}
        self.slots[slot] = p

    def holds(self, p: int) -> bool:
        return p in self.sink if p < self.sinks else self.slots.get((p - self.sinks) % self.capacity) == p

    def needs(self, p: int) -> range:
        return range(max(0, p - self.window + 1), p + 1)


@dataclass
class Layers:
    """Rings of two layers, written as the extent allows, and the lengths they should have."""

    window: int
    sinks: int
    reserve: int

    def __post_init__(self) -> None:
        self.extent = extent_of(group((0, 1), self.window, self.sinks, self.reserve))
        self.rings = [Ring(self.window, self.sinks, self.reserve) for _ in range(2)]
        self.lengths = [0, 0]

    @property
    def most(self) -> int:
        return self.sinks + self.rings[0].capacity

    def append(self, layers: list[int], tokens: int) -> None:
        """As a session does it: check, claim, write, advance; all layers together go piece by piece."""
        start = self.extent.check_append(layers, tokens)
        pieces = [1] * tokens if len(layers) == 2 else [tokens]
        for size in pieces:
            for layer in layers:
                first = self.lengths[layer]
                self.extent.claim(layer, first + size)
                for p in range(first, first + size):
                    self.rings[layer].write(p)
                self.assert_whole(layer, first, first + size)
                self.extent.advance(layer, first + size)
                self.lengths[layer] += size
        assert start + tokens == self.lengths[layers[0]]

    def assert_whole(self, layer: int, first: int, end: int) -> None:
        """All that rows ``first`` to ``end`` - 1 see is really there."""
        ring = self.rings[layer]
        seen = (*range(min(self.sinks, end)), *range(ring.needs(first).start, end))
        lost = [j for j in seen if not ring.holds(j)]
        assert not lost, f"layer {layer}: rows {first} to {end - 1} would miss {lost[:3]}"

    def check_everything(self) -> None:
        assert [self.extent.layer_length(n) for n in range(2)] == self.lengths
        assert self.extent.length == min(self.lengths)
        for layer, ring in enumerate(self.rings):
            held = [ring.holds(p) for p in range(self.lengths[layer])]
            for p, stored in enumerate(held):
                whole = all(held[j] for j in ring.needs(p))
                try:
                    self.extent.check_window(layer, p, 1)
                except WindowEvicted as error:
                    first = error.oldest
                    assert not whole
                    assert all(held[j] for j in ring.needs(first) if j < len(held))
                else:
                    assert whole, (layer, p)
                try:
                    self.extent.check_stored(layer, p, 1)
                except DuplicateTooOld:
                    assert not stored
                else:
                    assert stored, (layer, p)


def reach(extent: StreamExtent, length: int, layers: range) -> None:
    for layer in layers:
        extent.claim(layer, length)
        extent.advance(layer, length)


def refusal(call: object, *arguments: object) -> type[RondelError] | None:
    try:
        call(*arguments)  # type: ignore[operator]
    except RondelError as error:
        return type(error)
    return None


sizes = {"window": st.integers(1, 200), "sinks": st.integers(0, 128), "reserve": st.integers(0, 140)}


@repeatable
@given(**sizes, seed=st.integers(0, 2**32))
def test_what_is_allowed_is_there_and_what_is_there_is_allowed(
    window: int, sinks: int, reserve: int, seed: int
) -> None:
    """Random appends, leads and truncates, most of them at the limits; then every position is asked."""
    layers, luck = Layers(window, sinks, reserve), random.Random(seed)
    for _ in range(luck.randint(1, 25)):
        choice = luck.random()
        if choice < 0.35 and layers.lengths[0] == layers.lengths[1]:
            layers.append([0, 1], luck.choice([1, 2, reserve + 1, PAGE - 1, window, 2 * PAGE]))
        elif choice < 0.8:
            leader = luck.randrange(2)
            tokens = luck.choice([1, reserve, reserve + 1, reserve + 2, PAGE, window])
            end = layers.lengths[leader] + tokens
            allowed = end <= layers.most or end - min(layers.lengths) <= reserve + 1
            if allowed:
                layers.append([leader], tokens)
            else:
                assert refusal(layers.extent.check_append, [leader], tokens) is ChunkTooLong
        else:
            length, high = min(layers.lengths), layers.extent.high_water
            least = max(0, min(length, high - reserve)) if high > layers.most else 0
            assert layers.extent.min_length == least
            if least:
                assert refusal(layers.extent.truncate, least - 1) is RollbackTooDeep
            layers.extent.truncate(luck.choice([least, length, (least + length) // 2]))
            layers.lengths = [layers.extent.length] * 2
            assert layers.extent.high_water == high
    layers.check_everything()


@pytest.mark.parametrize("reserve", [0, 1, 64, 127, 128])
@pytest.mark.parametrize("sinks", [0, 4, 128])
@pytest.mark.parametrize("window", [1, 2, 127, 128, 129, 256])
def test_borders_where_pages_and_windows_end(window: int, sinks: int, reserve: int) -> None:
    layers = Layers(window, sinks, reserve)
    extent, ring = layers.extent, layers.rings[0]
    for length in range(1, layers.most + 3 * PAGE):
        layers.append([0, 1], 1)
        if (length - sinks + 2) % PAGE > 4 and length % window > 1:
            continue
        oldest = next((p for p in range(sinks, length) if ring.holds(p)), sinks)
        row = oldest + window - 1 if oldest > sinks else 0
        if oldest > sinks:
            assert refusal(extent.check_window, 0, row - 1, 1) is WindowEvicted
            assert refusal(extent.check_stored, 0, oldest - 1, 1) is DuplicateTooOld
            assert refusal(extent.check_window, 0, sinks, 1) is WindowEvicted
        assert refusal(extent.check_window, 0, row, length - row) is None
        assert refusal(extent.check_stored, 0, oldest, max(0, length - oldest)) is (
            None if length >= oldest else SequenceGap
        )
        assert refusal(extent.check_stored, 0, 0, min(sinks, length)) is None
        assert refusal(extent.check_held, 0, length, 1) is SequenceGap
        wrapped = length > layers.most
        assert extent.min_length == (length - reserve if wrapped else 0)
        longest = max(reserve + 1, layers.most - length)
        assert refusal(extent.check_append, [0], longest) is None
        assert refusal(extent.check_append, [0], longest + 1) is ChunkTooLong
        assert refusal(extent.check_append, [0, 1], 10**9) is None  # goes piece by piece


@repeatable
@given(**sizes, laps=st.integers(0, 4), rows=st.integers(0, 400), start=st.integers(0, 900))
def test_several_rows_are_allowed_exactly_if_each_is(
    window: int, sinks: int, reserve: int, laps: int, rows: int, start: int
) -> None:
    layers = Layers(window, sinks, reserve)
    length = sinks + 3 + laps * layers.rings[0].capacity // 2
    reach(layers.extent, length, range(2))
    each = [refusal(layers.extent.check_window, 0, p, 1) for p in range(start, start + rows)]
    want = SequenceGap if start + rows > length else next((r for r in each if r), None)
    assert refusal(layers.extent.check_window, 0, start, rows) is want


def test_a_check_that_refuses_has_changed_nothing() -> None:
    extent = extent_of(group((0, 1), 60, 3, 9), max_length=1000)
    reach(extent, 500, range(2))
    for call, arguments, error in (
        (extent.check_append, ([0], 11), ChunkTooLong),
        (extent.check_append, ([0], 501), LengthExceeded),
        (extent.check_append, ([0, 1], 501), LengthExceeded),
        (extent.truncate, (490,), RollbackTooDeep),
        (extent.truncate, (501,), SequenceGap),
        (extent.truncate, (-1,), SequenceGap),
        (extent.check_window, (0, 300, 1), WindowEvicted),
        (extent.check_window, (0, 500, 1), SequenceGap),
        (extent.check_stored, (1, 200, 1), DuplicateTooOld),
        (extent.check_stored, (1, 499, 2), SequenceGap),
    ):
        assert refusal(call, *arguments) is error
        assert (extent.length, extent.high_water, extent.generation) == (500, 500, 0)
    extent.advance(0, 510)
    assert refusal(extent.check_append, [0, 1], 1) is SequenceGap


def test_the_tightest_group_decides() -> None:
    groups = (group((0,), 60, 3, 9), group((1,), 300, 0, 100), group((2,), None))
    extent = extent_of(*groups, max_length=5000)
    reach(extent, 259, range(3))
    assert extent.min_length == 0
    extent.claim(2, 2000)
    extent.claim(1, 260)
    assert extent.min_length == 0  # what the others claim is nothing to the first group
    extent.claim(0, 260)  # its ring, 3 + 256, has turned
    assert extent.min_length == 251
    reach(extent, 260, range(3))
    assert refusal(extent.check_append, [0], 11) is ChunkTooLong
    for layer in (1, 2):
        assert refusal(extent.check_append, [layer], 250) is None
    assert refusal(extent.check_append, [0, 2], 11) is ChunkTooLong
    assert refusal(extent.check_append, [1, 2], 380) is None  # 640 slots
    assert refusal(extent.check_append, [1, 2], 381) is ChunkTooLong
    assert refusal(extent.check_append, [2], 4740) is None
    assert refusal(extent.check_append, [2], 4741) is LengthExceeded


def test_positions_up_to_the_largest_length() -> None:
    extent = extent_of(group((0, 1), 256, 4, 64), max_length=2**48)
    reach(extent, 2**48 - 10, range(2))
    assert extent.min_length == 2**48 - 74
    assert refusal(extent.check_append, [0], 10) is None
    assert refusal(extent.check_append, [0], 11) is LengthExceeded
    assert refusal(extent.check_window, 0, 2**48 - 11, 1) is None
    assert refusal(extent.check_window, 0, 2**47, 1) is WindowEvicted
