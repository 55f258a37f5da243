"""Whole runs of a load generator: processes that send, servers that stand still, exit codes."""

import io
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result
from rich.console import Console
from transports import flags, to
from typer.testing import CliRunner

from rondel.client import AttentionClient
from rondel.client.cli import load_view
from rondel.client.cli.app import app
from rondel.client.cli.launch import server
from rondel.client.load.check import Findings
from rondel.client.load.faults import Faults
from rondel.client.load.job import Progress
from rondel.client.load.plan import Plan
from rondel.client.load.runner import View, run_load
from rondel.client.load.schedule import Constant
from rondel.client.load.workload import Workload

SMALL = Workload(layers=1, query_heads=2, kv_heads=1, head_dim=16, window=64)
LATE_MS = 60_000.0
"""Allowed lag where a run is about something else: the machine of the tests may be busy."""


def plan(target: str, **changed: Any) -> Plan:
    fields = {"schedule": Constant(rate=100), "workload": SMALL, "streams": 4, "max_lag_ms": LATE_MS}
    return Plan(**{"target": target, "access": to(target), **fields, **changed})


def open_streams(address: str) -> int:
    with AttentionClient(address, **to(address)) as client:
        return client.info().streams


def stop_for(seconds: float, pid: int) -> threading.Timer:
    """Have a process stand still for some time."""
    os.kill(pid, signal.SIGSTOP)
    timer = threading.Timer(seconds, os.kill, (pid, signal.SIGCONT))
    timer.start()
    return timer


def once(after: float, act: Callable[[], object]) -> Callable[[View], None]:
    """Told how a run goes, it acts once."""
    acted: list[object] = []

    def show(view: View) -> None:
        if view.elapsed >= after and not acted:
            acted.append(act())

    return show


@pytest.mark.alone
def test_a_stall_is_seen_by_all_who_would_have_come_meanwhile() -> None:
    """Coordinated omission: only two operations are under way while the server stands still for 2 s, but at
    100 per second 200 come due. All of them have waited; hardly any took long once it was sent."""
    with server("--budget-bytes=16777216", *flags()) as running:
        result = run_load(
            plan(running.address, streams=2, duration=2.5), once(0.2, lambda: stop_for(2.0, running.pid))
        )
    assert result.completed == 250
    assert result.latency["all"]["p99"] > 1800
    assert result.service["all"]["max"] > 1800
    assert result.service["all"]["p90"] < result.latency["all"]["p50"] / 2
    assert result.findings.wrong == 0


def test_a_generator_that_stood_still_itself_says_nothing(address: str) -> None:
    """The same from the other side: the server is well, the process that sends is stopped."""

    def stop() -> object:
        (worker,) = multiprocessing.active_children()
        assert worker.pid is not None
        return stop_for(0.5, worker.pid)

    result = run_load(plan(address, duration=0.8, max_lag_ms=300.0), once(0.1, stop))
    assert result.exit_code == 3
    assert result.invalid is not None
    assert "fell behind" in result.invalid
    assert result.lag["p99"] > 300


def test_a_generator_that_died_says_nothing(address: str) -> None:
    before = open_streams(address)

    def kill() -> None:
        for worker in multiprocessing.active_children():
            if worker.name == "worker 1":
                worker.kill()

    result = run_load(plan(address, duration=0.6, processes=2), once(0.1, kill))
    assert result.exit_code == 3
    assert result.invalid == "worker 1 did not come to an end"
    assert result.completed == 30
    assert open_streams(address) - before == 2  # those that died with it


def test_clients_that_are_stopped_and_killed_harm_nobody(address: str) -> None:
    before = open_streams(address)
    faults = Faults(kills=1, stalls=1, stall_seconds=0.2)
    result = run_load(plan(address, duration=0.8, faults=faults))
    assert (result.faults.kills, result.faults.stalls, result.faults.left_open) == (1, 1, 4)
    assert result.statuses == {"OK": 80}
    assert result.findings.checked > 80  # the answers to those two as well
    assert result.findings.wrong == 0
    assert open_streams(address) == before


def run(*args: str) -> Result:
    return CliRunner().invoke(app, ["load", *args])


