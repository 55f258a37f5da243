"""A client of a simulation: does a few things with a few streams."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from sim_asker import AGAIN, FULL, GONE, Asker, Lost
from sim_decoder import Conversation
from sim_properties import hold
from sim_stream import SPECS, Known

from rondel.decoder.errors import StaleGeneration
from rondel.v1 import attention_pb2 as pb
from rondel.v1.specs import spec_to_message

MOST = 60
"""Tokens of a stream."""


@dataclass
class Passage:
    """Tokens on their way through the layers of a stream."""

    stream: Known
    tokens: list[int]
    layer: int = 0


class Client(Asker):
    """Opens streams and does with them what comes to its mind."""

    async def run(self) -> None:
        """From its coming to its end. It may leave streams behind."""
        rng = self._rng
        await asyncio.sleep(rng.uniform(0, 0.05))
        for _ in range(self._plan.operations):
            try:
                await self._operation()
            except Lost:
                self._streams = [each for each in self._streams if not self._is_gone(each)]
            if self._plan.idle and rng.random() < 0.15:
                await asyncio.sleep(rng.uniform(0, self._plan.idle))
        for stream in list(self._streams):
            try:
                await self._last(stream)
            except Lost:
                self._streams.remove(stream)

    async def _operation(self) -> None:
        rng, streams = self._rng, self._streams
        if not streams or (len(streams) < 3 and rng.random() < 0.15):
            await self._open()
            return
        stream = rng.choice(streams)
        match rng.choices(
            ("step", "append", "attend", "truncate", "fork", "get", "close"), (6, 4, 3, 1.5, 1, 1, 0.5)
        )[0]:
            case "step":
                await self._step(rng.sample(streams, rng.randint(1, len(streams))))
            case "append" if len(stream.tokens) < MOST:
                tokens = self._new(rng.randint(1, 5))
                await self._change(stream, stream.append, tokens)
            case "attend" if stream.tokens:
                await self._attend(stream)
            case "truncate" if stream.tokens:
                await self._truncate(stream)
            case "fork" if len(streams) < 4:
                await self._fork(stream)
            case "close":
                await self._close(stream)
            case _:
                await self._look(stream)

    async def _last(self, stream: Known) -> None:
        """Looks at the whole stream, and closes it, or leaves it to its lease."""
        await self._look(stream)
        if self._rng.random() < 0.7:
            await self._close(stream)

    # --- what can be done with streams ----------------------------------------------------------------

    async def _open(self) -> None:
        spec = self._rng.choice(SPECS)
        request = pb.OpenStreamRequest(spec=spec_to_message(spec), request_id=self._name())
        reply = await self._ask("open_stream", request)
        if not isinstance(reply, FULL):
            self._streams.append(Known.opened(self._fine(reply), spec, self._simulation.twins))

    async def _fork(self, stream: Known) -> None:
        while True:
            request = pb.ForkStreamRequest(
                stream=stream.ref,
                generation=stream.generation,
                length=len(stream.tokens),
                request_id=self._name(),
            )
            reply = await self._ask("fork_stream", request)
            if isinstance(reply, StaleGeneration):
                await self._resume(stream, [])
            elif isinstance(reply, FULL):
                return
            else:
                self._streams.append(stream.forked(self._fine(reply, stream).stream))
                return

    async def _step(self, streams: list[Known]) -> None:
        """New tokens through all layers of all these streams, the streams that are as far in one request."""
        under_way = [
            Passage(stream, self._new(self._rng.randint(1, 3)))
            for stream in streams
            if len(stream.tokens) < MOST
        ]
        if self._rng.random() < 0.4:
            await self._converse([(each.stream, each.tokens) for each in under_way])
            return
        while under_way:
            layer = min(each.layer for each in under_way)
            some = [each for each in under_way if each.layer == layer]
            request = pb.StepRequest(layer=layer, items=[each.stream.item(each.tokens) for each in some])
            reply = self._fine(await self._ask("step", request))
            for each, result in zip(some, reply.results, strict=True):
                if await self._stepped(each, result):
                    under_way.remove(each)

    async def _converse(self, pending: list[tuple[Known, list[int]]]) -> None:
        """The same in Decode calls, one after the other until all tokens are stored."""
        while pending := [each for each in pending if each[1]]:
            wire = self._simulation.converse(self._tenant)
            if wire is not None:
                conversation = Conversation(wire, self._rng, self._name())
                for handle, result in (await conversation.run(pending)).items():
                    error = self._simulation.error_of(result.status)
                    if isinstance(error, GONE):
                        stream = next(stream for stream, _ in pending if stream.ref.handle == handle)
                        self._gone(stream)
                        self._streams.remove(stream)
                        pending = [each for each in pending if each[0] is not stream]
                    elif not isinstance(error, AGAIN):
                        raise error
                self._simulation.tally.note("conversations")
            await asyncio.sleep(self._rng.expovariate(1 / (self._plan.delay + self._plan.work)))

    async def _stepped(self, passage: Passage, result: pb.StepResult) -> bool:
        """Whether there is nothing left to do for the stream: it has all the tokens, or was ended."""
        stream, tokens = passage.stream, passage.tokens
        if result.status.code == 0:
            stream.stepped(passage.layer, tokens, result)
            passage.layer += 1
            if passage.layer < stream.spec.layers:
                return False
            stream.tokens += tokens
            return True
        error = self._simulation.error_of(result.status)
        if isinstance(error, GONE):
            self._gone(stream)
            self._streams.remove(stream)
            return True
        if isinstance(error, StaleGeneration):
            try:
                if await self._resume(stream, tokens):
                    return True
            except Lost:
                self._streams.remove(stream)
                return True
            passage.layer = 0  # all layers were rolled back to what every one had
        elif not isinstance(error, AGAIN):
            raise error
        return False

    async def _change(self, stream: Known, make: Any, tokens: list[int]) -> None:
        while True:
            reply = await self._ask("append_token", make(tokens))
            if isinstance(reply, StaleGeneration):
                if await self._resume(stream, tokens):
                    return
                continue
            stream.told(self._fine(reply, stream).committed_length)
            stream.appended(tokens)
            return

    async def _attend(self, stream: Known) -> None:
        layer = self._rng.randrange(stream.spec.layers)
        queries = self._new(self._rng.randint(1, min(3, len(stream.tokens))))
        while True:
            reply = await self._ask("attend", stream.attend(queries, layer))
            if isinstance(reply, StaleGeneration):
                await self._resume(stream, [])
                continue
            stream.attended(queries, layer, self._fine(reply, stream))
            return

    async def _truncate(self, stream: Known) -> None:
        length = max(0, len(stream.tokens) - self._rng.randint(1, 4))
        while True:
            generation = stream.generation
            request = pb.TruncateStreamRequest(
                stream=stream.ref, generation=generation, length=length, request_id=self._name()
            )
            reply = await self._ask("truncate_stream", request)
            if isinstance(reply, StaleGeneration):
                # The server may have done it, and then begun anew and forgotten who had asked for it.
                seen = self._fine(
                    await self._ask("get_stream", pb.GetStreamRequest(stream=stream.ref)), stream
                )
                if seen.committed_length == length:
                    stream.cut(length)
                stream.restarted(seen, [])
                if len(stream.tokens) == length:
                    return
                continue
            stream.generation = self._fine(reply, stream).generation
            stream.cut(length)
            return

    async def _look(self, stream: Known) -> None:
        """Asks what the stream is, and looks at what it really is, while nothing is under way."""
        reply = await self._ask("get_stream", pb.GetStreamRequest(stream=stream.ref))
        reply = self._fine(reply, stream)
        if reply.generation != stream.generation:
            stream.restarted(reply, [])
        session = self._simulation.session(stream.ref.handle)
        if session is not None:
            stream.check(session)

    async def _close(self, stream: Known) -> None:
        request = pb.CloseStreamRequest(stream=stream.ref, request_id=self._name())
        reply = await self._ask("close_stream", request)
        self._streams.remove(stream)
        if isinstance(reply, GONE):
            return  # a restart forgets who has closed what
        hold(
            "exactly-once",
            self._fine(reply).committed_length == len(stream.tokens),
            f"closed at {reply.committed_length} tokens, sent were {len(stream.tokens)}",
        )

    async def _resume(self, stream: Known, pending: list[int]) -> bool:
        """Asks what a server that has begun anew has of a stream; whether it has the pending tokens."""
        request = pb.GetStreamRequest(stream=stream.ref)
        return stream.restarted(self._fine(await self._ask("get_stream", request), stream), pending)
