"""What the server writes to a stream in its arena's file, to know it again after a restart.

JSON: the handle, the request that made the stream, what it was made from, and the name of its projections.
A key that is not known here belongs to a later version; it is ignored.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from rondel.decoder.cache.record import MAX_TAG
from rondel.decoder.errors import InvalidRequest
from rondel.server.bounds import check_id
from rondel.server.entries import Imported, Origin

_KIND: Final = "rondel-server-1"


@dataclass(frozen=True, slots=True)
class Tag:
    """What is kept of an entry."""

    handle: str
    open_id: str = ""
    origin: Origin | Imported | None = None
    projections: str = ""

    def encode(self) -> bytes:
        """At most MAX_TAG bytes. Raises InvalidRequest above (names of many unprintable characters)."""
        plain: dict[str, Any] = {"kind": _KIND, "handle": self.handle}
        if self.open_id:
            plain["request"] = self.open_id
        if isinstance(self.origin, Origin):
            plain["origin"] = asdict(self.origin)
        elif self.origin is not None:
            plain["import"] = {"size": self.origin.size, "digest": self.origin.digest.hex()}
        if self.projections:
            plain["projections"] = self.projections
        raw = json.dumps(plain, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
        if len(raw) > MAX_TAG:
            raise InvalidRequest(
                f"the names in the request need {len(raw)} bytes in the arena's file, {MAX_TAG} at most",
                field="request_id",
            )
        return raw

    @classmethod
    def decode(cls, raw: bytes) -> Self | None:
        """What was kept; None = the stream is none of a server's."""
        try:
            plain = json.loads(raw.decode("utf-8", "surrogatepass"))
            if plain["kind"] != _KIND:
                return None
            origin: Origin | Imported | None = None
            if "origin" in plain:
                origin = Origin(**plain["origin"])
            elif "import" in plain:
                kept = plain["import"]
                origin = Imported(kept["size"], bytes.fromhex(kept["digest"]))
            tag = cls(plain["handle"], plain.get("request", ""), origin, plain.get("projections", ""))
            check_id("stream", tag.handle)
        except (ValueError, LookupError, TypeError, AttributeError):
            return None
        return tag
