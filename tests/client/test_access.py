"""Clients of servers that ask: tokens and certificates, from options and the environment, and never shown."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from certificates import Authority
from typer.testing import CliRunner, Result

from rondel.client import AttentionClient, GenerationClient
from rondel.client.access import Access
from rondel.client.cli.app import app
from rondel.client.cli.launch import server
from rondel.client.load.job import Job
from rondel.client.load.plan import Plan
from rondel.client.load.schedule import Constant
from rondel.decoder.errors import (
    DeadlineExpired,
    InvalidSpec,
    PermissionDenied,
    QuotaExceeded,
    ServerUnavailable,
    StreamNotFound,
    Unauthenticated,
)
from rondel.decoder.spec import StreamSpec

# They have servers of their own.
pytestmark = pytest.mark.only_transport("tcp")

SPEC = StreamSpec.uniform(layers=2, query_heads=2, kv_heads=2, head_dim=32, max_length=500)
ALPHA, BETA, WRONG = "alpha-token-0123456789", "beta-token-0123456789", "wrong-token-0123456789"
TENANTS = f"""
[tenants.alpha]
tokens = [{{ token = "{ALPHA}" }}]
max_streams = 5
steps_per_second = 1e6
[tenants.beta]
tokens = [{{ token = "{BETA}" }}]
certificates = ["beta.example"]
"""


class House:
    """A server with TLS and tenants, as a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority()
        self.ca = self.authority.write(folder)
        self.cert, self.key = self.authority.server().write(folder, "server")
        (folder / "tenants.toml").write_text(TENANTS)
        self.unix = f"unix:{folder / 's'}"
        self.address = ""

    def flags(self) -> list[str]:
        files = {
            "tls-cert": self.cert,
            "tls-key": self.key,
            "tls-client-ca": self.ca,
            "tenants-file": self.folder / "tenants.toml",
            "unix-path": self.folder / "s",
            "budget-bytes": 64 << 20,
        }
        return [f"--{name}={value}" for name, value in files.items()]

    def certificate(self, name: str) -> dict[str, str]:
        """Options of a client with a certificate."""
        cert, key = self.authority.client(name).write(self.folder, name)
        return {"ca": self.ca, "cert": cert, "key": key}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    built = House(tmp_path_factory.mktemp("house"))
    with server(*built.flags()) as running:
        built.address = running.address
        yield built


@pytest.fixture
def alpha(house: House, connect: Callable[..., Any]) -> Any:
    return connect(house.unix, token=ALPHA)


def work(client: Any) -> None:
    """A little of everything, over one connection and another."""
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 2, 10, 2, 32), np.float32)
    with client.open(SPEC) as stream:
        stream.append_all(k, v)
        stream.step(0, q[0, :1], k[0, :1], v[0, :1])
        stream.truncate(5)
        file = io.BytesIO()
        stream.export(file)
        file.seek(0)
        client.import_stream(file).close()
        stream.fork().close()
    with client.decode() as call:
        stream = call.open(SPEC)
        assert stream.append_all(k, v) == 10
        stream.close()


def test_a_token_makes_a_tenant(alpha: Any, house: House, connect: Callable[..., Any]) -> None:
    info = alpha.info()
    assert (info.tenant.name, info.tenant.max_streams, info.tenant.max_bytes) == ("alpha", 5, None)
    assert (info.tenant.steps_per_second, info.tenant.max_calls) == (1e6, None)
    work(alpha)
    beta = connect(house.address, token=BETA, **house.certificate("anybody"))
    work(beta)
    stream = alpha.open(SPEC)
    (listed,) = alpha.list_streams()
    assert (listed.handle, listed.length, listed.sealed) == (stream.handle, 0, False)
    assert beta.list_streams() == []
    with pytest.raises(StreamNotFound):
        beta.export_stream(stream.handle, io.BytesIO())
    streams = [alpha.open(SPEC) for _ in range(4)]
    with pytest.raises(QuotaExceeded) as caught:
        alpha.open(SPEC)
    assert (caught.value.facts["quota"], caught.value.retry_after_ms) == ("streams", 0)
    for each in (stream, *streams):
        each.close()


