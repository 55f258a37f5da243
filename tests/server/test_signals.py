"""What signals do to a server that is a process of its own, and what systemd is told of it."""

import asyncio
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from processes import Serve
from rawclient import Client
from scrape import Samples, fetch

from rondel.server.health import LIVENESS
from rondel.server.notify import Notifier

Connect = Callable[[str], Client]
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Systemd:
    """The socket of a service manager."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.receiver.bind(path)

    def told(self, seconds: float = 30) -> str | None:
        """The next state that is sent to it; None = there was none for so long."""
        self.receiver.settimeout(seconds)
        try:
            return self.receiver.recv(4096).decode()
        except TimeoutError:
            return None

    def told_else(self) -> str | None:
        """The next that is not the watchdog's."""
        while (state := self.told()) == "WATCHDOG=1":
            pass
        return state


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    manager = Systemd(str(tmp_path / "notify"))
    yield manager
    manager.receiver.close()


async def test_a_hang_up_takes_what_may_change_and_says_what_may_not(
    serve: Serve, connect: Connect, tmp_path: Path
) -> None:
    file = tmp_path / "rondel.toml"
    file.write_text('max_streams = 1\nlog_level = "info"\n')
    process = serve(f"--config={file}", "--admin-port=0", "--drain-seconds=1")
    client = connect(process.address)
    await client.open()
    with pytest.raises(grpc.aio.AioRpcError, match="the limit is 1"):
        await client.open()

    def reload_success() -> float:
        return Samples(fetch(process.ready["admin"], "/metrics")[1])("rondel_reload_success")

    file.write_text('max_streams = 2\nqueue_bytes = 77\ndrain_seconds = 5.0\nlog_level = "info"\n')
    process.popen.send_signal(signal.SIGHUP)
    (line,) = (line for line in process.lines_until("SIGHUP") if "SIGHUP" in line)
    # The drain is the command line's, which counts first.
    assert line.endswith("SIGHUP: max_streams is 2; needs a restart: queue_bytes")
    assert (await client.info()).limits.max_streams == 2
    await client.open()
    with pytest.raises(grpc.aio.AioRpcError, match="the limit is 2"):
        await client.open()
    file.write_text("max_streams = 3\nmax_strems = 4\n")
    process.popen.send_signal(signal.SIGHUP)
    line = process.lines_until("SIGHUP")[-1]
    assert "nothing was changed: unknown setting 'max_strems'" in line
    assert " ERROR " in line
    assert reload_success() == 0
    with pytest.raises(grpc.aio.AioRpcError, match="the limit is 2"):
        await client.open()
    file.write_text('max_streams = 2\nqueue_bytes = 67108864\nlog_level = "warning"\n')
    process.popen.send_signal(signal.SIGHUP)
    while reload_success() == 0:
        await asyncio.sleep(0.01)
    code, _, log = await process.end(signal.SIGTERM)
    assert code == 0
    assert "stopping" not in log  # which is no warning


async def test_before_it_stops_everything_is_served_and_health_says_no(
    serve: Serve, connect: Connect
) -> None:
    process = serve("--pre-stop-seconds=0.8", "--drain-seconds=1")
    client = connect(process.address)
    health = health_pb2_grpc.HealthStub(client.channel)
    watches = {name: health.Watch(health_pb2.HealthCheckRequest(service=name)) for name in ("", LIVENESS)}
    for watch in watches.values():
        assert (await watch.read()).status == SERVING
    began = time.monotonic()
    process.popen.send_signal(signal.SIGTERM)
    assert (await watches[""].read()).status == NOT_SERVING
    stream = await client.open()
    while time.monotonic() - began < 0.5:
        await client.get(stream)
        await asyncio.sleep(0.05)
    check = health_pb2.HealthCheckRequest(service=LIVENESS)
    assert (await health.Check(check)).status == SERVING
    for watch in watches.values():
        assert await watch.read() is grpc.aio.EOF  # liveness never said no
    assert await asyncio.to_thread(process.popen.wait, 20) == 0
    assert 0.8 <= time.monotonic() - began < 15


async def test_ctrl_c_does_not_wait_and_a_second_signal_ends_it_at_once(serve: Serve) -> None:
    code, seconds, _ = await serve("--pre-stop-seconds=60", "--drain-seconds=1").end(signal.SIGINT)
    assert code == 0
    assert seconds < 10
    process = serve("--pre-stop-seconds=60")
    process.popen.send_signal(signal.SIGTERM)
    process.lines_until("SIGTERM: stopping")
    code, seconds, log = await process.end(signal.SIGTERM)
    assert code == 128 + signal.SIGTERM
    assert "second SIGTERM: ending at once" in log


async def test_systemd_is_told(serve: Serve, systemd: Systemd) -> None:
    environment = {"NOTIFY_SOCKET": systemd.path, "WATCHDOG_USEC": "100000"}
    process = serve("--drain-seconds=1", environment=environment)
    assert (systemd.told() or "").startswith("EXTEND_TIMEOUT_USEC=")
    assert systemd.told() == "READY=1"
    assert [systemd.told() for _ in range(3)] == ["WATCHDOG=1"] * 3
    process.popen.send_signal(signal.SIGSTOP)
    while systemd.told(0.4) is not None:  # until what was on its way is here
        pass
    process.popen.send_signal(signal.SIGCONT)
    assert systemd.told() == "WATCHDOG=1"
    process.popen.send_signal(signal.SIGHUP)
    name, _, rest = (systemd.told_else() or "").partition("\n")
    assert name == "RELOADING=1"
    assert 0 < int(rest.removeprefix("MONOTONIC_USEC=")) <= time.monotonic_ns() // 1000
    assert systemd.told_else() == "READY=1"
    process.popen.send_signal(signal.SIGTERM)
    assert systemd.told_else() == "STOPPING=1"
    assert (await process.end(0))[0] == 0


async def test_systemds_abstract_socket_and_the_watchdog_of_another_process(tmp_path: Path) -> None:
    name = f"rondel-test-{os.getpid()}"
    manager = Systemd(f"\0{name}")
    notifier = Notifier({"NOTIFY_SOCKET": f"@{name}", "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"})
    notifier.ready()
    assert manager.told() == "READY=1"
    async with notifier.watched(lambda: True):
        await asyncio.sleep(0.05)
    assert manager.told(0.05) is None
    manager.receiver.close()
    notifier.stopping()  # nobody hears it, and nothing is raised
    Notifier({}).ready()


async def test_the_watchdog_hears_nothing_from_a_server_that_is_not_alive(systemd: Systemd) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": systemd.path, "WATCHDOG_USEC": "10000"})
    alive = True
    async with notifier.watched(lambda: alive):
        assert await asyncio.to_thread(systemd.told) == "WATCHDOG=1"
        alive = False
        while await asyncio.to_thread(systemd.told, 0.2) is not None:
            pass


def test_a_server_ends_with_its_terminal() -> None:
    leader, follower = pty.openpty()
    script = (
        "import fcntl, os, sys, termios\n"
        "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
        "from rondel.client.cli.main import main\n"
        "sys.argv = ['rondel', 'serve', '--port=0', '--json', '--drain-seconds=1']\n"
        "main()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=follower,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    os.close(follower)
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["pid"] == process.pid
    os.kill(process.pid, signal.SIGHUP)  # by somebody, for a reload: the terminal is there
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    os.close(leader)
    _, log = process.communicate(timeout=20)
    assert process.returncode == 0
    assert b"SIGHUP: no setting has changed" in log
    assert b"SIGHUP: stopping" in log
