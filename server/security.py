"""What decides who may use a server, and what changes of it while the server runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rondel.decoder.errors import InvalidSpec
from rondel.server.config import ServerConfig
from rondel.server.files import Watched
from rondel.server.identity import Identity
from rondel.server.tenants import Tenants
from rondel.server.tenants_file import read_tenants
from rondel.server.tls import Certificates, TlsFiles

log = logging.getLogger("rondel.server")

CHECK_SECONDS: Final = 2.0
"""How often files are looked at for changes."""


class Security:
    """Certificates, tenants and their quotas. For the event loop.

    Raises:
        InvalidSpec: a file cannot be used.
    """

    def __init__(
        self,
        config: ServerConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.certificates: Certificates | None = None
        """None = no TLS."""
        if config.tls_cert is not None and config.tls_key is not None:
            files = TlsFiles(config.tls_cert, config.tls_key, config.tls_client_ca)
            self.certificates = Certificates(files)
        self.tenants: Final = Tenants(clock)
        self.identity: Final = Identity(mutual=config.tls_client_ca is not None, clock=wall_clock)
        self._file = None if config.tenants_file is None else Watched("tenants_file", config.tenants_file)
        if self._file is not None:
            self._read_tenants(self._file)

    def reload(self, *, all_files: bool = True) -> None:
        """Reads the files again, or those that have changed. One that cannot be used is told in the log, and
        what was read before stays in force. Calls and connections that are open go on."""
        certificates, file = self.certificates, self._file
        if certificates is not None and (all_files or certificates.watched.changed):
            self._try("certificates", certificates.reload)
        if file is not None and (all_files or file.changed):
            self._try("tenants", lambda: self._read_tenants(file))

    def _read_tenants(self, file: Watched) -> None:
        (path,) = file.paths
        found = file.read(lambda: read_tenants(Path(path).read_text(encoding="utf-8")))
        self.tenants.apply(found.quotas)
        self.identity.apply(found)
        log.info("%d tenants, %d tokens", len(found.quotas), len(found.tokens))

    def _try(self, what: str, read: Callable[[], None]) -> None:
        try:
            read()
        except InvalidSpec as error:
            log.error("the %s stay as they were: %s", what, error.message)
        else:
            log.info("the %s were read again", what)