def test_a_certificate_makes_a_tenant(house: House, connect: Callable[..., Any]) -> None:
    client = connect(house.address, **house.certificate("beta.example"))
    assert client.info().tenant.name == "beta"
    work(client)
    stranger = connect(house.address, **house.certificate("gamma.example"))
    with pytest.raises(PermissionDenied, match="names none of") as caught:
        stranger.info()
    assert isinstance(caught.value, PermissionError)


@pytest.mark.parametrize("kind", [AttentionClient, GenerationClient])
def test_who_is_not_known_is_told_so(house: House, connect: Callable[..., Any], kind: type) -> None:
    for options, words in (({}, "brings neither"), ({"token": WRONG}, "not one of this server's")):
        client = connect(house.unix, kind, **options)
        ask = client.info if kind is AttentionClient else lambda client=client: list(client.generate("x"))
        with pytest.raises(Unauthenticated, match=words) as caught:
            ask()
        assert isinstance(caught.value, PermissionError)
        assert WRONG not in repr(caught.value) + str(caught.value.facts)


def test_tls_that_does_not_fit_is_an_unreachable_server(house: House, connect: Callable[..., Any]) -> None:
    other = Authority("another").write(house.folder, "other")
    for options in ({}, {"ca": house.ca}, {**house.certificate("beta.example"), "ca": other}, {"tls": True}):
        # The latter where this machine is busy.
        with pytest.raises((ServerUnavailable, DeadlineExpired)):
            connect(house.address, timeout=0.5, **options).info()


def test_a_token_may_be_asked_for_at_every_call(house: House, connect: Callable[..., Any]) -> None:
    tokens = [WRONG, ALPHA, BETA]
    client = connect(house.unix, token=lambda: tokens.pop(0))
    with pytest.raises(Unauthenticated):
        client.info()
    assert [client.info().tenant.name for _ in range(2)] == ["alpha", "beta"]
    spoilt = connect(house.unix, token=lambda: "not a token")
    with pytest.raises(InvalidSpec):
        spoilt.info()


