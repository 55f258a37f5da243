"""A stream and its forks under any sequence of calls, beside plain lists that say what is right."""

from __future__ import annotations

import io
import math
from typing import Any

from comparators import assert_same_bits
from families import assert_empty, check_gauges, record_bytes
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from mirror import Mirror, Refusal, refused
from oracle import STORAGES, TIERS

from rondel.decoder.cache.arena import Arena
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import LayerGroup, StreamSpec

BUDGET = 48 << 20
STARTS = st.sampled_from([0, 1, 130, 255, 300, 420, 650])  # also streams that have wrapped already


@st.composite
def specs(draw: st.DrawFn) -> StreamSpec:
    """One to three groups over one to four layers; windows short enough to wrap, or none."""
    layers = draw(st.permutations(range(draw(st.integers(1, 4)))))
    kv_heads, ratio = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    dims = st.integers(1, 20)
    shared = draw(st.booleans())  # all layers of one shape can be stacked
    shape = (kv_heads, draw(dims), draw(dims))
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(layers) - 1)), max_size=2)))
    groups = []
    for start, end in zip([0, *cuts], [*cuts, len(layers)], strict=True):
        if start == end:
            continue
        heads, key_dim, value_dim = shape if shared else (draw(st.integers(1, 2)), draw(dims), draw(dims))
        window = draw(st.sampled_from([None, 1, 2, 31, 60, 127, 128, 140]))
        groups.append(
            LayerGroup(
                layers=tuple(sorted(layers[start:end])),
                query_heads=heads * ratio,
                kv_heads=heads,
                key_dim=key_dim,
                value_dim=value_dim,
                window=window,
                sinks=draw(st.sampled_from([0, 1, 4, 17])) if window else 0,
                reserve=draw(st.sampled_from([0, 1, 9, 64])) if window else 0,
                storage=draw(st.sampled_from(STORAGES)),
            )
        )
    bounded = any(group.window is None for group in groups)
    limits = [1200] if bounded else [None, 700]
    return StreamSpec(groups=tuple(groups), max_length=draw(st.sampled_from(limits)))


