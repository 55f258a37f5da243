"""The streams of ``stream_machine.py`` in a file, whose owner ends or is killed now and then.

A process that is killed between two calls is played by one that lets go of its file and never stores anything
again; one that is killed within a call by a copy of the file as it was at one of the call's crash points.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from families import check_gauges
from hypothesis import strategies as st
from hypothesis.stateful import rule
from mirror import Mirror
from oracle import TIERS, Floats
from stream_machine import StreamMachine

from rondel.decoder.attach import attach
from rondel.decoder.cache import crash
from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import RondelError
from rondel.decoder.session import DecoderSession

BUDGET = 32 << 20
How = tuple[str, bool]
HOW = st.tuples(st.sampled_from(["full", "tail"]), st.booleans())
"""How much is looked at at a start, and whether lazily."""


class Past:
    """What a mirror was before a call."""

    def __init__(self, mirror: Mirror) -> None:
        self.k, self.v = ([list(tokens) for tokens in lists] for lists in (mirror.k, mirror.v))
        self.claimed, self.generation = list(mirror.claimed), mirror.generation
        self.length, self.session = mirror.length, mirror.session

    def meet(self, mirror: Mirror, found: DecoderSession, *, calls: int) -> None:
        """Make the mirror what a file has: of one call all or nothing, of several the first ones."""
        least, most = sorted((self.length, mirror.length))
        assert least <= found.length <= most
        assert calls > 1 or found.length in (least, most)
        if self.length > mirror.length:  # a truncate that may not be there
            mirror.k, mirror.v = self.k, self.v
        for tokens in (*mirror.k, *mirror.v):
            del tokens[max(found.length, least) :]
        claimed = [found._extent.claimed(layer) for layer in range(mirror.spec.layers)]
        for was, got, became in zip(self.claimed, claimed, mirror.claimed, strict=True):
            assert was <= got <= became
        assert self.generation < found.generation <= mirror.generation + 1
        mirror.claimed, mirror.generation = claimed, found.generation - 1


class FileStreamMachine(StreamMachine):
    """Every stream goes on as if its owner had lived on, but for what only some of its layers had."""

    budget = BUDGET

    def new_arena(self) -> Arena:
        self.folder = TemporaryDirectory()
        self.path = Path(self.folder.name) / "arena"
        return Arena(BUDGET, path=self.path)

    @property
    def mirrors(self) -> list[Mirror]:
        return [self.mirror, *self.others]

    @rule(killed=st.booleans(), how=HOW, tier=st.sampled_from(TIERS))
    def end_and_attach(self, killed: bool, how: How, tier: str) -> None:
        gone, before = self.mirror, self.arena.stats()
        if killed:
            self._let_go()
        else:
            self.arena.close()
        with pytest.raises(RondelError):  # whoever still has the session
            gone.session.truncate(gone.length)
        found = self._attach(how, tier)
        assert set(found) == {each.tag for each in self.mirrors}
        for mirror in self.mirrors:
            mirror.go_on(found[mirror.tag], self.arena, tier)
        assert self.arena.stats() == before

    @rule(
        data=st.data(),
        name=st.sampled_from(["append", "grow", "append_all", "truncate", "fork", "close"]),
        moment=st.integers(1, 8) | st.integers(0, 40),
        how=HOW,
        tier=st.sampled_from(TIERS),
    )
    def die_within_a_call(self, data: st.DataObject, name: str, moment: int, how: How, tier: str) -> None:
        mirrors = {each.tag: each for each in self.mirrors}
        past, self.closing = {tag: Past(each) for tag, each in mirrors.items()}, b""
        with copied_at(moment, self.path) as copy:
            getattr(self, f"_{name}")(data)
        mirrors |= {each.tag: each for each in self.mirrors}
        self._let_go()
        os.replace(copy, self.path)
        found = self._attach(how, tier)
        assert set(past) - {self.closing} <= set(found) <= set(mirrors)
        for tag, mirror in mirrors.items():
            if tag in found and tag in past:
                past[tag].meet(mirror, found[tag], calls=2 if name == "grow" else 1)
            if tag in found:
                mirror.go_on(found[tag], self.arena, tier)
                mirror.check_stored()
        here = [each for tag, each in mirrors.items() if tag in found]
        self.mirror, self.others = here[0], here[1:]

    def _let_go(self) -> None:
        assert self.arena.file is not None
        self.arena.file.forget()

    def _attach(self, how: How, tier: str) -> dict[bytes, DecoderSession]:
        self.arena = Arena(BUDGET, path=self.path)
        streams = attach(self.arena, verify=how[0], lazily=how[1], tier=tier)
        assert [each.reason for each in streams] == [""] * len(streams)
        sessions = {each.tag: each.session for each in streams if each.session is not None}
        check_gauges(self.arena, sessions.values())
        return sessions

    # --- calls to die within: sound ones only -----------------------------------------------------------

    def _append(self, data: st.DataObject) -> None:
        layer = self._layer(data)
        tokens = self._tokens(data, layer)
        if self.mirror.refusal_of_append([layer], tokens) is None:
            self.mirror.append(layer, *self.mirror.draw(layer, tokens)[1:])

    def _grow(self, data: st.DataObject) -> None:
        self.grow_by(self._tokens(data, 0))

    def _append_all(self, data: st.DataObject) -> None:
        mirror, layers = self.mirror, range(self.mirror.spec.layers)
        # A call for more than 512 tokens is carried out in pieces even where nothing wraps.
        tokens = 600 if data.draw(st.booleans(), label="long") else self._tokens(data, 0)
        if not mirror.spec.same_shape(layers) or mirror.refusal_of_append(layers, tokens) is not None:
            return
        k: Floats
        _, k, v = mirror.draw_stack(layers, tokens)
        mirror.session.append_all(k, v)
        for layer in layers:
            mirror.note(layer, k[layer], v[layer])

    def _truncate(self, data: st.DataObject) -> None:
        least = max(self.mirror.min_length, self.mirror.origin)
        self.mirror.truncate(data.draw(st.integers(least, self.mirror.length), label="length"))

    def _fork(self, data: st.DataObject) -> None:
        if len(self.others) < 4:
            most = data.draw(st.sampled_from([None, 0, 1, 70]), label="most")
            self.others.append(self.mirror.fork(most, tag=self.new_tag()))

    def _close(self, data: st.DataObject) -> None:
        if self.others:
            self.mirror.session.close()
            self.closing, self.mirror = self.mirror.tag, self.others.pop(0)

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "mirror"):
            self.arena.close()
            self.folder.cleanup()


@contextmanager
def copied_at(moment: int, path: Path) -> Iterator[Path]:
    """A copy of a file as it is at that crash point within the block, or at its end if there are fewer."""
    copy, left = path.with_name("copy"), moment

    def crash_point(name: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            shutil.copyfile(path, copy)

    before, crash.crash_point = crash.crash_point, crash_point
    try:
        yield copy
    finally:
        crash.crash_point = before
    if left > 0 or moment == 0:
        shutil.copyfile(path, copy)
