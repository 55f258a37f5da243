"""Foreign stacks where the server asks who is there: TLS, tokens, certificates, and a unix socket."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
import pytest
from certificates import Authority
from expected import Expected
from foreign import Caller, Connect, Refused
from grpc_health.v1 import health_pb2

from rondel.client.cli.launch import server
from rondel.v1 import attention_pb2 as pb

pytestmark = pytest.mark.interop

TOKEN = "a-token-of-one-that-is-long-enough"
TENANTS = f"""
[tenants.one]
tokens = [{{ token = "{TOKEN}" }}]
certificates = ["one"]
[tenants.other]
certificates = ["other"]
"""


@dataclass(frozen=True)
class Place:
    """Where a server is, and the files of its callers."""

    target: str
    unix: str
    ca: str
    folder: Path

    def secrets(self, name: str) -> dict[str, str]:
        """What a caller with a certificate has."""
        cert, key = (str(self.folder / f"{name}.{suffix}") for suffix in ("pem", "key"))
        return {"ca": self.ca, "cert": cert, "key": key}


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture(scope="module", params=["tls", "mtls"])
def place(
    request: pytest.FixtureRequest, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp(request.param)
    ca = authority.write(folder)
    cert, key = authority.server().write(folder, "server")
    for name in ("one", "other", "stranger"):
        authority.client(name).write(folder, name)
    (folder / "tenants.toml").write_text(TENANTS)
    options = ["--tls-cert", cert, "--tls-key", key, "--tenants-file", str(folder / "tenants.toml")]
    if request.param == "mtls":
        options += ["--tls-client-ca", ca]
    unix = folder / "s"
    with server("--budget-bytes", str(64 << 20), "--unix-path", str(unix), *options) as process:
        _, _, port = process.address.rpartition(":")
        yield Place(f"localhost:{port}", f"unix:{unix}", ca, folder)


def lives(caller: Caller, rng: np.random.Generator) -> pb.StreamRef:
    """A stream that was opened and used, and is left open."""
    stream = Expected("int8", rng)
    stream.opened(caller.call("AttentionService/OpenStream", stream.open()))
    item = stream.step(0, tokens=3)
    (result,) = caller.call("AttentionService/Step", pb.StepRequest(items=[item])).results
    stream.check(0, item, result)
    assert stream.stream is not None
    return stream.stream


def refusal(caller: Caller) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(Refused) as refused:
        caller.call("AttentionService/GetServerInfo", pb.GetServerInfoRequest())
    return refused.value.code, refused.value.reason


@pytest.mark.parametrize("place", ["tls"], indirect=True)
def test_by_token(place: Place, stack: str, connect: Connect, rng: np.random.Generator) -> None:
    lives(connect(stack, place.target, ca=place.ca, token=TOKEN), rng)
    lives(connect(stack, place.unix, token=TOKEN), rng)
    wrong = (grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED")
    assert refusal(connect(stack, place.target, ca=place.ca, token="another" * 5)) == wrong
    assert refusal(connect(stack, place.unix)) == wrong


@pytest.mark.parametrize("place", ["mtls"], indirect=True)
def test_by_certificate(place: Place, stack: str, connect: Connect, rng: np.random.Generator) -> None:
    one, other = (connect(stack, place.target, **place.secrets(name)) for name in ("one", "other"))
    mine = lives(one, rng)
    lives(other, rng)
    with pytest.raises(Refused) as refused:
        other.call("AttentionService/GetStream", pb.GetStreamRequest(stream=mine))
    assert refused.value.reason == "STREAM_NOT_FOUND"  # as if there was none
    stranger = connect(stack, place.target, **place.secrets("stranger"))
    assert refusal(stranger) == (grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED")


@pytest.mark.parametrize("place", ["tls"], indirect=True)
def test_probes_need_no_token(place: Place, connect: Connect) -> None:
    caller = connect("grpclib", place.target, ca=place.ca)
    reply = caller.call("Health/Check", health_pb2.HealthCheckRequest())
    assert reply.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize("place", ["tls"], indirect=True)
@pytest.mark.parametrize("stack", ["node-protos"])
def test_a_server_of_another_authority_is_not_spoken_to(
    place: Place, stack: str, connect: Connect, tmp_path: Path
) -> None:
    ca = Authority().write(tmp_path)
    with pytest.raises(Refused) as refused:
        connect(stack, place.target, ca=ca, token=TOKEN).call(
            "AttentionService/GetServerInfo", pb.GetServerInfoRequest()
        )
    assert refused.value.code == grpc.StatusCode.UNAVAILABLE