@pytest.mark.parametrize(
    ("target", "options", "field"),
    [
        ("127.0.0.1:1", {"tls": 1}, "tls"),
        ("127.0.0.1:1", {"tls": False, "ca": "ca"}, "ca"),
        ("127.0.0.1:1", {"cert": "x"}, "key"),
        ("127.0.0.1:1", {"key": "x"}, "cert"),
        ("127.0.0.1:1", {"ca": "/nowhere"}, "tls"),
        ("127.0.0.1:1", {"ca": __file__}, "ca"),
        ("127.0.0.1:1", {"cert": __file__, "key": __file__}, "cert"),
        ("unix:/s", {"tls": True}, "tls"),
        ("unix:/s", {"ca": "ca"}, "tls"),
        ("127.0.0.1:1", {"token": ""}, "token"),
        ("127.0.0.1:1", {"token": f"{ALPHA} "}, "token"),
        ("127.0.0.1:1", {"token": f"{ALPHA}\n"}, "token"),
        ("127.0.0.1:1", {"token": f"é{ALPHA}"}, "token"),
        ("127.0.0.1:1", {"token": ALPHA.encode()}, "token"),
        ("127.0.0.1:1", {"token": ALPHA * 1000}, "token"),
        ("example.org:1", {"token": ALPHA}, "token"),
        ("dns:///example.org:1", {"token": ALPHA}, "token"),
        ("10.0.0.1:1", {"token": ALPHA}, "token"),
        ("127.0.0.1.example.org:1", {"token": ALPHA}, "token"),
        ("[2001:db8::1]:1", {"token": lambda: ALPHA}, "token"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(target: str, options: dict[str, Any], field: str) -> None:
    for kind in (AttentionClient, GenerationClient):
        with pytest.raises(InvalidSpec) as caught:
            kind(target, **options)
        assert caught.value.field == field
        assert ALPHA not in str(caught.value)


@pytest.mark.parametrize("target", ["localhost:1", "127.8.8.8:1", "[::1]:1", "dns:///localhost:1", "unix:s"])
def test_a_token_may_go_to_this_machine(target: str) -> None:
    AttentionClient(target, token=ALPHA).close()


def test_a_token_is_not_shown(house: House, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), AttentionClient(house.unix, token=ALPHA) as client:
        client.info()
        access = Access.checked(house.unix, token=ALPHA)
        plan = Plan(target=house.unix, access={"token": ALPHA}, schedule=Constant(rate=1))
        job: Job = plan.jobs()[0]
        shown = [repr(value) for value in (client, vars(client), access, plan, job, plan.document())]
        shown += [repr(vars(client._channel)), caplog.text]
    assert job.access == {"token": ALPHA}
    assert not any(ALPHA in text for text in shown)


def run(*args: str, **environment: str) -> Result:
    return CliRunner().invoke(app, args, env={"COLUMNS": "200", **environment})


def test_commands_find_their_access_in_the_environment(house: House, tmp_path: Path) -> None:
    result = run("streams", "list", "--server", house.unix)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "a bearer token or a client certificate is needed" in result.stderr
    with AttentionClient(house.unix, token=ALPHA) as client, client.open(SPEC) as stream:
        stream.append_all(*np.zeros((2, 2, 7, 2, 32), np.float32))
        files = {f"RONDEL_{name.upper()}": path for name, path in house.certificate("anybody").items()}
        for target, environment in (
            (house.unix, {"RONDEL_TOKEN": ALPHA}),
            (house.address, {"RONDEL_TOKEN": ALPHA, **files}),
            (house.unix, {"RONDEL_TOKEN": ALPHA, **files}),  # which are for servers elsewhere
        ):
            result = run("streams", "list", "--json", "--server", target, **environment)
            (listed,) = json.loads(result.stdout)
            assert (listed["handle"], listed["length"]) == (stream.handle, 7)
        token = tmp_path / "token"
        token.write_text(f"{ALPHA}\n")
        result = run("streams", "list", "--server", house.unix, "--token-file", str(token))
        assert re.search(rf"{stream.handle}.* 7 ", result.stdout)
        result = run("streams", "list", "--json", "--server", house.unix, RONDEL_TOKEN=BETA)
        assert result.stdout == "[]\n"
        result = run("streams", "export", stream.handle, str(tmp_path / "f"), "--server", house.unix,
                     RONDEL_TOKEN_FILE=str(token))  # fmt: skip
        assert result.exit_code == 0, result.output
        result = run("streams", "import", str(tmp_path / "f"), "--server", house.unix, RONDEL_TOKEN=BETA)
        assert result.exit_code == 0, result.output
    result = run(
        "load", house.unix, "--rate=50", "--duration=0.3", "--streams=3", "--json", RONDEL_TOKEN=ALPHA
    )
    assert result.exit_code in (0, 3), result.output  # 3: this machine was busy
    assert json.loads(result.stdout)["answers"]["wrong"] == 0
    assert ALPHA not in result.output
    flags = [f"--{name}={path}" for name, path in house.certificate("beta.example").items()]
    assert run("health", house.address, *flags).exit_code == 0
    assert run("health", house.address, "--timeout=0.3").exit_code == 3


@pytest.mark.parametrize(
    ("args", "environment", "code", "words"),
    [
        (["--ca", "/nowhere"], {}, 2, "cannot read /nowhere"),
        (["--token-file", "/nowhere"], {}, 2, "cannot read the token file /nowhere"),
        (["--server", "unix:/s", "--tls"], {}, 2, "a unix socket has no TLS"),
        (["--server", "example.org:1"], {"RONDEL_TOKEN": ALPHA}, 2, "a token is sent only with TLS"),
        ([], {"RONDEL_TOKEN": f"{ALPHA} x"}, 2, "token must be a text"),
        ([], {"RONDEL_TLS": "perhaps"}, 2, "RONDEL_TLS"),
    ],
)
def test_wrong_access_is_wrong_usage(
    args: list[str], environment: dict[str, str], code: int, words: str
) -> None:
    result = run("streams", "list", *args, **environment)
    assert result.exit_code == code
    assert words in result.stderr.replace("\n", " ")
    assert ALPHA not in result.output


def test_help_tells_the_variables_and_no_value() -> None:
    for command in (["streams", "list"], ["generate"], ["load"], ["health"]):
        shown = run(*command, "--help", RONDEL_TOKEN=ALPHA, RONDEL_CA="/secret/place").stdout
        for name in ("RONDEL_TLS", "RONDEL_CA", "RONDEL_CERT", "RONDEL_KEY", "RONDEL_TOKEN_FILE"):
            assert name in shown
        assert ALPHA not in shown
        assert "/secret/place" not in shown
