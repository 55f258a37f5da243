"""Snapshots taken apart and put together again, by the words of the format and not by the code under test."""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass, field
from typing import Any

from rondel.decoder.cache.layout import RingLayout
from rondel.decoder.spec import StreamSpec

MAGIC = b"\x89RNDL\r\n\x1a"


@dataclass
class Parts:
    """A snapshot's contents. ``pages``: layer, index in the page table, bytes."""

    header: dict[str, Any]
    pages: list[tuple[int, int, bytearray]] = field(default_factory=list)
    version: int = 1

    @classmethod
    def of(cls, raw: bytes, spec: StreamSpec) -> Parts:
        magic, version, size, checksum, own = struct.unpack_from("<8sIIII", raw)
        assert (magic, own) == (MAGIC, zlib.crc32(raw[:20]))
        header = raw[24 : 24 + size]
        assert zlib.crc32(header) == checksum
        parts, at = cls(json.loads(header), version=version), 24 + size
        layouts = [RingLayout.of(group, spec.length_limit) for group in spec.groups]
        while at < len(raw) - 32:
            layer, index = struct.unpack_from("<II", raw, at)
            layout = layouts[spec.group_index(layer)]
            page = layout.page if index else layout.sink_page
            assert page is not None
            end = at + 8 + page.page_bytes
            assert struct.unpack_from("<I", raw, end) == (zlib.crc32(raw[at:end]),)
            parts.pages.append((layer, index, bytearray(raw[at + 8 : end])))
            at = end + 4
        assert parts.join() == raw
        return parts

    def join(self) -> bytes:
        """The snapshot of these contents, all sums right."""
        return self.join_with(json.dumps(self.header, sort_keys=True, separators=(",", ":")).encode())

    def join_with(self, header: bytes) -> bytes:
        start = struct.pack("<8sIII", MAGIC, self.version, len(header), zlib.crc32(header))
        sums = [zlib.crc32(start)]
        raw = start + struct.pack("<I", sums[0]) + header
        for layer, index, held in self.pages:
            page = struct.pack("<II", layer, index) + held
            sums.append(zlib.crc32(page))
            raw += page + struct.pack("<I", sums[-1])
        of_all = zlib.crc32(b"".join(struct.pack("<I", each) for each in sums))
        end = struct.pack("<8sQQI", b"RNDLEND\n", len(self.pages), len(raw) + 32, of_all)
        return raw + end + struct.pack("<I", zlib.crc32(end))
