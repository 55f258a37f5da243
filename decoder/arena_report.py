"""What is in an arena's file, told without changing it."""

from __future__ import annotations

import os
from dataclasses import dataclass

from rondel.decoder.cache.arena_file import ArenaFile
from rondel.decoder.cache.draft import Draft
from rondel.decoder.cache.slab_map import SlabMap
from rondel.decoder.cache.slabs import UNIT
from rondel.decoder.cache.survey import survey
from rondel.decoder.checks import checked_verify
from rondel.decoder.damage import damage
from rondel.decoder.kernels import KERNELS


@dataclass(frozen=True, slots=True)
class StreamReport:
    """A stream: what its owner knows it by, tokens that all layers have, bytes of pages that it names (shared
    ones included), and why it cannot be gone on with; empty = it can."""

    tag: bytes
    length: int
    layers: int
    bytes: int
    generation: int
    sealed: bool
    reason: str


@dataclass(frozen=True, slots=True)
class ArenaReport:
    """A file; sizes in bytes. ``damaged_units`` are entries of the slab map that cannot be."""

    path: str
    budget: int
    identity: int
    reserved: int
    damaged_units: int
    streams: list[StreamReport]


def report(path: str | os.PathLike[str], *, verify: str | None = None) -> ArenaReport:
    """Look at a file: at its tables and records, and with ``verify`` ("full" or "tail", as ``attach`` has it)
    at the checksums of tokens.

    Raises:
        InvalidSpec: ``verify`` is none of these.
        ArenaFileError: see ``Arena``; ArenaFileBusy above all.
    """
    full = None if verify is None else checked_verify(verify)
    file = ArenaFile(path, None)
    try:
        slabs = SlabMap.of(file)
        streams = [_told(file, draft, full) for draft in survey(file, slabs)]
        return ArenaReport(
            path=file.path,
            budget=file.superblock.units * UNIT,
            identity=file.superblock.identity,
            reserved=slabs.units * UNIT,
            damaged_units=len(slabs.damaged),
            streams=streams,
        )
    finally:
        file.close()


def _told(file: ArenaFile, draft: Draft, full: bool | None) -> StreamReport:
    reason, length = draft.reason, draft.marks[2]
    if full is not None and not reason:
        base, claimed = file.bytes.ctypes.data, draft.marks[1]
        reason = damage(KERNELS, base, draft.layouts, draft.tables, length, claimed, full=full)
    return StreamReport(
        tag=draft.tag,
        length=length,
        layers=draft.spec.layers if draft.spec is not None else 0,
        bytes=sum(size for (size, _), _ in draft.pages()),
        generation=draft.generation,
        sealed=draft.sealed,
        reason=reason,
    )
