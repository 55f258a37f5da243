"""The harness: its arithmetic, its order, and that a wrong answer is not timed. No other engine is needed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest

import kernels as bench_kernels
import measure
import peers
import report
import timing
import traffic
from checking import Oracle, WrongAnswer, oracle, relative_error
from shapes import Floats, Problem, Shape, draw, parse_shape

SMALL = Shape("small", 4, 2, 16, 300)
AT_ONCE = {"warm_seconds": 0.0, "sample_seconds": 0.0}


def timed(*wall: float) -> timing.Timing:
    return timing.Timing(list(wall), list(wall))


class NumpyPeer:
    """The right answer in float32, or what ``spoil`` makes of it."""

    tolerance = 1e-4

    def __init__(self, name: str, spoil: Callable[[Floats], Floats] = lambda out: out) -> None:
        self.name, self.spoil = name, spoil

    def prepare(self, problem: Problem, threads: int) -> None:
        self.problem = problem

    def run(self) -> object:
        self.out = self.spoil(oracle(self.problem).astype(np.float32))
        return None

    def answer(self) -> Floats:
        return self.out

    def computed_from(self) -> Problem:
        return self.problem

    def close(self) -> None:
        del self.out


def swapped(out: Floats) -> Floats:
    return out[:, ::-1].copy()


def broken(out: Floats) -> Floats:
    raise RuntimeError("no such instruction\nand more")


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three made-up peers, right, wrong and failing, and one that is not installed."""
    module = ModuleType("made_up")
    module.contestants = lambda: [  # type: ignore[attr-defined]
        NumpyPeer("right"),
        NumpyPeer("wrong", swapped),
        NumpyPeer("failing", broken),
    ]
    monkeypatch.setitem(sys.modules, "made_up", module)
    monkeypatch.setattr(peers, "MODULES", {"made up": "made_up", "absent": "peers.not_installed"})


def test_medians_and_ratios() -> None:
    assert timed(3e-6, 1e-6, 100e-6).us == pytest.approx(3)
    assert timed(1.0, 2.0).spread == 2
    assert timing.ratio(timing.Timing([5e-6], [2e-6]), timed(1e-6), timing.cpu) == pytest.approx(2)
    # Round by round: a minute in which both take three times as long does not count more for one of them.
    assert timing.ratio(timed(4.0, 18.0, 5.0), timed(2.0, 6.0, 2.0)) == 2.5
    assert timing.worst([3.0, 2.0]) == 2.0
    assert timing.geomean([2.0, 8.0]) == pytest.approx(4.0)
    assert timing.worst([]) is None
    assert timing.geomean([]) is None


def test_contestants_take_turns_and_warm_up() -> None:
    log: list[str] = []
    calls = {"a": lambda: log.append("a"), "b": lambda: log.append("b")}
    found = timing.interleave(calls, 2, before=lambda name: log.append(f"turn {name}"), **AT_ONCE)
    assert log == ["turn a", "a", "a", "turn b", "b", "b"] * 2
    assert [len(found[name].wall) for name in "ab"] == [2, 2]
    with pytest.raises(ValueError, match="at least 1, got 0"):
        timing.interleave(calls, 0)


def test_the_oracle_is_causal_and_knows_groups() -> None:
    problem = draw(SMALL, rows=2)
    want = np.zeros((2, 4, 16))
    for row, head in np.ndindex(2, 4):
        k, v = (x[: 299 + row, head // 2].astype(np.float64) for x in (problem.k, problem.v))
        weights = np.exp(k @ problem.q[row, head] / 4)
        want[row, head] = weights @ v / weights.sum()
    assert relative_error(want.astype(np.float32), oracle(problem)) < 1e-6


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (swapped, "wrong: relative error"),
        (lambda out: out * np.float32(1.001), "relative error 0.001, at most 0.0001"),
        (lambda out: np.full_like(out, np.nan), "relative error nan"),
        (lambda out: out[:, :2], r"shape \(1, 2, 16\), expected \(1, 4, 16\)"),
    ],
)
def test_a_wrong_answer_is_caught(spoil: Callable[[Floats], Floats], text: str) -> None:
    peer = NumpyPeer("wrong", spoil)
    peer.prepare(draw(SMALL), 1)
    peer.run()
    with pytest.raises(WrongAnswer, match=text):
        Oracle().check(peer.name, peer.answer(), peer.computed_from(), peer.tolerance)


