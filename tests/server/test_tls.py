"""TLS: who is trusted on either side, certificates as tenants, and files that are replaced while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from certificates import Authority, Signed
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from rawclient import Client, Failure, Tokens
from rawdecode import Decode, tokens_of
from tenancy import TOKENS, bringing, tenants_text

from rondel.decoder.errors import InvalidSpec
from rondel.server.app import Server
from rondel.server.config import ServerConfig

Start = Callable[..., Any]


class House:
    """An authority, a server's files, and clients with certificates."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority()
        self.ca = self.authority.write(folder)
        self.cert, self.key = self.authority.server().write(folder, "server")

    def config(self, **options: Any) -> ServerConfig:
        files = {"tls_cert": self.cert, "tls_key": self.key}
        return ServerConfig(port=0, budget_bytes=16 << 20, **{**files, **options})

    @asynccontextmanager
    async def client(
        self, address: str, own: Signed | None = None, authority: Authority | None = None
    ) -> AsyncIterator[Client]:
        pair = () if own is None else (own.key, own.cert)
        credentials = grpc.ssl_channel_credentials((authority or self.authority).pem, *pair)
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.secure_channel(address, credentials, options=options) as channel:
            yield Client(channel)


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


@asynccontextmanager
async def serving(config: ServerConfig) -> AsyncIterator[Server]:
    server = await Server.start(config)
    try:
        yield server
    finally:
        await server.stop(drain_seconds=0.5)


async def tenant_of(client: Client) -> str:
    return (await client.info()).tenant.name


async def unavailable(client: Client) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.info()
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    return str(caught.value.details())


async def failure(client: Client) -> Failure:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.info()
    return Failure.of_call(caught.value)


async def test_a_client_checks_who_the_server_is(house: House) -> None:
    async with serving(house.config()) as server:
        async with house.client(server.address) as client:
            assert await tenant_of(client) == ""
        async with house.client(server.address, authority=Authority()) as client:
            assert "handshake failed" in await unavailable(client)
        async with grpc.aio.insecure_channel(server.address) as channel:
            await unavailable(Client(channel))


NAMES = (
    x509.UniformResourceIdentifier("spiffe://example/alpha"),
    x509.DNSName("alpha.example"),
    x509.RFC822Name("alpha@example.org"),
)


async def test_a_client_s_certificate_is_its_tenant(house: House) -> None:
    signed = house.authority.client
    long = "n" * 64
    async with serving(house.config(tls_client_ca=house.ca)) as server:
        for own, tenant in (
            (signed("alpha"), "alpha"),
            (signed("alpha", *NAMES), "alpha"),
            (signed(None, *NAMES), "spiffe://example/alpha"),
            (signed(None, NAMES[1]), "alpha.example"),
            (signed("Ünit 7"), "Ünit 7"),
            (signed(long), long),
        ):
            async with house.client(server.address, own) as client:
                assert await tenant_of(client) == tenant
                assert await tenant_of(bringing(client, "of-no-meaning-here")) == tenant
        for own in (signed(None), signed(None, x509.DNSName("n" * 65)), signed("a\nb"), signed("alpha\0b")):
            async with house.client(server.address, own) as client:
                failed = await failure(client)
                assert (failed.code.name, failed.reason) == ("PERMISSION_DENIED", "PERMISSION_DENIED")
                assert "no name for a tenant" in failed.message


async def test_without_a_good_certificate_nobody_comes_in(house: House) -> None:
    stranger, expired = Authority().client("alpha"), house.authority.client("a", expires=timedelta(days=-1))
    async with serving(house.config(tls_client_ca=house.ca)) as server:
        for own in (None, stranger, expired):
            async with house.client(server.address, own) as client:
                await unavailable(client)


async def test_the_file_says_whose_a_certificate_is_and_a_token_counts_more(
    house: House, tmp_path: Path
) -> None:
    file = tmp_path / "tenants.toml"
    certificates = 'certificates = ["alpha.example", "first"]'
    file.write_text(tenants_text(alpha=certificates, beta='certificates = ["spiffe://example/beta"]'))
    signed, beta = house.authority.client, x509.UniformResourceIdentifier("spiffe://example/beta")
    socket = str(tmp_path / "s")
    config = house.config(tls_client_ca=house.ca, tenants_file=str(file), unix_path=socket)
    async with serving(config) as server:
        for own, tenant in (
            (signed("first"), "alpha"),
            (signed("unknown", *NAMES), "alpha"),
            (signed("first", *NAMES), "alpha"),
            (signed(None, beta), "beta"),
        ):
            async with house.client(server.address, own) as client:
                assert await tenant_of(client) == tenant
                for name, token in TOKENS.items():
                    assert await tenant_of(bringing(client, token)) == name
                assert (await failure(bringing(client, "no-token-of-anybody"))).reason == "UNAUTHENTICATED"
        for own, words in ((signed("other"), "names none of"), (signed("first", beta), "names 2 of")):
            async with house.client(server.address, own) as client:
                failed = await failure(client)
                assert (failed.reason, words in failed.message) == ("PERMISSION_DENIED", True)
                assert await tenant_of(bringing(client, TOKENS["beta"])) == "beta"
        async with grpc.aio.insecure_channel(f"unix:{socket}") as channel:
            failed = await failure(Client(channel))
            assert failed.message == (
                "a bearer token or a client certificate is needed, the call brings neither"
            )
            assert await tenant_of(bringing(Client(channel), TOKENS["alpha"])) == "alpha"


