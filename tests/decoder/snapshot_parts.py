"""Snapshots in one line each; and taken apart and put together by what the format says, not by our code."""

from __future__ import annotations

import io
import json
import struct
import zlib
from dataclasses import dataclass, field
from typing import Any

from rondel.decoder.cache.arena import Arena
from rondel.decoder.cache.layout import RingLayout
from rondel.decoder.session import DecoderSession
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


def written(session: DecoderSession) -> bytes:
    file = io.BytesIO()
    assert session.snapshot(file) == len(file.getvalue())
    return file.getvalue()


def restored(raw: bytes, arena: Arena | None = None, **options: Any) -> DecoderSession:
    return DecoderSession.restore(io.BytesIO(raw), arena or Arena(budget=64 << 20), **options)


def assert_equal(session: DecoderSession, other: DecoderSession) -> None:
    """Everything that can be told of a stream is the same, its stored bytes included."""
    assert other.spec == session.spec
    for name in ("length", "high_water", "min_length", "generation", "sealed"):
        assert getattr(other, name) == getattr(session, name), name
    layers = range(session.spec.layers)
    assert [other.layer_length(n) for n in layers] == [session.layer_length(n) for n in layers]
    assert written(other) == written(session)
