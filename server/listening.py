"""Addresses to listen on: what is in the way is found with plain sockets first, because gRPC only says no."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path

import grpc

from rondel.decoder.errors import InvalidSpec


def check_tcp(host: str, port: int) -> None:
    """Whether a TCP port can be listened on. Raises InvalidSpec with the system's reason."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            # As gRPC does: what is left of closed connections is no hindrance.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except OSError as error:
        about_host = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
        raise InvalidSpec(
            f"cannot listen on {host} port {port}: {error.strerror}", field="host" if about_host else "port"
        ) from error


def check_unix(path: str) -> None:
    """Whether a unix socket can be made there. Raises InvalidSpec with what is in the way."""
    folder = Path(path).absolute().parent
    problem = None
    if not folder.is_dir():
        problem = f"{folder} is no directory"
    elif not os.access(folder, os.W_OK | os.X_OK):
        problem = f"{folder} cannot be written to"
    elif os.path.lexists(path) and not _is_socket(path):
        problem = "a file that is no socket is in the way"
    elif _answers(path):
        # gRPC would replace the socket, and the server that is using it would go on unseen.
        problem = "another server listens there"
    if problem is not None:
        raise InvalidSpec(f"cannot listen on {path}: {problem}", field="unix_path")


def bind_tcp(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None = None) -> str:
    """Listens on ``host:port``, with TLS if there are credentials; the address with the actual port. Raises
    InvalidSpec."""
    try:
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise _taken(address, "port") from error
    return f"{address.rpartition(':')[0]}:{port}"


def bind_unix(server: grpc.aio.Server, path: str) -> str:
    """Listens on a unix socket that only this user can open; its gRPC target. Raises InvalidSpec."""
    address = f"unix:{Path(path).absolute()}"
    mask = os.umask(0o177)
    try:
        server.add_insecure_port(address)
    except RuntimeError as error:
        raise _taken(address, "unix_path") from error
    finally:
        os.umask(mask)
    return address


def _is_socket(path: str) -> bool:
    return stat.S_ISSOCK(os.lstat(path).st_mode)


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


def _taken(address: str, field: str) -> InvalidSpec:
    # It was free a moment ago. gRPC's own text only says where its debugging output is turned on.
    return InvalidSpec(f"cannot listen on {address}: gRPC could not open it", field=field)
