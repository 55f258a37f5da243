"""Settings of a server: one frozen description, checked once, the same for the command line and for tests."""

from __future__ import annotations

import ipaddress
import math
from dataclasses import dataclass
from typing import Final

from rondel.decoder.checks import checked_verify
from rondel.decoder.errors import InvalidSpec

MIB: Final = 1 << 20
MAX_NAME_BYTES: Final = 128
"""Bytes of the name of projections; the protos have the same number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Settings of a server.

    Raises:
        InvalidSpec: a setting is out of range, there is nowhere to listen, or the address is open to other
            machines without ``allow_insecure_bind``.
    """

    host: str = "127.0.0.1"
    """Address to listen on; anything but loopback needs allow_insecure_bind."""
    port: int | None = 7411
    """TCP port; 0 = a free one; None = no TCP."""
    unix_path: str | None = None
    """Path of a unix socket to listen on as well."""
    allow_insecure_bind: bool = False
    """Allow an address that other machines can reach, although nobody is asked who they are."""
    budget_bytes: int = 1024 * MIB
    """Memory for all streams together."""
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
    """An export that nobody reads, or an import that nobody feeds, is ended after so long; 0 = never."""
    drain_seconds: float = 10.0
    """How long a stop may wait for calls that are at work."""
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
            if not self.allow_insecure_bind and not is_loopback(self.host):
                raise InvalidSpec(
                    f"host must be a loopback address unless allow_insecure_bind is set (others could "
                    f"read and end every stream), got {self.host!r}",
                    field="host",
                )
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
        _whole("max_message_bytes", self.max_message_bytes, 1024, 1 << 30)
        _whole("max_streams", self.max_streams, 1, 1 << 24)
        _whole("max_step_items", self.max_step_items, 1, 1 << 20)
        _whole("max_calls_per_connection", self.max_calls_per_connection, 1, 1 << 20)
        _whole("queue_bytes", self.queue_bytes, 1, 1 << 40)
        _whole("max_generations", self.max_generations, 1, 1 << 16)
        for name in (
            "max_queue_seconds",
            "stuck_seconds",
            "idle_lease_seconds",
            "stall_timeout_seconds",
            "drain_seconds",
        ):
            seconds = getattr(self, name)
            if not (isinstance(seconds, int | float) and math.isfinite(seconds) and 0 <= seconds <= 1e8):
                raise InvalidSpec(f"{name} must be from 0 to 1e8 seconds, got {seconds!r}", field=name)

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