@pytest.mark.usefixtures("engines")
def test_peers_are_timed_or_named_with_the_reason() -> None:
    result = measure.measure(draw(SMALL), peers=["made up", "absent"], rounds=1)
    assert set(result.peers) == {"right"}
    assert result.missing["failing"] == "RuntimeError: no such instruction"
    assert result.missing["wrong"].startswith("WrongAnswer: wrong: relative error")
    assert "peers.not_installed" in result.missing["absent"]
    assert result.ratio() == timing.ratio(result.peers["right"], result.timings["rondel int8"])
    assert result.share() > 0
    assert result.share("float32") > 0
    assert result.bytes_read == {"int8": 3 * 128 * 2 * 36, "float32": 3 * 128 * 2 * 128}


@pytest.mark.usefixtures("engines")
def test_a_wrong_answer_of_ours_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure.SessionRow, "answer", lambda row: swapped(row._out))
    with pytest.raises(WrongAnswer, match="rondel int8"):
        measure.measure(draw(SMALL), peers=[], rounds=1)


def faked(name: str, ours: float, peer: float, read: float) -> measure.Result:
    times = {"rondel int8": timed(ours), "rondel float32": timed(4 * ours), "peer": timed(peer)}
    reads = {
        "int8": {"words": timed(read), "vectors": timed(2 * read)},
        "float32": {"words": timed(2 * read)},
    }
    return measure.Result(
        parse_shape(name), times, dict.fromkeys(times, 0.0), reads, {"int8": 4000, "float32": 16000}
    )


def test_the_last_line_has_the_agreed_keys() -> None:
    results = {
        "a": faked("a", 1e-6, 8e-6, 0.5e-6),
        "b": faked("b", 1e-6, 2e-6, 0.75e-6),
        "d": faked("d", 1e-6, 1.5e-6, 0.9e-6),
    }
    summary = report.summarise(results, report.Claims(prefill_ratio=2.0))
    assert json.loads(json.dumps(summary)) == {
        "worst_ratio": 2.0,
        "d_ratio": 1.5,
        "geomean_gqa": 4.0,
        "bandwidth": {"b": 0.75, "d": 0.9, "f": None},
        "per_shape": {
            name: {"ours_us": 1.0, "peers_us": {"peer": peer}, "read_us": read, "gb_s": 4.0}
            for name, peer, read in (("a", 8.0, 0.5), ("b", 2.0, 0.75), ("d", 1.5, 0.9))
        },
        "f32_bandwidth_b": 0.375,
        "threads2_ratio": None,
        "batch_rate_ratio": None,
        "prefill_ratio": 2.0,
        "checked": True,
    }
    assert report.claims_table(results, report.Claims()).row_count == 14
    assert report.shape_table(results["a"]).row_count == 5


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    options = bench_kernels.arguments(["--shapes", "a,8x2x64x1000", "--peers", "torch", "--quick"])
    assert [str(shape) for shape in options.shapes] == ["32/8×128, 4,096 keys", "8/2×64, 1,000 keys"]
    assert (options.peers, options.rounds, max(options.context)) == (["torch"], 3, 8192)
    for wrong in (["--shapes", "z"], ["--shapes", "9x2x64x100"], ["--peers", "nobody"], ["--threads", "0"]):
        with pytest.raises(SystemExit):
            bench_kernels.arguments(wrong)
        assert wrong[1] in capsys.readouterr().err


def test_traffic_compares_checked_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "KEYS", {8: 512})
    found = traffic.compare(8, 1)
    assert found["32/32 heads, as many multiply-adds"]["bytes"] == 4
    assert found["32/32 heads, as many multiply-adds"]["multiply_adds"] == 1
    assert found["float32 storage"]["bytes"] == pytest.approx(1024 / 260)
    assert found["window halved"]["bytes"] == 0.5
    assert found["window halved"]["multiply_adds"] == pytest.approx(0.5, rel=0.01)
