"""Settings of a server: one frozen description, checked once, the same for the command line and for tests."""

from __future__ import annotations

import ipaddress
import math
from dataclasses import dataclass
from typing import Final

from rondel.decoder.checks import checked_verify, real
from rondel.decoder.errors import InvalidSpec

MIB: Final = 1 << 20
MAX_NAME_BYTES: Final = 128
"""Bytes of the name of projections; the protos have the same number."""
CHOICES: Final = {
    "event_loop": ("uvloop", "asyncio"),
    "log_format": ("text", "json"),
    "log_level": ("debug", "info", "warning", "error"),
    "log_calls": ("all", "failed", "none"),
}
"""Settings that are one of a few words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Settings of a server.

    Raises:
        InvalidSpec: a setting is out of range, there is nowhere to listen, or the address is open to other
            machines without ``allow_insecure_bind``.
    """

    host: str = "127.0.0.1"
    """Address to listen on; anything but loopback needs TLS, and tenants_file or tls_client_ca."""
    port: int | None = 7411
    """TCP port; 0 = a free one; None = no TCP."""
    unix_path: str | None = None
    """Path of a unix socket to listen on as well."""
    allow_insecure_bind: bool = False
    """Allow an address that other machines can reach, although nobody is asked who they are, or tokens can
    be read on the way."""
    tls_cert: str | None = None
    """Path of the certificate for TLS on the TCP port, PEM; read again when it changes. None = no TLS."""
    tls_key: str | None = None
    """Path of its key, PEM without a password."""
    tls_client_ca: str | None = None
    """Path of the authorities, PEM, that TLS clients must have a certificate of. Its common name, or else
    its first alternative name, is the tenant, unless tenants_file says whose it is. None = no client needs
    one."""
    tenants_file: str | None = None
    """Path of a TOML file with the tenants: their tokens, certificates and quotas (docs/security.md). Only
    they may use the server then, also on the unix socket. Read again when it changes. None = everybody is
    one tenant, but for tls_client_ca."""
    budget_bytes: int = 1024 * MIB
    """Memory for all streams together."""
    overcommit: float = 1.0
    """How many times that memory open streams may reserve, from 1 to 1000. Above 1 more streams open, and a
    call that makes one longer can be refused as BudgetExceeded; it has then changed nothing."""
    arena_file: str | None = None
    """Path of a file for that memory, made if it is not there: streams outlive a kill of the server. None =
    they do not."""
    verify: str = "full"
    """What is looked at of the streams in that file at the start: full (every token's checksum) or tail
    (those of the last page of each layer)."""
    max_message_bytes: int = 16 * MIB
    """Largest message, either way."""
    max_streams: int = 4096
    """Open streams at a time; one more is refused as QuotaExceeded."""
    max_step_items: int = 1024
    """Streams that one Step call may name."""
    max_connections: int = 4096
    """TCP and unix connections at a time; more are closed at once."""
    max_calls_per_connection: int = 1024
    """Calls that one connection may have open at a time; more wait in the client."""
    queue_bytes: int = 64 * MIB
    """Request bytes that may wait for the kernels; more is refused as Overloaded."""
    max_queue_seconds: float = 5.0
    """How long a call may have to wait for the kernels, by an estimate made when it arrives; beyond it, or if
    its deadline would come first, it is refused as Overloaded at once. 0 = no bound."""
    stuck_seconds: float = 30.0
    """When a worker has been inside one piece of work for so long, the server says that it is not serving and
    refuses what the worker would have to do, until the piece is over; 0 = never."""
    max_generations: int = 16
    """Generate calls at work at a time; more is refused as Overloaded."""
    idle_lease_seconds: float = 3600.0
    """A stream that nobody names for so long is closed; 0 = never."""
    stall_timeout_seconds: float = 30.0
    """An export that nobody reads, an import that nobody feeds, or a Decode call whose results nobody takes
    is ended after so long; 0 = never."""
    decode_window_bytes: int = 4 * MIB
    """Bytes of results that a Decode call's client may be sent before it says that it has them."""
    drain_seconds: float = 10.0
    """How long a stop may wait for calls that are at work."""
    pre_stop_seconds: float = 0.0
    """How long after SIGTERM everything is still served, while health says NOT_SERVING: until nobody is sent
    here any more."""
    reflection: bool = True
    """Tell whoever asks which services and messages there are."""
    health_port: int | None = None
    """TCP port, on host, that answers health checks (grpc.health.v1) and nothing else, for everybody, without
    TLS: for probes that know none. It answers while the server starts, too; 0 = a free one; None = none."""
    admin_port: int | None = None
    """TCP port for metrics, probes and debugging over HTTP; 0 = a free one; None = no such port, and nothing
    is counted."""
    channelz_port: int | None = None
    """TCP port for gRPC's own view of its connections (grpc.channelz.v1); 0 = a free one; None = none."""
    admin_host: str = "127.0.0.1"
    """Address of these two; anything but loopback needs allow_public_admin."""
    allow_public_admin: bool = False
    """Allow an admin_host that other machines can reach: nobody is asked who they are."""
    event_loop: str = "uvloop"
    """What waits for the network: uvloop, which takes a fifth less time for a call, or asyncio."""
    log_format: str = "text"
    """Format of the log on standard error: text, or json with an object per line."""
    log_level: str = "info"
    """The least level that is logged: debug, info, warning or error."""
    log_calls: str = "failed"
    """Which calls are logged when they end: all, failed or none."""
    tracing: bool = False
    """Send traces by OpenTelemetry (rondel[otel]); where to and how many say its own OTEL_ variables."""
    model: str | None = None
    """Name or path of the language model; None = no text generation."""
    projections: tuple[str, ...] = ()
    """NAME=FILE: projection weights that streams may be opened with, by name, from a safetensors file with
    Hugging Face's names and layout. Any number of them."""

    def __post_init__(self) -> None:
        if self.port is None and self.unix_path is None:
            raise InvalidSpec("a server needs a port or a unix_path to listen on, got neither", field="port")
        if self.port is not None:
            _whole("port", self.port, 0, 65535)
            if not (self.allow_insecure_bind or self.protected or is_loopback(self.host)):
                raise InvalidSpec(
                    f"host must be a loopback address unless there is TLS, and tenants_file or tls_client_ca "
                    f"says who may call (or allow_insecure_bind is set: others could read and end every "
                    f"stream), got {self.host!r}",
                    field="host",
                )
        for name in ("tls_cert", "tls_key", "tls_client_ca", "tenants_file"):
            if getattr(self, name) == "":
                raise InvalidSpec(f"{name} must be a path, got an empty one", field=name)
        if (self.tls_cert is None) != (self.tls_key is None):
            field = "tls_cert" if self.tls_cert is None else "tls_key"
            raise InvalidSpec("tls_cert and tls_key need each other, got one of them", field=field)
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise InvalidSpec("tls_client_ca needs tls_cert and tls_key, got neither", field="tls_client_ca")
        if self.tls_cert is not None and self.port is None:
            raise InvalidSpec("tls_cert is for the TCP port, and there is none", field="tls_cert")
        if self.unix_path is not None and (not self.unix_path or len(self.unix_path.encode()) > 100):
            raise InvalidSpec(
                f"unix_path must have 1 to 100 bytes, got {len(self.unix_path.encode())}", field="unix_path"
            )
        object.__setattr__(self, "projections", tuple(self.projections))
        names = [named_file(setting)[0] for setting in self.projections]
        if len(set(names)) != len(names):
            raise InvalidSpec(f"projections must have names of their own, got {names}", field="projections")
        if self.arena_file is not None and not self.arena_file:
            raise InvalidSpec("arena_file must be a path, got an empty one", field="arena_file")
        checked_verify(self.verify)
        _whole("budget_bytes", self.budget_bytes, 1, 1 << 48)
        real("overcommit", self.overcommit, 1.0, 1000.0)
        _whole("max_message_bytes", self.max_message_bytes, 1024, 1 << 30)
        _whole("max_streams", self.max_streams, 1, 1 << 24)
        _whole("max_step_items", self.max_step_items, 1, 1 << 20)
        _whole("max_connections", self.max_connections, 1, 1 << 24)
        _whole("max_calls_per_connection", self.max_calls_per_connection, 1, 1 << 20)
        _whole("queue_bytes", self.queue_bytes, 1, 1 << 40)
        _whole("decode_window_bytes", self.decode_window_bytes, 1, 1 << 30)
        _whole("max_generations", self.max_generations, 1, 1 << 16)
        for name in (
            *("max_queue_seconds", "stuck_seconds", "idle_lease_seconds", "stall_timeout_seconds"),
            *("drain_seconds", "pre_stop_seconds"),
        ):
            seconds = getattr(self, name)
            if not (isinstance(seconds, int | float) and math.isfinite(seconds) and 0 <= seconds <= 1e8):
                raise InvalidSpec(f"{name} must be from 0 to 1e8 seconds, got {seconds!r}", field=name)
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise InvalidSpec(
                    f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}", field=name
                )
        for name in ("health_port", "admin_port", "channelz_port"):
            if (port := getattr(self, name)) is not None:
                _whole(name, port, 0, 65535)
        if not self.allow_public_admin and not is_loopback(self.admin_host):
            raise InvalidSpec(
                f"admin_host must be a loopback address unless allow_public_admin is set (others could "
                f"watch), got {self.admin_host!r}",
                field="admin_host",
            )

    @property
    def protected(self) -> bool:
        """Whether TCP callers must say who they are, and nobody on the way can read or change anything."""
        return self.tls_cert is not None and bool(self.tls_client_ca or self.tenants_file)

    @property
    def tcp_address(self) -> str | None:
        """``host:port`` with an IPv6 host in brackets; None = no TCP."""
        if self.port is None:
            return None
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def named_file(setting: str) -> tuple[str, str]:
    """Name and path of a NAME=FILE setting. Raises InvalidSpec."""
    name, _, path = setting.partition("=") if isinstance(setting, str) else ("", "", "")
    if not (name and path and name.isprintable() and len(name.encode()) <= MAX_NAME_BYTES):
        raise InvalidSpec(
            f"projections must be NAME=FILE with a name of 1 to {MAX_NAME_BYTES} bytes, got {setting!r}",
            field="projections",
        )
    return name, path


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host name or address. Names other than localhost count as no."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _whole(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidSpec(f"{name} must be an integer from {low} to {high}, got {value!r}", field=name)
