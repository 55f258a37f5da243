"""Bearer tokens: known by their SHA-256, compared so that the time taken tells nothing."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rondel.decoder.errors import Unauthenticated

LEAST_TOKEN: Final = 16
"""Fewer characters can be guessed."""
MOST_TOKEN: Final = 512

_SCHEME: Final = "bearer"


@dataclass(frozen=True, slots=True)
class Token:
    """What is known of a token: not itself, so that nothing can show it."""

    digest: bytes
    """SHA-256 of its UTF-8."""
    tenant: str
    expires: float | None = None
    """Unix time from which on it is no longer good; None = never."""


def digest_of(token: str) -> bytes:
    """SHA-256 of a token. Fast is right: tokens are random, not words that could be tried."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


class TokenTable:
    """Tokens by themselves.

    They are found by a MAC with a key of this process: how long a look-up takes depends on bits that whoever
    guesses tokens can neither choose nor know. What was found is compared in constant time.
    """

    def __init__(self, tokens: Iterable[Token] = ()) -> None:
        self._key = secrets.token_bytes(32)
        self._tokens = {self._name(token.digest): token for token in tokens}

    def __len__(self) -> int:
        return len(self._tokens)

    def tenant_of(self, token: str, now: float) -> str:
        """Whose token it is. Raises Unauthenticated."""
        digest = digest_of(token)
        found = self._tokens.get(self._name(digest))
        if found is None or not hmac.compare_digest(found.digest, digest):
            raise Unauthenticated("the bearer token is not one of this server's")
        if found.expires is not None and now >= found.expires:
            raise Unauthenticated("the bearer token has expired")
        return found.tenant

    def _name(self, digest: bytes) -> bytes:
        return hashlib.blake2b(digest, key=self._key, digest_size=32).digest()


def bearer_token(metadata: Iterable[tuple[str, str | bytes]] | None) -> str | None:
    """The token that a call brings; None = it brings none. Raises Unauthenticated where that is not clear."""
    values = [value for key, value in metadata or () if key == "authorization"]
    if not values:
        return None
    scheme, _, token = values[0].partition(" ") if isinstance(values[0], str) else ("", "", "")
    token = token.strip(" ")
    if len(values) > 1 or scheme.lower() != _SCHEME or not token:
        raise Unauthenticated("the authorization of a call must be one bearer token")
    return token
