"""The file of tenants: who they are known by, and what they may have.

TOML, a table for each::

    [tenants.NAME]
    tokens = [{ sha256 = "64 hex digits" }, { token = "itself", expires = 2030-01-01T00:00:00Z }]
    certificates = ["name in a client certificate"]
    max_streams = 100
    max_bytes = 1_000_000_000
    steps_per_second = 50_000.0
    max_calls = 64

All keys may be left out. What is wrong is told without any value that could be a token's.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final

from rondel.decoder.errors import InvalidSpec
from rondel.server.quota import Quota
from rondel.server.tokens import LEAST_TOKEN, MOST_TOKEN, Token, digest_of

MAX_TENANT_BYTES: Final = 64
_WHOLE: Final = {"max_streams": 1 << 24, "max_bytes": 1 << 48, "max_calls": 1 << 20}
_MAX_RATE: Final = 1e15


@dataclass(frozen=True, slots=True)
class TenantsFile:
    """What the file says."""

    quotas: Mapping[str, Quota]
    """By tenant; all of them."""
    tokens: tuple[Token, ...]
    certificates: Mapping[str, str]
    """Tenant by a name in client certificates."""


def read_tenants(text: str) -> TenantsFile:
    """What a file says. Raises InvalidSpec."""
    try:
        plain = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _wrong(f"is no TOML: {error}") from error
    tables = plain.pop("tenants", {})
    if plain or not isinstance(tables, dict) or not tables:
        raise _wrong("must have a table [tenants.NAME] for each tenant, at least one, and nothing else")
    quotas: dict[str, Quota] = {}
    tokens: dict[bytes, Token] = {}
    certificates: dict[str, str] = {}
    for name, table in tables.items():
        check_tenant(name)
        if not isinstance(table, dict):
            raise _wrong(f"must have a table for tenant {name}")
        rest = dict(table)
        for entry in _listed(name, rest, "tokens", dict):
            token = _token(name, entry)
            if token.digest in tokens:
                raise _wrong(f"has a token of tenant {name} twice, or another's as well")
            tokens[token.digest] = token
        for subject in _listed(name, rest, "certificates", str):
            if not subject or certificates.setdefault(subject, name) != name:
                raise _wrong(f"has a certificate of tenant {name} that is another's as well, or empty")
        quotas[name] = _quota(name, rest)
    return TenantsFile(quotas, tuple(tokens.values()), certificates)


def check_tenant(name: str) -> None:
    """Whether a tenant can be called so. Raises InvalidSpec."""
    if not (name and name.isprintable() and len(name.encode()) <= MAX_TENANT_BYTES):
        raise _wrong(f"must give tenants printable names of 1 to {MAX_TENANT_BYTES} bytes")


def _token(tenant: str, entry: dict[str, Any]) -> Token:
    keys, expires = set(entry), entry.get("expires")
    if keys - {"expires"} not in ({"sha256"}, {"token"}):
        raise _wrong(f"must have sha256 or token, and perhaps expires, in each token of tenant {tenant}")
    if expires is not None and not (isinstance(expires, datetime) and expires.tzinfo is not None):
        raise _wrong(f"must have a date and time with an offset where a token of {tenant} expires")
    if "sha256" in entry:
        digest = _digest(entry["sha256"])
        if digest is None:
            raise _wrong(f"must have 64 hexadecimal digits as sha256 of a token of tenant {tenant}")
    else:
        token = entry["token"]
        plain = isinstance(token, str) and token.isascii() and token.isprintable() and " " not in token
        if not (plain and LEAST_TOKEN <= len(token) <= MOST_TOKEN):
            raise _wrong(
                f"must have {LEAST_TOKEN} to {MOST_TOKEN} ASCII characters without spaces in a token of "
                f"tenant {tenant}"
            )
        digest = digest_of(token)
    return Token(digest, tenant, None if expires is None else expires.timestamp())


def _digest(text: object) -> bytes | None:
    if not (isinstance(text, str) and re.fullmatch("[0-9a-fA-F]{64}", text)):
        return None
    return bytes.fromhex(text)


def _quota(tenant: str, table: dict[str, Any]) -> Quota:
    known = {field.name for field in fields(Quota)}
    if unknown := sorted(set(table) - known):
        raise _wrong(f"has unknown settings for tenant {tenant}, {', '.join(unknown)[:100]}")
    for name, value in table.items():
        whole = isinstance(value, int) and not isinstance(value, bool)
        if name in _WHOLE:
            if not (whole and 0 <= value <= _WHOLE[name]):
                raise _wrong(f"must have an integer from 0 to {_WHOLE[name]} as {name} of tenant {tenant}")
        elif not ((whole or (isinstance(value, float) and math.isfinite(value))) and 0 < value <= _MAX_RATE):
            raise _wrong(f"must have a number above 0, at most {_MAX_RATE:g}, as {name} of tenant {tenant}")
    return Quota(**table)


def _listed(tenant: str, table: dict[str, Any], name: str, kind: type) -> list[Any]:
    values = table.pop(name, [])
    if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
        raise _wrong(f"must have a list of {'tables' if kind is dict else 'texts'} as {name} of {tenant}")
    return values


def _wrong(what: str) -> InvalidSpec:
    return InvalidSpec(f"the file of tenants {what}", field="tenants_file")
