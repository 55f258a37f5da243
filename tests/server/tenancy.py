"""Servers with tenants, and clients that bring a token."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from google.rpc import error_details_pb2
from held import Clock
from rawclient import Client, Failure

from rondel.server.app import Server
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


def still(server: Server) -> Clock:
    """The clock that steps are counted by, stopped."""
    clock = Clock()
    for name in TOKENS:
        steps = server.security.tenants.get(name).steps
        steps._clock, steps._filled = clock, clock.now
    return clock


def limit(server: Server, lines: str) -> None:
    """Have a quota for alpha from now on."""
    set_quotas(server.config, alpha=lines)
    server.security.reload()


async def refusal(call: Any, quota: str) -> Failure:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return checked(Failure.of_call(caught.value), quota)


def checked(failure: Failure, quota: str) -> Failure:
    """A refusal because of a quota, whose name it has."""
    assert (failure.code, failure.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_EXCEEDED")
    assert failure.facts["quota"] == quota
    details = error_details_pb2.QuotaFailure()
    assert any(detail.Unpack(details) for detail in failure.status.details)
    assert details.violations[0].subject == "tenant"
    return failure


def hint(failure: Failure) -> float | None:
    """Seconds after which to come again."""
    info = error_details_pb2.RetryInfo()
    if not any(detail.Unpack(info) for detail in failure.status.details):
        return None
    return info.retry_delay.ToMilliseconds() / 1000
