"""What a load generator counts, and what it makes of it."""

import sys
import threading

import numpy as np
import pytest

from rondel.client.load.check import Checker, Findings
from rondel.client.load.histogram import Histogram
from rondel.client.load.job import Done, Ready
from rondel.client.load.plan import Plan, Slo
from rondel.client.load.recorder import OK, UNFINISHED, Recorder, Totals
from rondel.client.load.result import Inflicted, LoadResult
from rondel.client.load.schedule import Closed, Constant
from rondel.client.load.twin import Twin, Twins
from rondel.client.load.workload import Act, Kind, Move, Workload
from rondel.client.values import Array, ServerInfo
from rondel.decoder import kernels
from rondel.decoder.errors import InvalidSpec

RNG = np.random.default_rng(0)


def test_histograms_of_two_processes_add_up_to_three_digits() -> None:
    seconds = RNG.exponential(0.01, 4000)
    parts = [Histogram(), Histogram()]
    for number, value in enumerate(seconds):
        parts[number % 2].record(float(value))
    summary = Histogram(part.encoded() for part in parts).summary()
    assert summary["count"] == 4000
    assert summary["max"] == pytest.approx(1e3 * seconds.max(), rel=2e-3)
    ordered = 1e3 * np.sort(seconds)
    for name, rank in (("p50", 2000), ("p90", 3600), ("p99", 3960), ("p99.9", 3996)):
        assert ordered[rank - 2] * 0.998 <= summary[name] <= ordered[rank] * 1.002


def test_a_histogram_takes_what_is_out_of_its_range() -> None:
    histogram = Histogram()
    for seconds in (-1.0, 0.0, 1e9):
        histogram.record(seconds)
    assert histogram.count == 3
    assert histogram.milliseconds(100) == pytest.approx(3.6e6, rel=1e-3)
    assert Histogram().summary() == {"count": 0, "p50": 0, "p90": 0, "p99": 0, "p99.9": 0, "max": 0}


def test_without_hdrhistogram_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hdrh.histogram", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'rondel\[load\]'"):
        Histogram()


def record(recorder: Recorder, due: float, status: str = OK, **changed: object) -> None:
    times = {"intended": due, "sent": due + 0.01, "done": due + 0.03, "lag": 0.001, "tokens": 1}
    recorder.record(Kind.STEP, status, **{**times, "disturbed": False, **changed})  # type: ignore[arg-type]


def test_the_warm_up_is_left_out_and_late_answers_are_no_throughput() -> None:
    recorder = Recorder(10.0, 20.0)
    for due in (9.99, 10.0, 15.0, 19.99):
        record(recorder, due)
    totals = Totals([recorder.tallies()])
    assert totals.statuses == {OK: 3}
    assert (totals.in_time, totals.tokens) == (2, 2)
    assert totals.latency["all"].milliseconds(100) == pytest.approx(30, rel=1e-3)
    assert totals.service["step"].milliseconds(100) == pytest.approx(20, rel=1e-3)


def test_refusals_and_disturbed_operations_do_not_touch_the_times() -> None:
    recorder = Recorder(0.0, 100.0)
    for _ in range(10):
        record(recorder, 1.0, "OVERLOADED", done=1.011)
        record(recorder, 1.0, disturbed=True, done=9.0)
    record(recorder, 1.0)
    record(recorder, 1.0, UNFINISHED, sent=None, done=6.0)
    totals = Totals([recorder.tallies()])
    assert totals.statuses == {"OVERLOADED": 10, OK: 11, UNFINISHED: 1}
    assert totals.latency["all"].count == 2
    assert totals.service["all"].count == 1
    assert totals.latency["disturbed"].count == 10
    assert totals.latency["all"].milliseconds(100) == pytest.approx(5000, rel=1e-3)


READY = Ready(
    ServerInfo(
        **dict.fromkeys(ServerInfo.__dataclass_fields__, 1),  # type: ignore[arg-type]
    ),
    True,
)
WELL = {"lag": 0.001, "errors": 0, "wrong": 0, "busy": 0.1, "lost": ()}


def result(
    slo: Slo, *, lag: float, errors: int, wrong: int, busy: float, lost: tuple[str, ...]
) -> LoadResult:
    recorder = Recorder(0.0, 10.0)
    for number in range(100):
        record(recorder, 1.0, "INTERNAL" if number < errors else OK, lag=lag)
    findings = Findings(checked=100, wrong=wrong, unchecked=0, first_wrong="a number" if wrong else None)
    done = Done(recorder.tallies(), findings, 0, 0, busy)
    plan = Plan(target="localhost:1", schedule=Constant(rate=10), slo=slo, max_lag_ms=20)
    return LoadResult.of(plan, READY, [done], lost, Inflicted())


@pytest.mark.parametrize(
    ("slo", "changed", "code"),
    [
        (Slo(), {}, 0),
        (Slo(), {"errors": 100}, 0),
        (Slo(p99_ms=31, errors=0.0), {}, 0),
        (Slo(p99_ms=29), {}, 1),
        (Slo(errors=0.05), {"errors": 5}, 0),
        (Slo(errors=0.05), {"errors": 6}, 1),
        (Slo(), {"wrong": 1}, 1),
        (Slo(), {"lag": 0.03}, 3),
        (Slo(), {"busy": 0.95}, 3),
        (Slo(), {"lost": ("worker 0",)}, 3),
        (Slo(p99_ms=1), {"lag": 0.03}, 3),
        (Slo(), {"wrong": 1, "lag": 0.03}, 1),
    ],
)
def test_exit_codes(slo: Slo, changed: dict[str, object], code: int) -> None:
    found = result(slo, **{**WELL, **changed})  # type: ignore[arg-type]
    assert found.exit_code == code
    document = found.document()
    assert document["exit_code"] == code
    assert document["valid"] == (document["reason"] is None)


