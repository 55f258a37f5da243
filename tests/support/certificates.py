"""Certificates made when they are needed: an authority, and what it signs."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

_LOCAL = (x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1")))


@dataclass(frozen=True)
class Signed:
    """A certificate and its key, as PEM."""

    cert: bytes
    key: bytes

    def write(self, folder: Path, name: str) -> tuple[str, str]:
        """Paths of two files with them."""
        paths = folder / f"{name}.pem", folder / f"{name}.key"
        for path, data in zip(paths, (self.cert, self.key), strict=True):
            path.write_bytes(data)
        return str(paths[0]), str(paths[1])


class Authority:
    """Signs certificates for servers on this machine, and for clients."""

    def __init__(self, name: str = "test authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _subject(name)
        builder = _builder(self._name, self._name, self._key, timedelta(days=1))
        authority = x509.BasicConstraints(ca=True, path_length=None)
        cert = builder.add_extension(authority, critical=True).sign(self._key, SHA256())
        self.pem = cert.public_bytes(Encoding.PEM)

    def write(self, folder: Path, name: str = "ca") -> str:
        """Path of a file with its own certificate."""
        path = folder / f"{name}.pem"
        path.write_bytes(self.pem)
        return str(path)

    def server(self) -> Signed:
        """For localhost and 127.0.0.1."""
        return self._signed("server", _LOCAL)

    def client(self, name: str | None, *names: x509.GeneralName, expires: timedelta | None = None) -> Signed:
        """With a common name, or none, and alternative names."""
        return self._signed(name, names, expires or timedelta(days=1))

    def _signed(
        self, name: str | None, names: tuple[x509.GeneralName, ...], expires: timedelta = timedelta(days=1)
    ) -> Signed:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_subject(name), self._name, key, expires)
        if names:
            # Critical where it is the only name, as the standard has it.
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=name is None)
        cert = builder.sign(self._key, SHA256())
        return Signed(
            cert.public_bytes(Encoding.PEM),
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        )


def _subject(name: str | None) -> x509.Name:
    return x509.Name([] if name is None else [x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, expires: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return x509.CertificateBuilder(
        issuer, subject, key.public_key(), x509.random_serial_number(), now - timedelta(days=2), now + expires
    )
