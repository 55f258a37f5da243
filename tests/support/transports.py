"""The ways to a server: TCP, TLS, TLS with certificates on both sides, a unix socket.

The suites of server and clients take theirs from here alone, so every test of theirs runs on each of them:
``pytest --transport tls`` for all of a run, the marker ``every_transport`` for some of the ordinary run.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
from certificates import Authority

from rondel.client.access import AccessOptions
from rondel.server.config import ServerConfig

NAMES: Final = ("tcp", "tls", "mtls", "unix")


_in_use: list[Transport] = []


def to(address: str) -> AccessOptions:
    """What a client of ours needs to reach an address, on the transport of the test that is running."""
    return AccessOptions() if address.startswith("unix:") else _in_use[-1].access


def tenant() -> str:
    """Who a server there takes us for."""
    return _in_use[-1].tenant


def listening(config: ServerConfig) -> ServerConfig:
    """A test's settings for a server that listens on that transport."""
    return _in_use[-1].applied(config)


def flags() -> list[str]:
    """The same for ``rondel serve --port=0``."""
    return _in_use[-1].flags()


def environment() -> dict[str, str]:
    """What other processes need to reach such a server."""
    return _in_use[-1].environment()


def channel_by_environment(address: str) -> grpc.aio.Channel:
    """:func:`channel_to` in another process."""
    ca, key, cert = (os.environ.get(f"RONDEL_{name}") for name in ("CA", "KEY", "CERT"))
    if ca is None or address.startswith("unix:"):
        return grpc.aio.insecure_channel(address)
    credentials = (None if path is None else Path(path).read_bytes() for path in (ca, key, cert))
    return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(*credentials))


def channel_to(address: str, options: Any = None) -> grpc.aio.Channel:
    """A channel of grpc.aio."""
    return _in_use[-1].channel(address, options)


def waiting_channel_to(address: str) -> grpc.Channel:
    """A channel of the other kind."""
    return _in_use[-1].waiting_channel(address)


class Transport:
    """One of NAMES, with certificates in ``folder`` where it needs some. Sockets are made there as well."""

    def __init__(self, name: str, folder: Path) -> None:
        _in_use[:] = [self]
        self.name = name
        self._folder = folder
        self._numbers = itertools.count()
        self.access = AccessOptions()
        """What clients of ours need."""
        if name in ("tls", "mtls"):
            authority = Authority()
            self._ca = authority.write(folder)
            self._cert, self._key = authority.server().write(folder, "server")
            self.access["ca"] = self._ca
            if name == "mtls":
                self.access["cert"], self.access["key"] = authority.client("tests").write(folder, "client")

    @property
    def tenant(self) -> str:
        """Who the server takes us for."""
        return "tests" if self.name == "mtls" else ""

    def options(self) -> dict[str, Any]:
        """Settings of a new server, besides those of the test."""
        match self.name:
            case "unix":
                return {"port": None, "unix_path": str(self._folder / f"{next(self._numbers)}.sock")}
            case "tls":
                return {"port": 0, "tls_cert": self._cert, "tls_key": self._key}
            case "mtls":
                return {
                    "port": 0,
                    "tls_cert": self._cert,
                    "tls_key": self._key,
                    "tls_client_ca": self._ca,
                }
            case _:
                return {"port": 0}

    def flags(self) -> list[str]:
        """The same for ``rondel serve --port=0``."""
        options = self.options()
        flags = [] if options.pop("port") == 0 else ["--no-tcp"]
        return flags + [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]

    def environment(self) -> dict[str, str]:
        """What commands of ours need."""
        return {f"RONDEL_{name.upper()}": str(value) for name, value in self.access.items()}

    def applied(self, config: ServerConfig) -> ServerConfig:
        """A test's settings for a server that listens here; besides, where it has a unix socket already."""
        options = self.options()
        if config.unix_path is not None:
            del options["port"]
            options.pop("unix_path", None)
        return replace(config, **options)

    def channel(self, address: str, options: Any = None) -> grpc.aio.Channel:
        """A channel of grpc.aio."""
        credentials = self._credentials(address)
        if credentials is None:
            return grpc.aio.insecure_channel(address, options=options)
        return grpc.aio.secure_channel(address, credentials, options=options)

    def waiting_channel(self, address: str) -> grpc.Channel:
        """A channel of the other kind."""
        credentials = self._credentials(address)
        return (
            grpc.insecure_channel(address)
            if credentials is None
            else grpc.secure_channel(address, credentials)
        )

    def _credentials(self, address: str) -> grpc.ChannelCredentials | None:
        if self.name not in ("tls", "mtls") or address.startswith("unix:"):
            return None
        ca, key, cert = (
            Path(str(self.access[name])).read_bytes() if name in self.access else None  # type: ignore[literal-required]
            for name in ("ca", "key", "cert")
        )
        return grpc.ssl_channel_credentials(ca, key, cert)
