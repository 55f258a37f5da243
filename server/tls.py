"""Certificates of the server, and whose client certificates it takes: read again when the files change."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from rondel.decoder.errors import InvalidSpec
from rondel.server.files import Watched


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files."""

    cert: str
    """The server's certificate, those of the authorities between it and the root behind it."""
    key: str
    """Its key, not encrypted."""
    client_ca: str | None = None
    """Authorities that client certificates must come from; None = clients need none."""


class Certificates:
    """What is shown to clients that connect. New files are for new connections; open ones go on.

    Raises:
        InvalidSpec: the files cannot be used.
    """

    def __init__(self, files: TlsFiles) -> None:
        self._files: Final = files
        extra = () if files.client_ca is None else (files.client_ca,)
        self.watched: Final = Watched("tls_cert", files.cert, files.key, *extra)
        self._config = self._shown = self.watched.read(self._read)

    def reload(self) -> None:
        """Reads the files again. Raises InvalidSpec, and goes on with the ones before."""
        self._config = self.watched.read(self._read)

    def credentials(self) -> grpc.ServerCredentials:
        """For a port to listen on."""
        return grpc.dynamic_ssl_server_credentials(
            self._config, self._fetch, require_client_authentication=self._files.client_ca is not None
        )

    def _fetch(self) -> Any:
        """For each new connection, on a thread of gRPC's: a ServerCertificateConfiguration, or, which its
        types do not know, None = as before."""
        config = self._config
        if config is self._shown:
            return None
        self._shown = config
        return config

    def _read(self) -> grpc.ServerCertificateConfiguration:
        files = self._files
        cert, key = Path(files.cert).read_bytes(), Path(files.key).read_bytes()
        roots = None if files.client_ca is None else Path(files.client_ca).read_bytes()
        # gRPC takes anything here, and fails later at every connection.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # Without a password it would ask for one at the terminal.
            context.load_cert_chain(files.cert, files.key, password="")
        except ssl.SSLError as error:
            raise InvalidSpec(
                f"tls_cert and tls_key must be a certificate and its unencrypted key, in PEM: {error}",
                field="tls_cert",
            ) from error
        try:
            if files.client_ca is not None:
                context.load_verify_locations(files.client_ca)
        except ssl.SSLError as error:
            raise InvalidSpec(
                f"tls_client_ca must be certificates in PEM: {error}", field="tls_client_ca"
            ) from error
        return grpc.ssl_server_certificate_configuration([(key, cert)], root_certificates=roots)
