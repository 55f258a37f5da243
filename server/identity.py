"""Whose call it is: by its bearer token, or by the certificate of its connection."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from rondel.decoder.errors import InvalidSpec, PermissionDenied, Unauthenticated
from rondel.server.tenants import ONLY_TENANT
from rondel.server.tenants_file import TenantsFile, check_tenant
from rondel.server.tokens import TokenTable, bearer_token

Peer = Mapping[str, Iterable[bytes]]
"""What is known of the other end of a connection: ``auth_context()`` of a call."""


class Identity:
    """Names the tenant of a call.

    With a file of tenants a caller must be one of them: by a token, or else, where clients have certificates
    (``mutual``), by a name in its certificate. Without the file a client's certificate names the tenant; and
    where there are none, everybody is the only tenant. ``clock`` gives the Unix time.
    """

    def __init__(self, *, mutual: bool, clock: Callable[[], float] = time.time) -> None:
        self._mutual = mutual
        self._clock = clock
        self._tokens: TokenTable | None = None
        self._certificates: Mapping[str, str] = {}

    @property
    def asks(self) -> bool:
        """Whether anybody is asked who they are."""
        return self._mutual or self._tokens is not None

    def apply(self, file: TenantsFile) -> None:
        """Know these tenants from now on, for calls that come. Those at work go on."""
        self._tokens, self._certificates = TokenTable(file.tokens), file.certificates

    def tenant_of(self, metadata: Iterable[tuple[str, str | bytes]] | None, peer: Callable[[], Peer]) -> str:
        """The tenant of a call. Raises Unauthenticated, PermissionDenied."""
        if not self.asks:
            return ONLY_TENANT
        claimed = self.claimed(metadata)
        return self.of_peer(peer()) if claimed is None else claimed

    def claimed(self, metadata: Iterable[tuple[str, str | bytes]] | None) -> str | None:
        """The tenant by its token, before anything else of the call is read; None = :meth:`of_peer` says.

        Raises:
            Unauthenticated: the token is not good, or there must be one and is none.
        """
        if self._tokens is None:
            return None
        token = bearer_token(metadata)
        if token is not None:
            return self._tokens.tenant_of(token, self._clock())
        if not self._mutual:
            raise Unauthenticated("a bearer token is needed, the call brings none")
        return None

    def of_peer(self, peer: Peer) -> str:
        """The tenant by the connection's certificate.

        Raises:
            Unauthenticated: there is none, as on a unix socket, and tenants are asked for.
            PermissionDenied: it names no tenant, or several.
        """
        # With TLS there is a certificate, or there was no connection; it may be without a name all the same.
        certified = b"ssl" in peer.get("transport_security_type", ())
        names = _names(peer) if certified else []
        if self._tokens is None:
            return _tenant_named(names) if certified else ONLY_TENANT
        if not certified:
            raise Unauthenticated("a bearer token or a client certificate is needed, the call brings neither")
        found = {self._certificates[name] for name in names if name in self._certificates}
        if len(found) != 1:
            raise PermissionDenied(
                f"the client certificate names {len(found) or 'none'} of this server's tenants, expected one"
            )
        return found.pop()


def _names(peer: Peer) -> list[str]:
    """The common name, then the alternative names, of a certificate that was verified."""
    if any(rb"\00" in subject for subject in peer.get("x509_subject", ())):
        return []  # gRPC cuts the common name there, so it could look like another's
    keys = ("x509_common_name", "x509_subject_alternative_name")
    return [name.decode("utf-8", "replace") for key in keys for name in peer.get(key, ()) if name]


def _tenant_named(names: list[str]) -> str:
    name = names[0] if names else ""
    try:
        check_tenant(name)
    except InvalidSpec:
        raise PermissionDenied(
            "the client certificate's name is no name for a tenant: it is empty, unprintable or too long"
        ) from None
    return name