WORKLOAD = Workload(layers=1, query_heads=2, kv_heads=1, head_dim=8, window=16, tokens=3)


def step(tokens: int = 1) -> Move:
    q, k, v = (RNG.standard_normal((tokens, heads, 8), np.float32) for heads in (2, 1, 1))
    return Move(Act.STEP, q=q, k=k, v=v)


def answers(twins: Twins, moves: list[Move]) -> list[Array]:
    twin = twins.twin()
    found = []
    for move in moves:
        made = twin._made(move)
        assert made is not None
        found.append(made)
    twin.close()
    return found


def checked(answers_changed: dict[int, Array], tier: str = kernels.TIER) -> Findings:
    twins = Twins(WORKLOAD.spec(), tier, 8 << 20)
    moves = [step() for _ in range(40)]
    checker = Checker(twins.twin)
    life = checker.begin("5/0", True)
    for number, (move, answer) in enumerate(zip(moves, answers(twins, moves), strict=True)):
        checker.follow(life, move, answers_changed.get(number, answer))
    checker.end(life)
    return checker.finish()


def test_right_answers_are_found_right() -> None:
    assert checked({}) == Findings(checked=40)


@pytest.mark.parametrize("wrong", [np.zeros((1, 2, 8), np.float32), np.full((1, 2, 8), np.nan, np.float32)])
def test_a_wrong_answer_is_found_and_told(wrong: Array) -> None:
    for tier in (kernels.TIER, "of another processor"):
        found = checked({30: wrong}, tier)
        assert (found.checked, found.wrong) == (40, 1)
        assert found.first_wrong is not None
        assert found.first_wrong.startswith("stream 5/0, step of layer 0 at length 31: 1")
        assert "of 16 numbers differ, the first at [0, 0, 0]" in found.first_wrong
    assert "expected [1, 2, 8]" in str(checked({30: wrong[:, :1]}).first_wrong)


@pytest.mark.parametrize("tier", kernels.available())
def test_answers_of_another_tier_are_within_the_tolerance(tier: str) -> None:
    """As for a server whose tier this processor lacks: the bits differ, the numbers hardly do."""
    moves = [step(3) for _ in range(40)]
    theirs = answers(Twins(WORKLOAD.spec(), tier, 8 << 20), moves)
    ours = Twins(WORKLOAD.spec(), "of another processor", 8 << 20).twin()
    assert [ours.follow(move, answer) for move, answer in zip(moves, theirs, strict=True)] == [None] * 40
    assert ours.follow(moves[0], theirs[0]) is not None  # as a step after the others it is another one
    ours.close()


def test_one_bit_is_enough() -> None:
    twins = Twins(WORKLOAD.spec(), kernels.TIER, 8 << 20)
    move = step()
    (answer,) = answers(twins, [move])
    answer.view(np.uint32)[0, 1, 3] ^= 1
    found = twins.twin().follow(move, answer)
    assert found is not None
    assert "1 of 16 numbers differ, the first at [0, 1, 3]" in found


def test_a_call_that_should_have_been_refused_is_found() -> None:
    twin = Twins(WORKLOAD.spec(), kernels.TIER, 8 << 20).twin()
    assert "should have been refused" in str(twin.follow(Move(Act.TRUNCATE, length=3), None))
    twin.close()


def test_streams_that_cannot_be_followed_are_not_called_right() -> None:
    """A checker that is behind gives streams up, for good, and counts what it did not see."""
    go = threading.Event()

    class Slow:
        def follow(self, move: Move, answer: Array | None) -> str | None:
            go.wait()
            return None

        def close(self) -> None:
            pass

    answer = np.zeros((1, 2, 8), np.float32)
    checker = Checker(Slow, backlog_bytes=10 * answer.nbytes)
    lives = [checker.begin("0/0", True), checker.begin("1/0", False)]
    for _ in range(50):
        for life in lives:
            checker.follow(life, step(), answer)
    go.set()
    found = checker.finish()
    assert found.checked == 11
    assert found.unchecked == 89


def test_what_a_twin_cannot_do_is_raised() -> None:
    class Broken(Twin):
        def __init__(self) -> None:
            raise MemoryError

    checker = Checker(Broken)
    checker.follow(checker.begin("0/0", True), step(), None)
    with pytest.raises(MemoryError):
        checker.finish()


def test_without_memory_for_a_twin_its_answers_are_unchecked() -> None:
    twins = Twins(Workload(layers=64, window=4096).spec(), kernels.TIER, 2 << 20)
    checker = Checker(twins.twin)
    life = checker.begin("0/0", True)
    checker.follow(life, step(), np.zeros((1, 2, 8), np.float32))
    assert checker.finish() == Findings(unchecked=1)


@pytest.mark.parametrize(
    "fields",
    [
        {"processes": 0},
        {"streams": 1, "processes": 2},
        {"streams": 4, "schedule": Closed(concurrency=5)},
        {"schedule": Closed(concurrency=1), "processes": 2},
        {"duration": 0.0},
        {"duration": 2.0, "warmup": 2.0},
        {"check": 1.1},
        {"max_lag_ms": 0.0},
        {"slo": Slo(p99_ms=-1)},
    ],
)
def test_impossible_plans_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidSpec):
        Plan(**{"target": "localhost:1", "schedule": Constant(rate=1), **fields})  # type: ignore[arg-type]
