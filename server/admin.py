"""The admin port: metrics, probes and debugging over HTTP, on threads that need neither loop nor worker.

So it answers when those are stuck, which is when it is needed. The standard library's server is enough for a
scraper and an operator, and brings nothing along.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import ctypes
import json
import logging
import socket
import socketserver
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from rondel.decoder.errors import InvalidSpec
from rondel.server.config import is_loopback

log = logging.getLogger("rondel.server")

_ANSWER_SECONDS: Final = 2.0
"""So long a probe waits for the event loop."""
_IDLE_SECONDS: Final = 10
"""A connection that sends no request for so long is closed."""


class Page(NamedTuple):
    """An answer in plain text."""

    status: str
    text: str


Environ = dict[str, Any]
App = Callable[[Environ, Callable[..., Any]], Iterable[bytes]]


class AdminPort:
    """An HTTP server on threads of its own. ``pages`` maps method and path to what makes the answer;
    ``apps`` the same to WSGI applications.

    Raises:
        InvalidSpec: it cannot be listened there.
    """

    def __init__(
        self,
        host: str,
        port: int,
        pages: Mapping[tuple[str, str], Callable[[], Page]],
        apps: Mapping[tuple[str, str], App],
    ) -> None:
        self._pages = pages
        self._apps = apps
        self._own = is_loopback(host)
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self._server = _Server(address[:2], family, self)
        except OSError as error:
            raise InvalidSpec(
                f"cannot listen on {host} port {port}: {error.strerror}", field="admin_port"
            ) from error
        shown = f"[{host}]" if ":" in host else host
        self.address = f"{shown}:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="rondel-admin", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stops listening. Answers on their way are not waited for."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        """The WSGI application."""
        key = (environ["REQUEST_METHOD"], environ["PATH_INFO"])
        if self._own and not is_loopback(_host(environ.get("HTTP_HOST", ""))):
            # A page of the web whose name was made to point here must not read this.
            page = Page("403 Forbidden", "this port is for this machine\n")
        elif key in self._apps:
            return self._apps[key](environ, start_response)
        elif key in self._pages:
            page = self._pages[key]()
        else:
            known = "".join(f"{method} {path}\n" for method, path in sorted({*self._pages, *self._apps}))
            page = Page("200 OK" if key == ("GET", "/") else "404 Not Found", known)
        body = page.text.encode()
        start_response(
            page.status, [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))]
        )
        return [body]


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: Any, family: int, app: App) -> None:
        self.address_family = family
        super().__init__(address, _Request)
        self.set_app(app)

    def server_bind(self) -> None:
        # The standard one asks the name service for this machine's name, which may take long and is not used.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def handle_error(self, request: object, client_address: object) -> None:
        log.debug("a request at the admin port failed", exc_info=True)


class _Request(WSGIRequestHandler):
    timeout = _IDLE_SECONDS

    def log_message(self, *_: object) -> None:
        """Scrapes and probes are no news."""


def _host(header: str) -> str:
    """The name in a Host header, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]


def ask(loop: asyncio.AbstractEventLoop, question: Callable[[], Awaitable[Page]]) -> Callable[[], Page]:
    """A page made on the event loop; 503 if that does not answer."""

    def page() -> Page:
        async def asked() -> Page:
            return await question()

        coroutine = asked()
        try:
            asking = asyncio.run_coroutine_threadsafe(coroutine, loop)
        except RuntimeError:
            coroutine.close()
            return Page("503 Service Unavailable", "the event loop has ended\n")
        try:
            return asking.result(_ANSWER_SECONDS)
        except concurrent.futures.TimeoutError:
            asking.cancel()
            return Page(
                "503 Service Unavailable", f"the event loop has not answered for {_ANSWER_SECONDS} s\n"
            )

    return page


def threads() -> Page:
    """Where every Python thread is."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = [
        f"thread {names.get(ident, '?')} ({ident})\n{''.join(traceback.format_stack(frame))}\n"
        for ident, frame in sys._current_frames().items()
    ]
    return Page("200 OK", "".join(parts))


async def tasks() -> Page:
    """Where every task of the event loop waits; alike ones together, since there may be thousands."""
    found: dict[str, int] = {}
    for task in asyncio.all_tasks():
        frames = task.get_stack(limit=3)
        where = " < ".join(f"{f.f_code.co_qualname}:{f.f_lineno}" for f in reversed(frames)) or "at its end"
        found[where] = found.get(where, 0) + 1
    lines = (f"{count:6d}  {where}\n" for where, count in sorted(found.items(), key=lambda each: -each[1]))
    return Page("200 OK", "".join(lines))


def trim() -> Page:
    """Gives memory that the C library keeps for later back to the system."""
    try:
        given = ctypes.CDLL(None).malloc_trim
    except AttributeError:
        return Page("501 Not Implemented", "this C library has no malloc_trim\n")
    before = _resident()
    given(0)
    return Page("200 OK", json.dumps({"resident_before": before, "resident_after": _resident()}) + "\n")


def _resident() -> int:
    """Bytes of memory that the process has."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0
