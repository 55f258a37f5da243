"""Who is let in, and as whom: tokens that are good, gone, expired and new; and no token in any log."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from rawclient import Client, Failure, Tokens
from rawdecode import Decode, tokens_of
from tenancy import TOKENS, WithToken, bringing, tenants_text, with_tenants
from transports import Transport, listening

from rondel.decoder.errors import InvalidSpec
from rondel.server.app import Server
from rondel.server.config import ServerConfig
from rondel.server.security import CHECK_SECONDS
from rondel.v1 import attention_pb2 as pb

Connect = Callable[[str], Client]
OTHER = "another-token-that-nobody-has"


@pytest.fixture
def config(tmp_path: Path) -> ServerConfig:
    return with_tenants(ServerConfig(port=0, budget_bytes=16 << 20, drain_seconds=5.0), tmp_path)


@pytest.fixture
def file(config: ServerConfig) -> Path:
    return Path(str(config.tenants_file))


async def turned_away(client: Client) -> Failure:
    """Why a client is not let in, by every kind of method alike."""
    failures = []
    for call in (
        client.info(),
        client.attention.ExportStream(pb.ExportStreamRequest()).read(),
        client.attention.ImportStream(iter([pb.ImportStreamRequest()])),
        client.attention.Decode().read(),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        failures.append(Failure.of_call(caught.value))
    assert len({failure.status.SerializeToString() for failure in failures}) == 1
    return failures[0]


async def tenant_of(client: Client) -> str:
    return (await client.info()).tenant.name


@pytest.mark.every_transport
@pytest.mark.usefixtures("file")
async def test_only_tenants_are_let_in(client: Client, transport: Transport) -> None:
    for name, token in TOKENS.items():
        assert await tenant_of(bringing(client, token)) == name
    for tokens in ((OTHER,), (TOKENS["alpha"][:-1],), (TOKENS["alpha"].upper(),)):
        failed = await turned_away(bringing(client, *tokens))
        assert (failed.code, failed.reason) == (grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED")
        assert failed.message == "the bearer token is not one of this server's"
    failed = await turned_away(bringing(client, TOKENS["alpha"], TOKENS["beta"]))
    assert failed.message == "the authorization of a call must be one bearer token"
    failed = await turned_away(client)
    if transport.name == "mtls":  # with a certificate, which this server's file does not know
        assert (failed.code, failed.reason) == (grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED")
        assert "names none of this server's tenants" in failed.message
    else:
        assert failed.message == "a bearer token is needed, the call brings none"


async def test_health_is_for_everybody(client: Client, server: Server) -> None:
    stub = health_pb2_grpc.HealthStub(client.channel)
    reply = await stub.Check(health_pb2.HealthCheckRequest())
    assert reply.status == health_pb2.HealthCheckResponse.SERVING


# A certificate may still say who it is, and is looked at later.
@pytest.mark.only_transport("tcp", "tls", "unix")
async def test_nothing_is_read_of_a_call_that_is_turned_away(client: Client) -> None:
    """A caller that sends no message learns at once that it may not, and one that may is waited for."""
    path = "/rondel.v1.AttentionService/OpenStream"
    for channel in (client.channel, WithToken(client.channel, OTHER)):
        call = channel.stream_unary(path)(timeout=20)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
    call = WithToken(client.channel, TOKENS["alpha"]).stream_unary(path)(timeout=0.3)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED


async def test_tokens_rotate_while_calls_are_open(
    client: Client, server: Server, file: Path, tokens: Tokens
) -> None:
    old, new = TOKENS["alpha"], "a-new-token-of-alpha-0123456789"
    digest = hashlib.sha256(new.encode()).hexdigest()
    both = f'[tenants.alpha]\ntokens = [{{ token = "{old}" }}, {{ sha256 = "{digest}" }}]\n'
    async with Decode(bringing(client, old)) as decode:
        stream = await decode.open(1)
        file.write_text(both)
        server.security.reload()
        for token in (old, new):
            assert (await bringing(client, token).get(stream)).committed_length == 0
        file.write_text(both.replace(f'{{ token = "{old}" }}, ', ""))
        server.security.reload()
        assert (await turned_away(bringing(client, old))).reason == "UNAUTHENTICATED"
        assert (await turned_away(bringing(client, TOKENS["beta"]))).reason == "UNAUTHENTICATED"
        # The call was let in, and goes on.
        (result,) = await decode.ask(decode.op(1, append=tokens_of(0, *tokens.kv(2))))
        assert not result.status.code
        assert (await bringing(client, new).get(stream)).committed_length == 2


async def test_a_token_expires(client: Client, server: Server, file: Path) -> None:
    alpha = bringing(client, TOKENS["alpha"])
    assert await tenant_of(alpha) == "alpha"
    file.write_text(tenants_text().replace('" }', '", expires = 2001-01-01T00:00:00Z }'))
    server.security.reload()
    assert (await turned_away(alpha)).message == "the bearer token has expired"
    now = 978_307_199.0  # a second before
    server.security.identity._clock = lambda: now
    assert await tenant_of(alpha) == "alpha"
    now = 978_307_200.0
    assert (await turned_away(alpha)).message == "the bearer token has expired"


async def test_a_file_that_cannot_be_used_changes_nothing(
    client: Client, server: Server, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    alpha = bringing(client, TOKENS["alpha"])
    for spoil in (
        lambda: file.write_text(f'[tenants.alpha]\ntokens = [{{ token = "{OTHER}" }}'),
        lambda: file.write_text(f'[tenants.alpha]\nsecret = "{OTHER}"'),
        lambda: file.write_bytes(b"\xff\xfe" + OTHER.encode()),
        file.unlink,
        file.mkdir,
    ):
        caplog.clear()
        spoil()
        server.security.reload(all_files=False)
        server.security.reload(all_files=False)  # nothing new: not told again
        assert caplog.text.count("the tenants stay as they were") == 1
        assert OTHER not in caplog.text
        assert await tenant_of(alpha) == "alpha"
        assert (await turned_away(bringing(client, OTHER))).reason == "UNAUTHENTICATED"
    file.rmdir()
    file.write_text(tenants_text().replace(TOKENS["alpha"], OTHER))
    server.security.reload(all_files=False)
    assert await tenant_of(bringing(client, OTHER)) == "alpha"


async def test_a_changed_file_is_noticed(client: Client, server: Server, file: Path) -> None:
    assert CHECK_SECONDS < 5
    file.write_text(tenants_text().replace(TOKENS["beta"], OTHER))
    while True:  # the test's time limit is the failure
        try:
            assert await tenant_of(bringing(client, OTHER)) == "beta"
            break
        except grpc.aio.AioRpcError:
            await asyncio.sleep(0.05)


async def test_a_link_that_leads_elsewhere_is_noticed(
    client: Client, server: Server, file: Path, tmp_path: Path
) -> None:
    """As secrets are replaced in a cluster."""
    for number, token in enumerate((TOKENS["beta"], OTHER)):
        folder = tmp_path / f"v{number}"
        folder.mkdir()
        (folder / "tenants.toml").write_text(tenants_text().replace(TOKENS["beta"], token))
        os.symlink(folder, tmp_path / "link.new")
        os.replace(tmp_path / "link.new", tmp_path / "current")
        if number == 0:
            file.unlink()
            file.symlink_to(tmp_path / "current" / "tenants.toml")
        server.security.reload(all_files=False)
        assert await tenant_of(bringing(client, token)) == "beta"


async def test_a_server_does_not_start_with_a_file_that_cannot_be_used(config: ServerConfig) -> None:
    missing = replace(config, tenants_file=str(config.tenants_file) + ".not")
    with pytest.raises(InvalidSpec, match="No such file") as caught:
        await Server.start(listening(missing))
    assert caught.value.field == "tenants_file"
    Path(str(config.tenants_file)).write_text(f'[tenants.a]\ntokens = ["{OTHER}"]')
    with pytest.raises(InvalidSpec, match="a list of tables") as caught:
        await Server.start(listening(config))
    assert OTHER not in str(caught.value)


async def test_no_log_has_a_token(
    client: Client, server: Server, file: Path, caplog: pytest.LogCaptureFixture, tokens: Tokens
) -> None:
    with caplog.at_level(logging.DEBUG):
        alpha = bringing(client, TOKENS["alpha"])
        stream = await alpha.open()
        await alpha.append(stream, 0, *tokens.kv(1))
        with pytest.raises(grpc.aio.AioRpcError):
            await alpha.append(stream, 7, *tokens.kv(1))
        await turned_away(bringing(client, OTHER))
        await turned_away(bringing(client, TOKENS["alpha"], OTHER))
        server.security.reload()
        file.write_text(f'[tenants.alpha]\ntokens = [{{ token = "{OTHER}", sha256 = "{OTHER}" }}]')
        server.security.reload()
        await server.stop()
    shown = caplog.text + repr(vars(server)) + repr(vars(server.security.identity))
    for token in (*TOKENS.values(), OTHER):
        assert token not in shown
        assert token[:12] not in shown


async def test_without_a_file_nobody_is_asked(connect: Connect, config: ServerConfig) -> None:
    server = await Server.start(listening(replace(config, tenants_file=None)))
    client = connect(server.address)
    tenant = await tenant_of(client)
    assert await tenant_of(bringing(client, OTHER)) == tenant  # of no meaning here
    await server.stop()
