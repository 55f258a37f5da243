"""What every byte of an arena's file is for, and which streams stand or fall with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rondel.decoder.cache.arena import Arena
from rondel.decoder.cache.layout import HEADER_BYTES, PageLayout
from rondel.decoder.cache.record import (
    BEGUN,
    CUT,
    GENERATION,
    HEAD_BYTES,
    LENGTHS,
    MAX_TAG,
    SEALED,
    StreamRecord,
    places_offset,
    record_bytes,
)
from rondel.decoder.cache.slabs import UNIT
from rondel.decoder.session import DecoderSession

SUPERBLOCK = {
    "magic": 8, "byte order": 4, "version": 4, "page format": 4, "unit": 8, "units": 8, "slots": 8,
    "identity": 8, "checksum": 4,
}  # fmt: skip
HEAD = {
    "magic": 8, "version": 4, "sizes": 16, "words": 4, "identity": 8, "place": 8, "slot": 8, "checksum": 4,
    "unused": HEAD_BYTES - 60,
}  # fmt: skip
PAGE_HEADER = {"magic": 4, "version": 2, "storage": 1, "flags": 1, "position": 8, "checksum": 4, "unused": 12}


@dataclass(frozen=True)
class Region:
    """Bytes start to stop - 1 of the file. ``owners``: the only streams that they may cost."""

    name: str
    start: int
    stop: int
    owners: frozenset[str] = frozenset()


def regions(sessions: Mapping[str, DecoderSession], arena: Arena) -> list[Region]:
    """All that an arena's file with these streams has. To be asked before it is closed."""
    file = arena.file
    assert file is not None
    block = file.superblock
    found = list(_fields("superblock", 0, SUPERBLOCK, frozenset()))
    found += [Region("between", SUPERBLOCK_END, block.map_range.start)]
    users = _users(sessions, block.first_unit)
    for unit in range(block.units):
        owners = frozenset[str]().union(
            *(tags for (start, stop), tags in users.items() if start < block.first_unit + (unit + 1) * UNIT
              and block.first_unit + unit * UNIT < stop)
        )  # fmt: skip
        found.append(_word("slab map", block.map_range.start, unit, owners))
    slots = {_record(session).slot: tag for tag, session in sessions.items()}
    for slot in range(len(slots) + 3):
        owners = frozenset({slots[slot]} if slot in slots else ())
        found.append(_word("stream table", block.table_range.start, slot, owners))
    for tag, session in sessions.items():
        found += _record_regions(_record(session), block.first_unit, frozenset({tag}), tag)
    done = set[int]()
    for session in sessions.values():
        for ring in session._rings:
            for layer in ring.group.layers:
                for column, offset in enumerate(ring.table(layer).tolist()):
                    layout = ring.layout.page if column else ring.layout.sink_page
                    if offset < 0 or layout is None or offset in done:
                        continue
                    done.add(offset)
                    start = block.first_unit + offset
                    name = f"{'ring' if column else 'sink'} page {layout.storage}"
                    found += _page_regions(layout, start, users[start, start + layout.page_bytes], name)
    return found


SUPERBLOCK_END = sum(SUPERBLOCK.values())


def _record(session: DecoderSession) -> StreamRecord:
    record = session._pages.record
    assert isinstance(record, StreamRecord)
    return record


def _users(sessions: Mapping[str, DecoderSession], first: int) -> dict[tuple[int, int], frozenset[str]]:
    """Who has which page."""
    users: dict[tuple[int, int], frozenset[str]] = {}
    for tag, session in sessions.items():
        record = _record(session)._page
        pages = [(record.start, record.stop)]
        for ring in session._rings:
            for layer in ring.group.layers:
                for column, offset in enumerate(ring.table(layer).tolist()):
                    if offset >= 0:
                        pages.append((offset, offset + ring.page_bytes(column)))
        for start, stop in pages:
            place = first + start, first + stop
            users[place] = users.get(place, frozenset()) | {tag}
    return users


def _fields(name: str, start: int, sizes: Mapping[str, int], owners: frozenset[str]) -> Iterator[Region]:
    for field, size in sizes.items():
        yield Region(f"{name}: {field}", start, start + size, owners)
        start += size


def _word(name: str, start: int, index: int, owners: frozenset[str]) -> Region:
    return Region(f"{name}: {'used' if owners else 'free'}", start + 8 * index, start + 8 * index + 8, owners)


def _record_regions(record: StreamRecord, first: int, owners: frozenset[str], tag: str) -> Iterator[Region]:
    page = record._file.bytes[record._page]
    start = first + record._page.start
    yield from _fields("record head", start, HEAD, owners)
    spec, promises, tag_bytes, lent = (int(size) for size in page[12:28].view("uint32"))
    assert tag_bytes == len(tag)
    sections = {"specification": spec, "promises": promises, "tag": tag_bytes, "lent flags": lent}
    yield from _fields("record", start + HEAD_BYTES, sections, owners)
    body = HEAD_BYTES + sum(sections.values())
    words = HEAD_BYTES + -(-(spec + promises + MAX_TAG + lent) // 64) * 64
    yield Region("record: unused", start + body, start + words, owners)
    shape = record.shape
    names = {GENERATION: "generation", SEALED: "sealed", BEGUN: "begun", CUT: "cut", LENGTHS: "lengths",
             shape.claims: "claims", shape.table(0): "page tables", shape.saved: "saved, unused"}  # fmt: skip
    for (index, name), stop in zip(names.items(), [*list(names)[1:], shape.words], strict=True):
        yield Region(f"record words: {name}", start + words + 8 * index, start + words + 8 * stop, owners)
    places, end = places_offset(words, shape), record_bytes(words, shape)
    yield Region("record: unused", start + words + 8 * shape.words, start + places, owners)
    for number, place in enumerate(record.places):
        noted = int.from_bytes(place[16:20], "little")
        used = 24 + noted if record.words.get(CUT) == number + 1 else 0
        at = start + places + number * len(place)
        yield Region("record: last truncate", at, at + used, owners)
        yield Region("record: unused", at + used, at + len(place), owners)
    yield Region("record: unused", start + end, first + record._page.stop, owners)


def _page_regions(layout: PageLayout, start: int, owners: frozenset[str], name: str) -> Iterator[Region]:
    cell = 4 if layout.storage == "float32" else 1
    run = {"keys": cell * layout.slots * layout.key_pad, "values": cell * layout.slots * layout.value_pad}
    if layout.storage == "int8":
        run |= {"key scales": 2 * layout.slots, "value scales": 2 * layout.slots,
                "key means": 2 * layout.key_pad, "key exponents": layout.key_pad}  # fmt: skip
    run["unused"] = layout.run_bytes - sum(run.values())
    for head in range(layout.kv_heads):
        yield from _fields(name, start + head * layout.run_bytes, run, owners)
    tail = {"checksums": 4 * layout.slots}
    yield from _fields(name, start + layout.tail_offset, tail, owners)
    header = start + layout.tail_offset + 4 * layout.slots
    yield from _fields(f"{name}, header", header, PAGE_HEADER, owners)
    yield Region(f"{name}: unused", header + HEADER_BYTES, start + layout.page_bytes, owners)
