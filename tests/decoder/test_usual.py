"""Usual calls, which go a shorter way: to the byte what the general way makes of them, refusals included."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from deeds import Streams, carry_out, draw, tokens
from families import SPECS, grouped

from rondel.decoder.batch import Step, StepResult, run_steps
from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import RondelError
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec
from rondel.decoder.usual import UsualCalls

Make = Callable[[str], Arena]


@pytest.fixture(params=["memory", "file"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    def arena(name: str) -> Arena:
        return Arena(32 << 20, path=None if request.param == "memory" else tmp_path / name)

    return arena


def life(arena: Arena, seed: int) -> list[object]:
    """What happens in a random life full of single steps, in all detail."""
    rng, streams, seen = np.random.default_rng(seed), Streams(), list[object]()
    for number in range(60):
        deed = draw(rng, streams, number, crowd=3)
        seen.append(deed)
        try:
            carry_out(deed, streams, arena)
        except RondelError as error:
            seen.append(str(error))
        for _ in range(int(rng.integers(0, 40))):
            step_all(rng, streams, seen)
            ask(rng, streams, seen)
        seen += [digest(session) for session in streams.values()]
        seen.append(arena.stats())
    for session in streams.values():
        session.close()
    return seen


def step_all(rng: np.random.Generator, streams: Streams, seen: list[object]) -> None:
    """A token for a layer of each stream, mostly the one that is next, sometimes any."""
    steps = []
    for session in streams.values():
        levels = [session.layer_length(layer) for layer in range(session.spec.layers)]
        layer = int(np.argmin(levels)) if rng.random() < 0.9 else int(rng.integers(len(levels)))
        q, k, v = tokens(rng, session, layer, 1)
        if rng.random() < 0.02:
            k[0, 0, 0] = np.nan
        if rng.random() < 0.02:
            v = v[..., :-1]
        steps.append(Step(session, layer, q, k, v))
    if rng.random() < 0.5:
        seen += [
            (each.out.tobytes(), each.lse.tobytes()) if isinstance(each, StepResult) else str(each)
            for each in run_steps(steps)
        ]
        return
    for step in steps:
        try:
            out, lse = step.session.step(step.layer, step.q, step.k, step.v, return_lse=True)
            seen.append((out.tobytes(), lse.tobytes()))
        except RondelError as error:
            seen.append(str(error))


def ask(rng: np.random.Generator, streams: Streams, seen: list[object]) -> None:
    """Rows anywhere in a layer, and beyond it."""
    session = streams[str(rng.choice(list(streams)))] if streams else None
    if session is None:
        return
    layer, rows = int(rng.integers(session.spec.layers)), int(rng.integers(0, 4))
    q, _, _ = tokens(rng, session, layer, rows)
    length = session.layer_length(layer)
    position = None if rng.random() < 0.5 else int(rng.integers(-1, length + 2))
    if rng.random() < 0.02:
        q = q.astype(np.float64)  # type: ignore[assignment]
    try:
        out, lse = session.attend(layer, q, position=position, return_lse=True)
        seen.append((out.tobytes(), lse.tobytes()))
    except RondelError as error:
        seen.append(str(error))


def digest(session: DecoderSession) -> tuple[int, str]:
    to = BytesIO()
    session.snapshot(to)
    return session.high_water, sha256(to.getvalue()).hexdigest()


@pytest.mark.parametrize("seed", range(4))
def test_a_life_is_the_same_by_either_way(make: Make, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = 0
    begin = UsualCalls.begin

    def counted(self: UsualCalls, *arguments: object) -> object:
        nonlocal usual
        step = begin(self, *arguments)  # type: ignore[arg-type]
        usual += step is not None
        return step

    monkeypatch.setattr(UsualCalls, "begin", counted)
    arena = make("usual")
    seen = life(arena, seed)
    arena.close()
    assert usual > 300
    monkeypatch.setattr(UsualCalls, "begin", lambda *_: None)
    monkeypatch.setattr(UsualCalls, "attend", lambda *_: None)
    arena = make("general")
    for mine, general in zip(seen, life(arena, seed), strict=True):
        assert mine == general
    arena.close()


UNPLACED = grouped({"layers": (0,), "causal": False}, max_length=100)


@pytest.mark.parametrize(
    ("spec", "held", "count", "usual"),
    [
        (SPECS["ring"], 1, 1, True),
        (SPECS["ring"], 1, 2, False),
        (SPECS["ring"], 0, 1, False),
        (SPECS["ring"], 131, 1, False),
        (SPECS["ring"], 259, 1, False),
        (SPECS["ring"], 260, 1, True),
        (UNPLACED, 1, 1, False),
    ],
    ids=[
        "usual",
        "two tokens",
        "first page",
        "next page",
        "an old page",
        "after it",
        "rows without position",
    ],
)
def test_which_steps_are_usual(spec: StreamSpec, held: int, count: int, usual: bool) -> None:
    """Whatever is not is left to the general way with nothing changed; and what is can be taken back."""
    session, rng = DecoderSession(spec, Arena(32 << 20)), np.random.default_rng(0)
    if held:
        session.append_all(*(np.stack([x] * spec.layers) for x in tokens(rng, session, 0, held)[1:]))
    before = session.stats()
    step = session._usual.begin(0, *tokens(rng, session, 0, count), session._kernels, [])
    assert (step is not None) is usual
    if step is not None:
        step.restore()
    assert session.stats() == before