def test_ctrl_c_leaves_no_stream_and_no_process_behind(address: str) -> None:
    before = open_streams(address)
    command = [sys.executable, "-m", "rondel.client.cli", "load", address, "--closed=2"]
    with subprocess.Popen(
        [*command, "--duration=60"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        while open_streams(address) < before + 16:  # all of them: the worker is at work
            assert running.poll() is None
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=30)  # its pipes end when all its processes have
    assert running.returncode == 128 + signal.SIGINT
    assert out == b""
    assert b"Traceback" not in err
    assert open_streams(address) == before


def test_the_live_view_tells_how_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(load_view, "err", Console(file=screen, force_terminal=True, width=100))
    for view in (
        View(-1.0, Progress(0, 0, 0, Findings(), 0.0, 0.0)),
        View(2.5, Progress(200, 3, 7, Findings(checked=190), 1.25, 9.5)),
    ):
        with load_view.live(plan("localhost:1", duration=9.0)) as tell:
            tell(view)
    shown = screen.getvalue()
    for text in (
        "opening 4 streams on localhost:1",
        "2.5 of 9 s",
        "200 done, 3 failed, 7 waiting",
        "p99 9.50",
    ):
        assert text in shown


SHAPE = [
    "--layers=2",
    "--query-heads=4",
    "--kv-heads=2",
    "--head-dim=16",
    "--window=32",
    "--tokens-per-step=2",
]
BRIEF = [*SHAPE, "--streams=4", "--duration=0.5", f"--max-lag-ms={LATE_MS}"]


def test_the_last_line_is_the_whole_result(address: str) -> None:
    mixed = [
        "--attend-fraction=0.2",
        "--truncate-fraction=0.1",
        "--fork-fraction=0.1",
        "--cancel-fraction=0.2",
    ]
    result = run(
        address, "--rate=200", "--poisson", "--processes=2", "--warmup=0.1", "--seed=3", *mixed, *BRIEF
    )
    assert result.exit_code == 0, result.output
    assert "compared to the bit, 0 wrong" in result.stdout
    found = json.loads(result.stdout.splitlines()[-1])
    assert (found["loop"], found["rate"], found["processes"], found["streams"]) == ("poisson", 200, 2, 4)
    assert (found["duration_s"], found["warmup_s"]) == (0.5, 0.1)
    assert found["workload"]["tokens"] == 2
    assert found["status"] == {"OK": found["offered"]}
    assert found["offered"] == pytest.approx(80, abs=45)
    assert 0 < found["operations_per_s"] <= found["offered_per_s"]
    assert found["tokens_per_s"] > 0
    for name in ("latency_ms", "service_ms"):
        times = found[name]["all"]
        assert 0 < times["p50"] <= times["p90"] <= times["p99"] <= times["p99.9"] <= times["max"]
    counted = sum(one["count"] for name, one in found["latency_ms"].items() if name != "all")
    assert counted == found["offered"]
    assert found["answers"]["exact"]
    assert found["answers"]["checked"] > 0
    assert (found["answers"]["wrong"], found["answers"]["unchecked"]) == (0, 0)
    assert found["inflicted"]["cancels"] > 0
    assert (found["valid"], found["reason"], found["exit_code"]) == (True, None, 0)


def test_a_missed_slo_is_told_and_the_exit_code_is_the_verdict(address: str) -> None:
    result = run(address, "--closed=2", "--slo-p99-ms=0.001", "--json", *BRIEF)
    (line,) = result.stdout.splitlines()
    found = json.loads(line)
    assert (found["loop"], found["concurrency"], found["slo"]["p99_ms"]) == ("closed", 2, 0.001)
    assert len(found["slo"]["missed"]) == 1
    assert result.exit_code == found["exit_code"] == 1


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["--rate=5", "--closed=5"],
        ["--closed=5", "--poisson"],
        ["--rate=0"],
        ["--rate=5", "--streams=0"],
        ["--rate=5", "--check-fraction=2"],
        ["--rate=5", "--cancel-fraction=-1"],
        ["--rate=5", "--kv-heads=3"],
        ["--rate=5", "--slo-p99-ms=nan"],
        ["--rate=5", "--kills=-1"],
    ],
)
def test_wrong_usage_is_exit_code_2(args: list[str]) -> None:
    assert run("127.0.0.1:1", *args).exit_code == 2


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hdrh.histogram", None)
    result = run("127.0.0.1:1", "--rate=5")
    assert result.exit_code == 2
    assert "pip install 'rondel[load]'" in " ".join(result.stderr.split())


def test_no_server_is_one_line_and_exit_code_1() -> None:
    result = run("127.0.0.1:1", "--rate=5", "--timeout=0.3")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1
    assert multiprocessing.active_children() == []
