"""Servers with tenants, and clients that bring a token."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import grpc
from rawclient import Client

from rondel.server.config import ServerConfig

TOKENS: Mapping[str, str] = {name: f"{name}-token-0123456789" for name in ("alpha", "beta")}


class WithToken:
    """A channel whose methods send a token with every call."""

    def __init__(self, channel: Any, *tokens: str) -> None:
        self._channel = channel
        self._metadata = tuple(("authorization", f"Bearer {token}") for token in tokens)

    def __getattr__(self, name: str) -> Any:
        made = getattr(self._channel, name)
        if not name.startswith(("unary_", "stream_")):
            return made

        def method(*args: Any, **options: Any) -> Callable[..., Any]:
            return partial(made(*args, **options), metadata=self._metadata)

        return method


def bringing(client: Client, *tokens: str) -> Client:
    """A client on the same connection, with a token in every call."""
    return Client(cast(grpc.aio.Channel, WithToken(client.channel, *tokens)))


def tenants_text(**quotas: str) -> str:
    """A file with TOKENS, and lines with quotas for some of the tenants."""
    return "\n".join(
        f'[tenants.{name}]\ntokens = [{{ token = "{token}" }}]\n{quotas.get(name, "")}'
        for name, token in TOKENS.items()
    )


def with_tenants(config: ServerConfig, folder: Path, **quotas: str) -> ServerConfig:
    """A server's settings, with such a file."""
    path = folder / "tenants.toml"
    path.write_text(tenants_text(**quotas))
    return replace(config, tenants_file=str(path))


def set_quotas(config: ServerConfig, **quotas: str) -> None:
    """Write the file anew."""
    Path(str(config.tenants_file)).write_text(tenants_text(**quotas))
