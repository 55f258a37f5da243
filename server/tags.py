"""What the server writes to a stream in its arena's file, to know it again after a restart.

JSON: the handle, the request that made the stream, what it was made from, the name of its projections, and
whose it is (a file of before there were tenants does not say: it is the only tenant's, whose name is empty).
A key that is not known here belongs to a later version; it is ignored. So a tag with a tenant is of another
kind: software that has no tenants would serve the stream to everybody.
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
_KIND_WITH_TENANT: Final = "rondel-server-2"


@dataclass(frozen=True, slots=True)
class Tag:
    """What is kept of an entry."""

    handle: str
    open_id: str = ""
    origin: Origin | Imported | None = None
    projections: str = ""
    tenant: str = ""

    def encode(self) -> bytes:
        """At most MAX_TAG bytes. Raises InvalidRequest above (names of many unprintable characters)."""
        kind = _KIND_WITH_TENANT if self.tenant else _KIND
        plain: dict[str, Any] = {"kind": kind, "handle": self.handle}
        if self.open_id:
            plain["request"] = self.open_id
        if isinstance(self.origin, Origin):
            plain["origin"] = asdict(self.origin)
        elif self.origin is not None:
            plain["import"] = {"size": self.origin.size, "digest": self.origin.digest.hex()}
        if self.projections:
            plain["projections"] = self.projections
        if self.tenant:
            plain["tenant"] = self.tenant
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
            if plain["kind"] != (_KIND_WITH_TENANT if plain.get("tenant") else _KIND):
                return None
            origin: Origin | Imported | None = None
            if "origin" in plain:
                origin = Origin(**plain["origin"])
            elif "import" in plain:
                kept = plain["import"]
                origin = Imported(kept["size"], bytes.fromhex(kept["digest"]))
            texts = (plain.get(name, "") for name in ("projections", "tenant"))
            tag = cls(plain["handle"], plain.get("request", ""), origin, *texts)
            for name, value in (("stream", tag.handle), ("tenant", tag.tenant)):
                check_id(name, value)
        except (ValueError, LookupError, TypeError, AttributeError):
            return None
        return tag
