"""Steps in a Decode call, beside a bidirectional call of the bare echo that carries as many bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

import grpc.aio

from rondel.v1 import attention_pb2 as pb
from service import echo
from service.drive import Bidirectional, latencies, pipelined
from service.native import Local
from service.work import DECODE, Remote, Steps, close_streams, open_streams
from shapes import Shape
from timing import Timing

CALLS: Final = 8
"""Calls at a time where throughput is measured, each with a stream of its own."""
_EXCHANGES: Final = 60
ON_THE_WAY: Final = 30
"""Steps that each of those calls has on the way at once."""


@dataclass(slots=True)
class Decoding:
    """Seconds of a step, one sample a round: one at a time, and with many on the way."""

    step: Timing = field(default_factory=Timing)
    echo: Timing = field(default_factory=Timing)
    kernel: Timing = field(default_factory=Timing)
    many: Timing = field(default_factory=Timing)
    echo_many: Timing = field(default_factory=Timing)
    kernel_many: Timing = field(default_factory=Timing)
    """As many streams in turns: their caches are not all near the processor."""

    @property
    def p50_over_echo(self) -> float:
        """A step's time over that of an echo and the kernels: the median of the rounds' ratios."""
        rounds = zip(self.step.wall, self.echo.wall, self.kernel.wall, strict=True)
        return median(step / (bare + kernel) for step, bare, kernel in rounds)

    @property
    def throughput_over_echo(self) -> float:
        """Steps a second over what echoes and kernels would allow."""
        rounds = zip(self.many.wall, self.echo_many.wall, self.kernel_many.wall, strict=True)
        return median((bare + kernel) / step for step, bare, kernel in rounds)


class _Lane:
    """A Decode call with one stream."""

    def __init__(self, channel: grpc.aio.Channel, stream: Remote, steps: Steps) -> None:
        self._stream = stream
        self._steps = steps
        self._sent = 0
        self._received = 0
        self._generation = 0
        self.call = Bidirectional(channel, DECODE)

    async def begin(self) -> None:
        """Waits for the server's first word and takes the stream over."""
        await self.call.read()
        operation = self._operation(attach=pb.AttachStreamRequest(stream=self._stream.ref))
        operation.stream_ref = 1
        reply = await self.call.exchange(pb.DecodeRequest(operations=[operation]).SerializeToString())
        self._generation = pb.DecodeResponse.FromString(reply).results[0].attach.stream.generation

    def requests(self, count: int) -> list[bytes]:
        """So many steps, each in a message of its own; what was sent before is said to be received."""
        before = self._sent
        return [self._request(before) for _ in range(count)]

    def _request(self, received: int) -> bytes:
        item = self._steps.item(self._stream)
        item.ClearField("stream")
        item.stream_ref, item.generation = 1, self._generation
        operation = self._operation(step=pb.StepRequest(items=[item]))
        request = pb.DecodeRequest(operations=[operation], received_op_id=received)
        return request.SerializeToString()

    def _operation(self, **what: pb.AttachStreamRequest | pb.StepRequest) -> pb.DecodeOperation:
        self._sent += 1
        return pb.DecodeOperation(op_id=self._sent, **what)  # type: ignore[arg-type]


async def measure(rondel: grpc.aio.Channel, bare: grpc.aio.Channel, shape: Shape, rounds: int) -> Decoding:
    """All in turns.

    Raises:
        SystemExit: a step failed.
    """
    streams, steps, found = await open_streams(rondel, shape, CALLS), Steps(shape), Decoding()
    lanes = [_Lane(rondel, stream, steps) for stream in streams]
    for lane in lanes:
        await lane.begin()
    echoes = [Bidirectional(bare, echo.STREAM) for _ in lanes]
    (request,) = lanes[0].requests(1)
    reply = await lanes[0].call.exchange(request)
    _check(reply)
    same = echo.request(len(request), len(reply))
    local = Local(shape, CALLS)
    for _ in range(rounds):
        found.kernel.wall.append(local.median_of(1, _EXCHANGES)[1])
        found.step.wall.append(median(await latencies(lanes[0].call.exchange, lanes[0].requests(_EXCHANGES))))
        found.echo.wall.append(median(await latencies(echoes[0].exchange, [same] * _EXCHANGES)))
        all_steps = [(lane.call, lane.requests(ON_THE_WAY)) for lane in lanes]
        found.many.wall.append(await _each(all_steps, _results))
        found.echo_many.wall.append(await _each([(call, [same] * ON_THE_WAY) for call in echoes], _one))
        found.kernel_many.wall.append(local.median_of(CALLS, ON_THE_WAY)[1] / CALLS)
    _check(await lanes[0].call.exchange(lanes[0].requests(1)[0]))  # a failed step would have been a fast one
    local.close()
    for call in (*(lane.call for lane in lanes), *echoes):
        await call.end()
    await close_streams(rondel, streams)
    return found


async def _each(
    lanes: Sequence[tuple[Bidirectional, Sequence[bytes]]], answers: Callable[[bytes], int]
) -> float:
    return await pipelined(lanes, answers) / sum(len(requests) for _, requests in lanes)


def _one(_: bytes) -> int:
    return 1


def _results(reply: bytes) -> int:
    return len(pb.DecodeResponse.FromString(reply).results)


def _check(reply: bytes) -> None:
    """Raises SystemExit unless the reply has one step's output."""
    for result in pb.DecodeResponse.FromString(reply).results:
        for item in result.step.results:
            if not item.status.code and item.out.data:
                return
            raise SystemExit(f"wrong answer: {item.status.message or 'no output'}")
    raise SystemExit("wrong answer: no result of a step")
