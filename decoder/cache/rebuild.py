"""An arena's state from what its file holds: slabs, pages in use, who shares and who pays for them.

None of that is stored, so none of it can disagree with the streams. A page that nobody names is free,
whatever it was when the process was killed. A stream that cannot be gone on with keeps its pages, as far as
they can be told, until it is dropped; where even that cannot be told, nothing is done to what may be its own.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rondel.decoder.cache.arena_file import ArenaFile
from rondel.decoder.cache.draft import Draft
from rondel.decoder.cache.record import Slot, StreamRecord
from rondel.decoder.cache.recorded import Parts, RecordedExtent, rings_of
from rondel.decoder.cache.reservation import Reservation
from rondel.decoder.cache.slab_map import Page, SlabMap
from rondel.decoder.cache.slabs import UNIT
from rondel.decoder.cache.survey import survey
from rondel.decoder.errors import BudgetExceeded
from rondel.decoder.spec import StreamSpec

if TYPE_CHECKING:
    from rondel.decoder.cache.arena import Arena


@dataclass(slots=True)
class Found:
    """A stream that was in a file. ``reason`` says why it cannot be gone on with; empty = it can."""

    draft: Draft
    pages: Reservation
    reason: str

    @property
    def spec(self) -> StreamSpec:
        """What kind of stream it is. Raises ValueError where that could not be read."""
        if self.draft.spec is None:
            raise ValueError(f"the stream's specification could not be read: {self.reason}")
        return self.draft.spec

    @property
    def tag(self) -> bytes:
        """What its owner wanted to know it by; empty where that could not be read."""
        return self.draft.tag

    def parts(self) -> Parts:
        """The stream, every layer rolled back to what all have, in a generation of its own."""
        draft, record = self.draft, self.pages.record
        if draft.spec is None or not isinstance(record, StreamRecord) or self.reason:
            raise ValueError(f"a stream that was set aside cannot be gone on with: {self.reason}")
        extent = RecordedExtent(draft.spec, draft.layouts, record)
        extent.load(
            draft.marks, generation=draft.generation, sealed=draft.sealed, quota=draft.quota, cut=draft.cut
        )
        rings = rings_of(draft.layouts, record)
        for each, table in zip(rings, draft.tables, strict=True):
            each.load(table, self.pages, saved=draft.saved)
        extent.attach(draft.marks[2])
        return extent, list(rings), self.pages


def rebuild(arena: Arena, file: ArenaFile) -> list[Found]:
    """Set an arena up by its file; the streams in it."""
    slabs = SlabMap.of(file)
    drafts = survey(file, slabs)
    file.hold_slots({draft.slot for draft in drafts})
    holdings = _holdings(drafts, slabs)
    found = [_found(arena, file, draft) for draft in drafts]
    with arena._lock:
        used = {page for held in holdings for page in held.pages}
        used |= {draft.record for draft in drafts if draft.record}
        for unit, size in slabs.sizes.items():
            arena._space.lay_out(unit, size, used)
        for unit in _unknown_units(drafts, slabs, arena._space.units):
            arena._space.taken[unit] = 1
        for each, held in zip(found, holdings, strict=True):
            _promise(arena, each, held)
        _share(arena, [each.pages for each in found])
        for page_bytes in list(arena._space.pools):
            arena._space.withdraw(page_bytes, 0)
    return found


class _Held:
    """What one stream holds: its pages, and those of them that it pays for."""

    def __init__(self) -> None:
        self.paid: set[Page] = set()
        self.borrowed: set[Page] = set()
        self.first: set[Page] = set()
        """Pages that this stream is the first to pay for. Each page in use is somebody's."""
        self.adopted: Counter[int] = Counter()
        """By size: pages that it had borrowed from a stream that is gone."""

    @property
    def pages(self) -> set[Page]:
        return self.paid | self.borrowed


