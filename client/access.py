"""How a client reaches a server that asks: TLS, a certificate of its own, a bearer token."""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypedDict

import grpc

from rondel.decoder.errors import InvalidSpec

Token = str | Callable[[], str]
PathLike = str | os.PathLike[str]
Metadata = tuple[tuple[str, str], ...]

_MAX_TOKEN: Final = 8192
"""What a server's bound on metadata lets through in any case."""


class AccessOptions(TypedDict, total=False):
    """What a client may be made with, besides an address. All of it is left out by default."""

    tls: bool
    """Encrypt, and check that the server is who its certificate says. Implied by the next three."""
    ca: PathLike | None
    """PEM file of the authorities that the server's certificate may come from; default: the well-known
    ones."""
    cert: PathLike | None
    """PEM file of the client's own certificate, for servers that want one. Needs ``key``."""
    key: PathLike | None
    """PEM file of its key, without a password."""
    token: Token | None
    """Bearer token, or a function that gives the one in force, asked at every call. Sent only where nobody on
    the way can read it: with TLS, over a unix socket, on this machine."""


@dataclass(frozen=True, slots=True)
class Access:
    """Options that were checked, and files that were read. Shows nothing of them."""

    _token: Token | None = field(default=None, repr=False)
    _credentials: grpc.ChannelCredentials | None = field(default=None, repr=False)

    @classmethod
    def checked(
        cls,
        target: str,
        *,
        tls: bool | None = None,
        ca: PathLike | None = None,
        cert: PathLike | None = None,
        key: PathLike | None = None,
        token: Token | None = None,
    ) -> Access:
        """For one server. Raises InvalidSpec."""
        files = {"ca": ca, "cert": cert, "key": key}
        given = [name for name, path in files.items() if path is not None]
        if tls is not None and not isinstance(tls, bool):
            raise InvalidSpec(f"tls must be True or False, got {type(tls).__name__}", field="tls")
        if tls is False and given:
            raise InvalidSpec(f"{given[0]} needs tls, got tls=False", field=given[0])
        if (cert is None) != (key is None):
            field = "cert" if cert is None else "key"
            raise InvalidSpec("cert and key need each other, got one of them", field=field)
        encrypted = bool(tls or given)
        if encrypted and target.startswith("unix:"):
            raise InvalidSpec(f"a unix socket has no TLS, got {given[0] if given else 'tls'}", field="tls")
        if token is not None:
            if not callable(token):
                _check_token(token)
            if not (encrypted or target.startswith("unix:") or _is_loopback(target)):
                raise InvalidSpec(
                    "a token is sent only with TLS, over a unix socket or to this machine: elsewhere anybody "
                    "could read it; use tls or ca",
                    field="token",
                )
        return cls(token, _credentials(ca, cert, key) if encrypted else None)

    def channel(self, package: Any, target: str, options: Any) -> Any:
        """A channel of ``grpc`` or ``grpc.aio``."""
        if self._credentials is None:
            return package.insecure_channel(target, options=options)
        return package.secure_channel(target, self._credentials, options=options)

    def bound(self, send: Callable[..., Any]) -> Callable[..., Any]:
        """A method of a channel that sends the token with every call."""
        if self._token is None:
            return send
        return lambda *args, **options: send(*args, metadata=self._metadata(), **options)

    def _metadata(self) -> Metadata:
        token = self._token
        if callable(token):
            token = token()
            _check_token(token)
        return (("authorization", f"Bearer {token}"),)


def _check_token(token: object) -> None:
    """Whether a header can hold it. The error does not show it."""
    plain = isinstance(token, str) and token.isascii() and token.isprintable() and " " not in token
    if not (plain and isinstance(token, str) and 1 <= len(token) <= _MAX_TOKEN):
        raise InvalidSpec(
            f"token must be a text of 1 to {_MAX_TOKEN} printable ASCII characters without spaces, "
            f"got another {type(token).__name__}",
            field="token",
        )


def _credentials(ca: PathLike | None, cert: PathLike | None, key: PathLike | None) -> grpc.ChannelCredentials:
    # gRPC takes anything here, and every call fails later without a word of why.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    roots, chain, secret = (None if path is None else _read(path) for path in (ca, cert, key))
    try:
        if ca is not None:
            context.load_verify_locations(ca)
    except ssl.SSLError as error:
        raise InvalidSpec(f"ca must be certificates in PEM, got {str(ca)!r}", field="ca") from error
    try:
        if cert is not None:
            # Without a password it would ask for one at the terminal.
            context.load_cert_chain(cert, key, password="")
    except ssl.SSLError as error:
        raise InvalidSpec(
            f"cert and key must be a certificate and its key without a password, in PEM: {error}",
            field="cert",
        ) from error
    return grpc.ssl_channel_credentials(roots, secret, chain)


def _read(path: PathLike) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidSpec(f"cannot read {path}: {error.strerror}", field="tls") from error


def _is_loopback(target: str) -> bool:
    host = target.rpartition(":")[0].rpartition("/")[2]
    host = host.removeprefix("dns:").removeprefix("ipv4:").removeprefix("ipv6:").strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
