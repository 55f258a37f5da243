"""``rondel health``: asks a server whether it serves, as probes of containers and of people do."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from rondel.client.cli.access import Access, with_access
from rondel.client.cli.output import print_json, print_note
from rondel.client.cli.signals import nothing_to_undo
from rondel.client.cli.streams import DEFAULT_SERVER
from rondel.client.cli.usage import wrong_usage

if TYPE_CHECKING:
    from rondel.client.access import Access as Way

SERVING: Final = "SERVING"
UNREACHABLE: Final = "UNREACHABLE"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of asking."""

    target: str
    service: str
    """As asked for; empty = the server as a whole."""
    status: str
    """SERVING, NOT_SERVING or SERVICE_UNKNOWN as in grpc.health.v1; UNREACHABLE when nobody answered; or the
    code of another failure."""
    seconds: float
    """How long the answer took."""
    reason: str
    """More about a failure, else empty."""

    @property
    def exit_code(self) -> int:
        """0 = it serves, 1 = it answered otherwise, 3 = nobody answered."""
        if self.status == SERVING:
            return 0
        return 3 if self.status == UNREACHABLE else 1


@with_access
def health(
    target: Annotated[str, typer.Argument(help="host:port or unix:/path of the server.")] = DEFAULT_SERVER,
    service: Annotated[
        str,
        typer.Option(
            help="Full name of a service, or liveness for whether the process is well, also while it drains; "
            "empty for the server as a whole."
        ),
    ] = "",
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the answer.")] = 5.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
    *,
    access: Access,
) -> None:
    """Ask a server whether it serves, by grpc.health.v1.

    Exit codes: 0 = it serves, 1 = it answered, and does not, 2 = wrong usage, 3 = nobody answered.
    """
    with nothing_to_undo():
        from rondel.client.access import Access as Way
        from rondel.client.checks import checked_target, checked_timeout
    with wrong_usage():
        checked_timeout(timeout)
        way = Way.checked(checked_target(target), **access)
    verdict = ask(target, service, timeout, way)
    if as_json:
        print_json(asdict(verdict))
    else:
        print_note(f"{verdict.status}{f': {verdict.reason}' if verdict.reason else ''}")
    if verdict.exit_code:
        raise typer.Exit(verdict.exit_code)


def ask(target: str, service: str, timeout: float, way: Way) -> Verdict:
    """One Check call."""
    with nothing_to_undo():
        import grpc
        from grpc_health.v1 import health_pb2
    began = time.monotonic()

    def verdict(status: str, reason: str = "") -> Verdict:
        return Verdict(target, service, status, round(time.monotonic() - began, 6), reason)

    with way.channel(grpc, target, None) as channel:
        check = way.bound(
            channel.unary_unary(
                "/grpc.health.v1.Health/Check",
                request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
                response_deserializer=health_pb2.HealthCheckResponse.FromString,
            )
        )
        try:
            reply = check(health_pb2.HealthCheckRequest(service=service), timeout=timeout)
        except grpc.RpcError as error:
            code, reason = error.code(), error.details() or ""
            match code:
                case grpc.StatusCode.NOT_FOUND:
                    return verdict("SERVICE_UNKNOWN", reason)
                case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.DEADLINE_EXCEEDED:
                    return verdict(UNREACHABLE, reason)
                case _:
                    return verdict(code.name, reason)
        return verdict(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))