class StreamMachine(RuleBasedStateMachine):
    """The plain lists are in ``mirror``; they also say which calls must be refused, and how."""

    budget = BUDGET
    mirror: Mirror

    @initialize(spec=specs(), tier=st.sampled_from(TIERS), seed=st.integers(0, 2**32 - 1), start=STARTS)
    def open(self, spec: StreamSpec, tier: str, seed: int, start: int) -> None:
        self.arena, self.streams = self.new_arena(), 0
        self.mirror = Mirror(spec, tier, seed, self.arena, tag=self.new_tag()).grow(start)
        self.others: list[Mirror] = []  # what was forked from it, or it from; calls go to one at a time

    def new_arena(self) -> Arena:
        return Arena(budget=self.budget)

    def new_tag(self) -> bytes:
        self.streams += 1
        return b"%d" % self.streams

    # --- choosing -------------------------------------------------------------------------------------

    def _group(self, layer: int) -> LayerGroup:
        return self.mirror.spec.group(layer)

    def _layer(self, data: st.DataObject) -> int:
        return data.draw(st.integers(0, self.mirror.spec.layers - 1), label="layer")

    def _tokens(self, data: st.DataObject, layer: int) -> int:
        W, R = self._group(layer).window or 50, self._group(layer).reserve
        return data.draw(st.sampled_from([0, 1, 3, R, R + 1, R + 2, W - 1, W, W + 1, 3 * W]), label="tokens")

    def _expect(self, refusal: Refusal, call: Any) -> Any:
        if refusal is None:
            return call()
        with refused(self.mirror, refusal):
            call()
        return None

    # --- calls ----------------------------------------------------------------------------------------

    @rule(data=st.data())
    def grow(self, data: st.DataObject) -> None:
        """All layers by the same number, as a caller that loops over layers does it."""
        self.grow_by(self._tokens(data, 0))

    def grow_by(self, tokens: int) -> None:
        mirror = self.mirror
        level = {mirror.session.layer_length(layer) for layer in range(mirror.spec.layers)}
        limit = mirror.spec.max_length
        limit = min(mirror.quota, math.inf if limit is None else limit)
        if len(level) == 1 and mirror.length + tokens <= limit:
            mirror.grow(mirror.length + tokens)

    @rule(data=st.data(), attend=st.booleans())
    def append_or_step(self, data: st.DataObject, attend: bool) -> None:
        mirror, layer = self.mirror, self._layer(data)
        tokens, position = self._tokens(data, layer), len(mirror.k[layer])
        q, k, v = mirror.draw(layer, tokens)
        refusal = mirror.refusal_of_append([layer], tokens)
        if attend and refusal is None:
            answer = mirror.step(layer, q, k, v)
            mirror.check(layer, q, answer, position)
        elif attend:
            self._expect(refusal, lambda: mirror.session.step(layer, q, k, v))
        elif self._expect(refusal, lambda: mirror.session.append(layer, k, v)) is not None:
            mirror.note(layer, k, v)

    @rule(data=st.data())
    def attend(self, data: st.DataObject) -> None:
        """At the last positions, at the border of what is whole, or anywhere."""
        mirror, layer = self.mirror, self._layer(data)
        held, window = len(mirror.k[layer]), self._group(layer).window or 0
        border = max(0, mirror.oldest(layer) + window - 1)
        sinks = self._group(layer).sinks
        places = st.sampled_from([0, sinks - 1, sinks, held - 1, held, border, border - 1])
        places |= st.integers(-1, held + 1)
        position = data.draw(places, label="position")
        rows = data.draw(st.sampled_from([1, 2, 7, 40]), label="rows")
        q = mirror.queries(layer, rows)
        answer = self._expect(
            mirror.refusal_of_attend(layer, position, rows),
            lambda: mirror.session.attend(layer, q, position=position, return_lse=True),
        )
        if answer is not None:
            mirror.check(layer, q, answer, position)
            again = mirror.session.attend(layer, q[-1:], position=position + rows - 1)
            assert_same_bits(again, answer[0][-1:], "the last row again, alone")

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        mirror = self.mirror
        length, least = mirror.length, mirror.min_length
        lengths = st.sampled_from([least - 1, least, length - 1, length, length + 1]) | st.integers(0, length)
        # Below its origin a limited fork may not write; that is tested where what it may is spelled out.
        wanted = max(data.draw(lengths, label="length"), mirror.origin)
        refusal = mirror.refusal_of_truncate(wanted)
        if refusal is None:
            mirror.truncate(wanted)
        else:
            self._expect(refusal, lambda: mirror.session.truncate(wanted))

    @precondition(lambda self: self.mirror.spec.same_shape(range(self.mirror.spec.layers)))
    @rule(data=st.data(), attend=st.booleans())
    def append_all_or_step_all(self, data: st.DataObject, attend: bool) -> None:
        """All layers, or a run of them."""
        mirror = self.mirror
        first = self._layer(data) if data.draw(st.booleans(), label="run") else 0
        count = data.draw(st.integers(1, mirror.spec.layers - first), label="count") if first else None
        layers = list(range(first, mirror.spec.layers if count is None else first + count))
        tokens, position = self._tokens(data, first), len(mirror.k[first])
        q, k, v = mirror.draw_stack(layers, tokens)
        refusal, session = mirror.refusal_of_append(layers, tokens), mirror.session
        out: Any = None
        if attend:
            out = self._expect(refusal, lambda: session.step_all(q, k, v, first_layer=first))
        else:
            self._expect(refusal, lambda: session.append_all(k, v, first_layer=first))
        if refusal is not None:
            return
        for i, layer in enumerate(layers):
            mirror.note(layer, k[i], v[i])
        for i, layer in enumerate(layers if attend and tokens else ()):
            row = slice(tokens - 1, tokens)
            again = session.attend(layer, q[i, row], position=position + tokens - 1)
            assert_same_bits(out[i, row], again, "the last row again, alone")

    @rule(most=st.sampled_from([None, None, 0, 1, 70, 400]), stay=st.booleans())
    def fork(self, most: int | None, stay: bool) -> None:
        if len(self.others) < 4:
            self.others.append(self.mirror.fork(most, tag=self.new_tag()))
            if not stay:
                self.mirror, self.others[-1] = self.others[-1], self.mirror

    @precondition(lambda self: self.others)
    @rule(data=st.data())
    def go_on_with_another(self, data: st.DataObject) -> None:
        chosen = data.draw(st.integers(0, len(self.others) - 1), label="chosen")
        self.mirror, self.others[chosen] = self.others[chosen], self.mirror
        self.mirror.check_stored()

    @rule(spec=specs(), tier=st.sampled_from(TIERS), start=STARTS)
    def close_and_go_on_or_reopen(self, spec: StreamSpec, tier: str, start: int) -> None:
        seed = self.mirror.seed + 1
        self.mirror.session.close()
        if self.others:
            self.mirror = self.others.pop(0)
        else:
            assert_empty(self.arena)
            self.mirror = Mirror(spec, tier, seed, self.arena, tag=self.new_tag()).grow(start)

    @rule(tier=st.sampled_from(TIERS))
    def snapshot_and_restore(self, tier: str) -> None:
        """What follows is asked of the stream that was restored; it need not know."""
        mirror, file = self.mirror, io.BytesIO()
        mirror.session.snapshot(file)
        mirror.session.close()
        file.seek(0)
        mirror.session = DecoderSession.restore(file, self.arena, tier=tier, tag=mirror.tag)
        mirror.tier = tier
        mirror.quota, mirror.origin = math.inf, 0  # it has reserved all that it may come to need
        again = io.BytesIO()
        mirror.session.snapshot(again)
        assert again.getvalue() == file.getvalue()

    # --- always ---------------------------------------------------------------------------------------

    @invariant()
    def numbers_are_right(self) -> None:
        mirror, session = self.mirror, self.mirror.session
        lengths = [session.layer_length(layer) for layer in range(mirror.spec.layers)]
        assert lengths == [len(tokens) for tokens in mirror.k]
        stats, arena = session.stats(), self.arena.stats()
        got = (stats.length, stats.high_water, stats.min_length, stats.generation)
        assert got == (mirror.length, mirror.high_water, mirror.min_length, mirror.generation)
        assert got == (session.length, session.high_water, session.min_length, session.generation)
        if not self.others:
            assert stats.bytes_resident <= stats.bytes_reserved <= arena.reserved <= self.budget
            assert arena.resident == stats.bytes_resident + record_bytes(session)
        check_gauges(self.arena, [session, *(other.session for other in self.others)])

    def teardown(self) -> None:
        if hasattr(self, "mirror"):
            for mirror in (self.mirror, *self.others):
                mirror.check_stored()
                mirror.session.close()
            assert_empty(self.arena)
