"""Calls that fail in the middle, whatever the error: the stream is as it was, to the byte, and goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from mirror import Mirror, assert_same_answers, small
from oracle import ENGINES

from rondel.decoder.batch import Step, StepResult, run_steps
from rondel.decoder.errors import RondelError


class Fault(RondelError):
    """An error of ours out of the middle of a call."""


@dataclass(eq=False)
class Failing:
    """The real kernels, of which one call fails: the ``after``-th of ``method``, after its work."""

    real: Any
    method: str
    after: int
    error: BaseException
    calls: int = 0

    def __getattr__(self, name: str) -> Any:
        if name != self.method:
            return getattr(self.real, name)

        def call(*arguments: object) -> None:
            getattr(self.real, name)(*arguments)
            self.calls += 1
            if self.calls > self.after:
                raise self.error

        return call


@dataclass(eq=False)
class Refusing:
    """The real kernels, which refuse to attend to queries of one arena, with others or alone."""

    real: Any
    base: int
    error: Exception

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def attend(self, queries: list[Any]) -> None:
        if any(query[1] == self.base for query in queries):
            raise self.error
        self.real.attend(queries)


ERRORS = [MemoryError("none left"), Fault("broken"), KeyboardInterrupt()]
errors = pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)


def fails(mirror: Mirror, call: Callable[[], object], error: BaseException, method: str, after: int) -> None:
    """The call raises this error and changes nothing that can be seen."""
    before, session = mirror.state(), mirror.session
    real = session._kernels
    session._kernels = Failing(real, method, after, error)
    try:
        with pytest.raises(type(error)) as caught:
            call()
    finally:
        session._kernels = real
    assert caught.value is error
    assert mirror.state() == before


# Length before, tokens of the call: nothing stored yet; in a page; a page begun; the ring turns; many laps.
PLACES = [(0, 1), (0, 200), (100, 20), (130, 3), (259, 1), (250, 10), (259 + 128 * 5, 1), (900 - 3, 10)]


@pytest.mark.parametrize("method", ["place", "attend"])
@pytest.mark.parametrize(("length", "tokens"), PLACES)
@errors
@pytest.mark.parametrize(("tier", "storage"), ENGINES[-2:])
def test_a_step_that_fails(
    tier: str, storage: str, error: BaseException, length: int, tokens: int, method: str
) -> None:
    spec = small(storage=storage)
    mirror, never = (Mirror(spec, tier).grow(length) for _ in range(2))
    q, k, v = mirror.draw(0, tokens)
    fails(mirror, lambda: mirror.session.step(0, q, k * 100, v * 1e6), error, method, 0)
    assert_same_answers(mirror.step(0, q, k, v), never.step(0, q, k, v), "the step again")
    mirror.check_stored()


@pytest.mark.parametrize("after", range(6))
@pytest.mark.parametrize("length", [0, 100, 259, 700])
@errors
def test_all_layers_in_many_pieces(error: BaseException, length: int, after: int) -> None:
    """Neither the layers before the error nor the pieces before it stay."""
    mirror = Mirror(small()).grow(length)
    q, k, v = mirror.draw_stack(range(2), 400)
    fails(mirror, lambda: mirror.session.step_all(q, k, v), error, "attend", after % 4)
    fails(mirror, lambda: mirror.session.append_all(k, v), error, "place", after)
    mirror.session.step_all(q, k, v)
    for layer in range(2):
        mirror.note(layer, k[layer], v[layer])
    mirror.check_stored()


@pytest.mark.parametrize("after", [0, 1, 20])
@errors
def test_one_layer_in_many_pieces(error: BaseException, after: int) -> None:
    """The pieces have gone round the ring more than once before one fails."""
    mirror = Mirror(small(layers=1)).grow(300)
    q, k, v = mirror.draw(0, 700)
    fails(mirror, lambda: mirror.session.step(0, q, k, v), error, "attend", after)
    mirror.step(0, q, k, v)
    mirror.check_stored()
    mirror.check_attend(0, 30, 970)


def test_what_was_undone_before_stays_undone() -> None:
    """A call fails over slots that hold tokens which a truncate took off."""
    mirror = Mirror(small()).grow(635)
    for _ in range(2):
        mirror.grow(645).truncate(637)  # a page begins at 643
        q, k, v = mirror.draw(1, 10)
        fails(mirror, lambda q=q, k=k, v=v: mirror.session.step(1, q, k, v), ERRORS[0], "attend", 0)
        mirror.check_stored()
    mirror.grow(700).check_stored()


def steps_of(mirrors: list[Mirror], tokens: int) -> list[Step]:
    return [Step(mirror.session, 0, *mirror.draw(0, tokens)) for mirror in mirrors]


@pytest.mark.parametrize("tokens", [1, 10])
@pytest.mark.parametrize("error", ERRORS[:2], ids=["MemoryError", "Fault"])
def test_a_batch_whose_attention_fails_for_one(error: BaseException, tokens: int) -> None:
    """The third fails with the others and alone; those have their answers, to the bit."""
    mirrors = [Mirror(small(), seed=seed).grow(250 + 3 * seed) for seed in range(5)]
    alone = [Mirror(small(), seed=seed).grow(250 + 3 * seed) for seed in range(5)]

    steps, before = steps_of(mirrors, tokens), mirrors[2].state()
    real = mirrors[2].session._kernels
    refusing = Refusing(real, mirrors[2].arena.base, error)
    for mirror in mirrors:
        mirror.session._kernels = refusing
    results = run_steps(steps)
    for mirror in mirrors:
        mirror.session._kernels = real
    assert results[2] is error
    assert mirrors[2].state() == before
    for number in (0, 1, 3, 4):
        step, result = steps[number], results[number]
        assert isinstance(result, StepResult)
        want = alone[number].session.step(0, step.q, step.k, step.v, return_lse=True)
        assert_same_answers((result.out, result.lse), want, f"step {number}")
        mirrors[number].note(0, step.k, step.v)
        mirrors[number].check_stored()
    again = run_steps(steps[2:3])[0]
    assert isinstance(again, StepResult)


def test_an_interrupted_batch_has_changed_no_stream() -> None:
    mirrors = [Mirror(small(layers=layers), seed=layers).grow(300) for layers in (1, 2, 3)]
    steps = steps_of(mirrors, 9)
    steps[0] = Step(mirrors[0].session, 0, *mirrors[0].draw(0, 300))  # in pieces, at once
    before = [mirror.state() for mirror in mirrors]
    real = mirrors[1].session._kernels
    for mirror in mirrors[1:]:
        mirror.session._kernels = Failing(real, "attend", 0, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run_steps(steps)
    for mirror in mirrors:
        mirror.session._kernels = real
    assert [mirror.state() for mirror in mirrors] == before
    assert all(isinstance(result, StepResult) for result in run_steps(steps))


_FORKED = """
import os, numpy as np
from rondel.decoder import pool
from rondel.decoder.batch import Step, run_steps
from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import ForkedProcess
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec
spec = StreamSpec.uniform(layers=2, query_heads=4, kv_heads=4, head_dim=64, window=1024, reserve=8)
session = DecoderSession(spec, Arena(budget=64 << 20))
x = np.ones((1280, 4, 64), np.float32)
for layer in (0, 1):
    session.append(layer, x, x)
pool.set_threads(3)
session.attend(0, x[:1])

def state():
    k, v = session.read(0, session.length - 1152, session.length)
    return session.stats(), session.layer_length(0), k.tobytes(), v.tobytes()

if os.fork() == 0:
    before = state()
    try:
        session.step(0, x[:1], x[:1] * 2, x[:1])
    except ForkedProcess:
        pass
    else:
        os._exit(1)
    (error,) = run_steps([Step(session, 0, x[:1], x[:1] * 2, x[:1])])
    if not isinstance(error, ForkedProcess):
        os._exit(2)
    os._exit(0 if state() == before else 3)
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_a_step_in_a_forked_process_changes_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FORKED],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "0", done.stderr
