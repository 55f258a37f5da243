"""The bytes of a page are those that geometry.pxi and layout.py describe, however the tokens came."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import pytest
from castagnoli import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from oracle import ENGINES, STORAGES, TIERS, Floats

from rondel.decoder import kernels, reference
from rondel.decoder.cache.layout import PageLayout, RingLayout
from rondel.decoder.spec import StreamSpec

Bytes = NDArray[np.uint8]

GUARD = 0xA5
GAP = 64
MAGIC = 0x47505252


@dataclass
class Tokens:
    """What was appended: k [n, Hkv, Dk], v [n, Hkv, Dv]."""

    k: Floats
    v: Floats


def quantised(x: Floats) -> tuple[NDArray[np.int8], NDArray[np.uint16]]:
    """Codes, and scales as the bits of a bfloat16."""
    scales = reference.quantise_rows(x)[1]
    codes = np.rint(x / scales[..., None]).astype(np.int8)  # in float32, as store.pxi says
    return codes, (scales.view(np.uint32) >> 16).astype(np.uint16)


def run_bytes(page: PageLayout, slots: dict[int, int], tokens: Tokens, head: int) -> Bytes:
    """One kv head's run; ``slots`` says which position is in which slot."""
    at, of = np.array(list(slots), int), np.array(list(slots.values()), int)
    kp, vp, t = page.key_pad, page.value_pad, page.slots
    if page.storage == "float32":
        k = np.zeros((t, kp), np.float32)
        v = np.zeros((t, vp), np.float32)
        k[at, : page.key_dim], v[at, : page.value_dim] = tokens.k[of, head], tokens.v[of, head]
        parts = [
            k.reshape(t // 16, 16, kp).transpose(0, 2, 1),  # [T/16][Kp][16]
            v.reshape(t, vp // 16, 16).transpose(1, 0, 2),  # [Vp/16][T][16]
        ]
    else:
        (k_codes, k_scales), (v_codes, v_scales) = quantised(tokens.k), quantised(tokens.v)
        kc, vc = np.zeros((t, kp), np.int8), np.zeros((t, vp), np.int8)
        scales = np.zeros((2, t), np.uint16)
        kc[at, : page.key_dim], vc[at, : page.value_dim] = k_codes[of, head], v_codes[of, head]
        scales[0, at], scales[1, at] = k_scales[of, head], v_scales[of, head]
        parts = [
            kc.reshape(t // 16, 16, kp // 4, 4).transpose(0, 2, 1, 3),  # [T/16][Kp/4][16][4]
            vc.reshape(t // 4, 4, vp // 16, 16).transpose(2, 0, 3, 1),  # [Vp/16][T/4][16][4]
            scales,
        ]
    data = b"".join(np.ascontiguousarray(part).tobytes() for part in parts)
    return np.frombuffer(data.ljust(page.run_bytes, b"\0"), np.uint8)


def checksums(page: PageLayout, slots: dict[int, int], tokens: Tokens) -> NDArray[np.uint32]:
    """Of each slot: of its position and its rows, head by head; zero where the page's lap has not come to."""
    sums = np.zeros(page.slots, np.uint32)
    at = [slot for slot, position in slots.items() if position >= slots[0]]
    of = np.array([slots[slot] for slot in at], np.int64)
    columns = [of[:, None].view(np.uint8)]
    for head in range(page.kv_heads):
        for x in (tokens.k[of, head], tokens.v[of, head]):
            if page.storage == "float32":
                columns.append(np.ascontiguousarray(x).view(np.uint8))
            else:
                codes, scales = quantised(x)
                columns += [codes.view(np.uint8), scales[:, None].view(np.uint8)]
    sums[at] = crc32c(np.concatenate(columns, axis=1))
    return sums


def page_bytes(page: PageLayout, slots: dict[int, int], tokens: Tokens) -> Bytes:
    runs = [run_bytes(page, slots, tokens, head) for head in range(page.kv_heads)]
    storage = STORAGES.index(page.storage)
    header, sums = bytes(32), bytes(4 * page.slots)
    if slots:
        begin = struct.pack("<IHBBq", MAGIC, 1, storage, 0, slots[0])
        centres = bytes(0 if page.storage == "float32" else 3 * page.key_pad * page.kv_heads)
        (crc,) = crc32c(np.frombuffer(begin + centres, np.uint8)[None])
        header, sums = struct.pack("<16sI12x", begin, crc), checksums(page, slots, tokens).tobytes()
    data = b"".join(run.tobytes() for run in runs) + sums + header
    return np.frombuffer(data.ljust(page.page_bytes, b"\0"), np.uint8)


class Memory:
    """Pages of one layer's ring, sink page first, between guard bytes."""

    def __init__(self, layout: RingLayout, tier: str) -> None:
        self.layout, self.kernels = layout, kernels.load(tier)
        self.pages = [layout.sink_page, *[layout.page] * layout.ring_pages]
        self.table = np.full(len(self.pages), -1, np.int64)
        end = GAP
        for i, page in enumerate(self.pages):
            if page:
                self.table[i] = end
                end += page.page_bytes + GAP
        space = np.full(end + 64, GUARD, np.uint8)
        self.bytes = space[-space.ctypes.data % 64 :][:end]
        for i, page in enumerate(self.pages):
            if page:
                self.page(i)[:] = 0

    def page(self, i: int) -> Bytes:
        page, at = self.pages[i], int(self.table[i])
        assert page is not None
        return self.bytes[at : at + page.page_bytes]

    def place(self, first: int, k: Floats, v: Floats) -> None:
        self.kernels.place(self.layout.words(), self.bytes.ctypes.data, self.table, first, k, v)

    def expected(self, tokens: Tokens) -> Bytes:
        """All bytes after these tokens, the guards among them."""
        sinks, capacity = self.layout.group.sinks, self.layout.capacity
        slots: list[dict[int, int]] = [{} for _ in self.pages]
        for position in range(len(tokens.k)):
            place = (position - sinks) % capacity
            page, slot = (0, position) if position < sinks else (1 + place // 128, place % 128)
            slots[page][slot] = position
        wanted = np.full_like(self.bytes, GUARD)
        for i, page_layout in enumerate(self.pages):
            if page_layout:
                at = int(self.table[i])
                wanted[at : at + page_layout.page_bytes] = page_bytes(page_layout, slots[i], tokens)
        return wanted


def drawn(rng: np.random.Generator, n: int, heads: int, dim: int) -> Floats:
    return rng.standard_normal((n, heads, dim), np.float32)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(
    st.sampled_from(ENGINES),
    st.integers(1, 3),
    st.tuples(st.integers(1, 70), st.integers(1, 70)),
    st.integers(0, 40),
    st.lists(st.integers(1, 150), min_size=1, max_size=6),
    st.integers(0, 2**32 - 1),
)
def test_pages_hold_what_the_format_says(
    engine: tuple[str, str], heads: int, dims: tuple[int, int], sinks: int, pieces: list[int], seed: int
) -> None:
    tier, storage = engine
    spec = StreamSpec.uniform(
        layers=1,
        query_heads=heads,
        kv_heads=heads,
        head_dim=dims[0],
        value_dim=dims[1],
        window=100,
        sinks=sinks,
        storage=storage,
    )
    rng = np.random.default_rng(seed)
    memory = Memory(RingLayout.of(spec.groups[0], spec.length_limit), tier)
    tokens = Tokens(drawn(rng, sum(pieces), heads, dims[0]), drawn(rng, sum(pieces), heads, dims[1]))
    first = 0
    for count in pieces:
        memory.place(first, tokens.k[first : first + count], tokens.v[first : first + count])
        first += count
    np.testing.assert_array_equal(memory.bytes, memory.expected(tokens))


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("dims", [(1024, 1024), (1021, 1009)])
def test_the_largest_rows(storage: str, dims: tuple[int, int]) -> None:
    spec = StreamSpec.uniform(
        layers=1, query_heads=1, kv_heads=1, head_dim=dims[0], value_dim=dims[1], window=100, storage=storage
    )
    rng = np.random.default_rng(5)
    tokens = Tokens(drawn(rng, 37, 1, dims[0]), drawn(rng, 37, 1, dims[1]))
    for tier in TIERS:
        memory = Memory(RingLayout.of(spec.groups[0], spec.length_limit), tier)
        memory.place(0, tokens.k, tokens.v)
        np.testing.assert_array_equal(memory.bytes, memory.expected(tokens), err_msg=tier)