async def test_who_comes_by_the_socket_of_the_servers_owner_has_no_certificate(
    house: House, tmp_path: Path
) -> None:
    socket = str(tmp_path / "s")
    async with (
        serving(house.config(tls_client_ca=house.ca, unix_path=socket)),
        grpc.aio.insecure_channel(f"unix:{socket}") as channel,
    ):
        assert await tenant_of(Client(channel)) == ""


async def test_certificates_are_replaced_while_calls_are_open(house: House, tokens: Tokens) -> None:
    """Both sides come from another authority; who is there stays, who comes must trust the new one."""
    other = Authority("another")
    old, new = house.authority.client("alpha"), other.client("alpha")
    async with (
        serving(house.config(tls_client_ca=house.ca)) as server,
        house.client(server.address, old) as before,
        Decode(before) as decode,
    ):
        stream = await decode.open(1)
        other.server().write(house.folder, "server")
        other.write(house.folder)
        server.security.reload(all_files=False)
        async with house.client(server.address, new, other) as client:
            assert await tenant_of(client) == "alpha"
            (result,) = await decode.ask(decode.op(1, append=tokens_of(0, *tokens.kv(2))))
            assert not result.status.code
            assert (await client.get(stream)).committed_length == 2
        for own, authority in ((old, house.authority), (new, house.authority), (old, other)):
            async with house.client(server.address, own, authority) as client:
                await unavailable(client)
        assert await tenant_of(before) == "alpha"  # on the connection that it has


async def test_a_changed_certificate_is_noticed(house: House) -> None:
    other = Authority("another")
    async with serving(house.config()) as server:
        other.server().write(house.folder, "server")
        while True:  # the test's time limit is the failure
            async with house.client(server.address, authority=other) as client:
                try:
                    assert await tenant_of(client) == ""
                    break
                except grpc.aio.AioRpcError:
                    await asyncio.sleep(0.05)


async def test_files_that_do_not_fit_change_nothing(house: House, caplog: pytest.LogCaptureFixture) -> None:
    other = Authority("another")
    pair = other.server()
    async with serving(house.config(tls_client_ca=house.ca)) as server:
        for name, data in (
            ("server.pem", pair.cert),  # the key is still the old one
            ("server.pem", b"nothing"),
            ("ca.pem", b"nothing"),
            ("ca.pem", b""),
        ):
            path = house.folder / name
            good = path.read_bytes()
            path.write_bytes(data)
            caplog.clear()
            for _ in range(2):
                server.security.reload(all_files=False)
            assert caplog.text.count("the certificates stay as they were") == 1
            async with house.client(server.address, house.authority.client("a")) as client:
                assert await tenant_of(client) == "a"
            path.write_bytes(good)
        pair.write(house.folder, "server")
        server.security.reload(all_files=False)
        # The client's authority is still the same.
        async with house.client(server.address, house.authority.client("a"), other) as client:
            assert await tenant_of(client) == "a"


def encrypted(key: bytes) -> bytes:
    plain = load_pem_private_key(key, None)
    secret = BestAvailableEncryption(b"secret")
    return plain.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, secret)


@pytest.mark.parametrize(
    ("case", "field", "words"),
    [
        ("no file", "tls_cert", "No such file"),
        ("another's key", "tls_cert", "must be a certificate and its unencrypted key"),
        ("locked key", "tls_cert", "must be a certificate and its unencrypted key"),
        ("no certificate", "tls_cert", "must be a certificate and its unencrypted key"),
        ("no authority", "tls_client_ca", "must be certificates in PEM"),
    ],
)
async def test_files_that_cannot_be_used(house: House, case: str, field: str, words: str) -> None:
    options = {"tls_client_ca": house.ca}
    match case:
        case "no file":
            Path(house.key).unlink()
        case "another's key":
            Path(house.key).write_bytes(Authority().server().key)
        case "locked key":
            Path(house.key).write_bytes(encrypted(Path(house.key).read_bytes()))
        case "no certificate":
            Path(house.cert).write_text("-----BEGIN CERTIFICATE-----\n")
        case "no authority":
            Path(house.ca).write_text("nothing")
    with pytest.raises(InvalidSpec) as caught:
        await Server.start(house.config(**options))
    assert caught.value.field == field
    assert words in caught.value.message