def _holdings(drafts: list[Draft], slabs: SlabMap) -> list[_Held]:
    """What each stream holds, so that every page has somebody who pays for it."""
    holdings = [_Held() for _ in drafts]
    sound: set[Page] = set()
    for draft, held in zip(drafts, holdings, strict=True):
        if not draft.reason:
            for page, lent in draft.pages():
                (held.borrowed if lent else held.paid).add(page)
                sound.add(page)
    records = {draft.record for draft in drafts}
    for draft, held in zip(drafts, holdings, strict=True):
        if draft.reason:
            named = {page for page, _ in draft.pages() if slabs.holds(page)}
            held.paid = named - sound - records
    paid = {page for held in holdings for page in held.paid}
    for held in holdings:
        adopted = held.borrowed - paid
        held.borrowed -= adopted
        held.paid |= adopted
        held.adopted = Counter(size for size, _ in adopted)
        paid |= adopted
    seen: set[Page] = set()
    for held in holdings:
        held.first = held.paid - seen
        seen |= held.paid
    return holdings


def _found(arena: Arena, file: ArenaFile, draft: Draft) -> Found:
    pages, own = (Reservation(arena, {}, arena.account) for _ in range(2))
    if draft.record is not None:
        _hold(own, {draft.record}, set(), Counter({draft.record[0]: 1}))
    if draft.record is None or draft.shape is None:
        pages.record = Slot(file, draft.slot, own, published=True)
    else:
        size, offset = draft.record
        page = slice(offset, offset + size)
        pages.record = StreamRecord(file, draft.slot, own, page, draft.shape, draft.start, published=True)
    return Found(draft, pages, draft.reason)


def _hold(pages: Reservation, paid: set[Page], borrowed: set[Page], demand: Counter[int]) -> None:
    sizes = {size for size, _ in paid | borrowed} | set(demand)
    pages._demand = {size: demand[size] for size in sizes}
    for held, by_size in ((paid, pages._paid), (borrowed, pages._borrowed)):
        for size in sizes:
            by_size[size] = {offset for each, offset in held if each == size}


def _share(arena: Arena, streams: list[Reservation]) -> None:
    """Who shares pages with whom."""
    holders: defaultdict[Page, list[Reservation]] = defaultdict(list)
    payers: Counter[Page] = Counter()
    for pages in streams:
        payers.update((size, offset) for size, paid in pages._paid.items() for offset in paid)
        for size, held in pages._held():
            for offset in held:
                holders[size, offset].append(pages)
    for (size, offset), members in holders.items():
        if len(members) > 1:
            arena._shares._of[offset] = (len(members), payers[size, offset])
            arena._shares.bytes += size
            _unite(members)


def _unite(members: list[Reservation]) -> None:
    families = [member._family or {member} for member in members]
    if all(family is families[0] for family in families[1:]) and members[0]._family is not None:
        return
    family = set[Reservation]().union(*families)
    for member in family:
        member._family = family


def _promise(arena: Arena, found: Found, held: _Held) -> None:
    """Room for what a stream may still come to take, as it was promised. One that was set aside takes
    nothing."""
    first = Counter(size for size, _ in held.first)
    demand = Counter(found.draft.demand) + held.adopted
    if not found.reason:
        try:
            arena._space.promise(demand - first)
        except BudgetExceeded as error:
            found.reason = f"the arena lacks the room that was promised to it: {error.message}"
        else:
            for size in found.draft.demand:
                demand[size] += 0
            _hold(found.pages, held.paid, held.borrowed, demand)
            return
    _hold(found.pages, held.first, held.pages - held.first, first)


def _unknown_units(drafts: list[Draft], slabs: SlabMap, units: int) -> set[int]:
    """Units in no slab that may hold something of a stream that was set aside."""
    unknown = set(slabs.damaged)
    for draft in drafts:
        for page, _ in draft.pages() if draft.reason else ():
            if not slabs.holds(page):
                unknown.update(range(page[1] // UNIT, -(-sum(page) // UNIT)))
    return {unit for unit in unknown if unit < units}
