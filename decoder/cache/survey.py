"""What an arena's file holds, read without changing it: each stream's record, and whether it can be so.

Nothing read here is trusted. What is wrong with a stream is a reason not to go on with it, never an error:
one stream must not keep the others from being found.
"""

from __future__ import annotations

from rondel.decoder.cache.arena_file import ArenaFile
from rondel.decoder.cache.draft import Draft, Unsound, read
from rondel.decoder.cache.layout import FORMAT_VERSION, RingLayout
from rondel.decoder.cache.slab_map import Page, SlabMap
from rondel.decoder.errors import RondelError
from rondel.decoder.snapshot_header import SnapshotHeader


def survey(file: ArenaFile, slabs: SlabMap) -> list[Draft]:
    """The streams in a file, by slot."""
    drafts = [_draft(file, slabs, slot, value) for slot, value in file.streams.used()]
    _refuse_strangers(drafts)
    return drafts


def _draft(file: ArenaFile, slabs: SlabMap, slot: int, value: int | None) -> Draft:
    draft = Draft(slot)
    try:
        if not value:
            raise Unsound("its entry in the stream table is damaged")
        read(draft, file, slabs, value - 1)
        _check(draft, slabs)
    except Unsound as error:
        draft.reason = str(error)
    return draft


def _check(draft: Draft, slabs: SlabMap) -> None:
    lengths, claimed, _, high_water = draft.marks
    if draft.spec is None:
        raise Unsound("it has no specification")
    try:
        SnapshotHeader(
            spec=draft.spec,
            page_format=FORMAT_VERSION,
            lengths=tuple(lengths),
            claimed=tuple(claimed),
            high_water=high_water,
            generation=draft.generation,
            sealed=draft.sealed,
        )
    except RondelError as error:
        raise Unsound(f"its lengths cannot be: {error}") from error
    if any((table < -1).any() for table in draft.tables):
        raise Unsound("an entry of its page tables is damaged")
    seen: set[Page] = {draft.record} if draft.record else set()
    for page, _ in draft.pages():
        if not slabs.holds(page):
            raise Unsound(f"its page of {page[0]} bytes at {page[1]} is in no slab")
        if page in seen:
            raise Unsound(f"its page tables name the page at {page[1]} twice")
        seen.add(page)
    for layout, table in zip(draft.layouts, draft.tables, strict=True):
        columns = {claim: _columns(layout, draft.marks[2], claim) for claim in set(claimed)}
        for row, layer in zip(table, layout.group.layers, strict=True):
            if (row[columns[claimed[layer]]] < 0).any():
                raise Unsound(f"layer {layer} lacks a page that its {draft.marks[2]} tokens need")


def _columns(layout: RingLayout, length: int, claimed: int) -> list[int]:
    """Columns of the page table that hold what can be read of a layer with such a length and claim."""
    oldest = layout.oldest_whole(claimed)
    ring = layout.columns(max(oldest, layout.group.sinks), length) if oldest < length else []
    return sorted({*ring, *layout.columns(0, min(length, layout.group.sinks))})


def _refuse_strangers(drafts: list[Draft]) -> None:
    """Streams that were forked name a page in the same place of their tables. Whoever names another's
    elsewhere is wrong."""
    owners: dict[Page, tuple[object, ...]] = {}
    for draft in drafts:
        if draft.record in owners:
            draft.record, draft.reason = None, draft.reason or "its record is another stream's"
        elif draft.record:
            owners[draft.record] = (draft.slot,)
    for draft in drafts:
        if draft.reason:
            continue
        mine: dict[Page, tuple[object, ...]] = {}
        for group, table in enumerate(draft.tables):
            layout = draft.layouts[group]
            sink, size = layout.sink_page.page_bytes if layout.sink_page else 0, layout.page.page_bytes
            for row, line in enumerate(table.tolist()):
                for column, offset in enumerate(line):
                    if offset >= 0:
                        mine[size if column else sink, offset] = (draft.spec, group, row, column)
        wrong = [page for page, place in mine.items() if owners.get(page, place) != place]
        if wrong:
            draft.reason = f"its page at {wrong[0][1]} is another stream's"
        else:
            owners.update(mine)
