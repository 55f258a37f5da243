"""Sixty-four streams in one Step, beside as many unary calls at the same time; and both of the bare echo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

import grpc.aio

from service import echo
from service.drive import Send, together, unary
from service.work import STEP, Steps, check, close_streams, open_streams
from shapes import Shape
from timing import Timing, ratio

STREAMS: Final = 64
_EACH: Final = 5
"""Batches of each kind in a round."""


@dataclass(slots=True)
class Batching:
    """Seconds of a batch of all streams, one sample a round."""

    calls: Timing = field(default_factory=Timing)
    step: Timing = field(default_factory=Timing)
    echo_calls: Timing = field(default_factory=Timing)
    echo_step: Timing = field(default_factory=Timing)

    @property
    def gain(self) -> float:
        """How many times faster one Step is."""
        return ratio(self.calls, self.step)

    @property
    def echo_gain(self) -> float:
        """How many times faster one large echo is."""
        return ratio(self.echo_calls, self.echo_step)

    @property
    def over_echo(self) -> float:
        """Of what gRPC offers, the share that is had: the median of the rounds' ratios."""
        pairs = zip(self.calls.wall, self.step.wall, self.echo_calls.wall, self.echo_step.wall, strict=True)
        shares = Timing(wall=[calls / step / (echoes / one) for calls, step, echoes, one in pairs])
        return shares.us / 1e6


async def measure(rondel: grpc.aio.Channel, bare: grpc.aio.Channel, shape: Shape, rounds: int) -> Batching:
    """All four in turns.

    Raises:
        SystemExit: a step failed.
    """
    streams, steps, found = await open_streams(rondel, shape, STREAMS), Steps(shape), Batching()
    step, plain = unary(rondel, STEP), unary(bare, echo.UNARY)
    one, whole = [await _echo_of(step, steps.request(part)) for part in (streams[:1], streams)]
    for _ in range(rounds):
        found.calls.wall.append(await _median(step, [steps.each(streams) for _ in range(_EACH)]))
        found.step.wall.append(await _median(step, [[steps.request(streams)] for _ in range(_EACH)]))
        found.echo_calls.wall.append(await _median(plain, [[one] * STREAMS] * _EACH))
        found.echo_step.wall.append(await _median(plain, [[whole]] * _EACH))
    check(await step(steps.request(streams)))  # a failed step would have been a fast one
    await close_streams(rondel, streams)
    return found


async def _echo_of(step: Send, request: bytes) -> bytes:
    """A request to the echo that has as many bytes both ways."""
    reply = await step(request)
    check(reply)
    return echo.request(len(request), len(reply))


async def _median(send: Send, batches: Sequence[Sequence[bytes]]) -> float:
    return median([await together(send, batch) for batch in batches])
