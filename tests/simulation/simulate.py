"""One seed, from the first client to the last stream's end."""

from __future__ import annotations

import asyncio
import logging
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from sim_client import Client
from sim_loop import Stuck, VirtualLoop
from sim_machine import Machine
from sim_monitor import Monitor, sessions
from sim_network import Network
from sim_plan import Plan
from sim_properties import COURT, Violation, hold
from sim_tally import Tally
from sim_wire import Wire

from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import RondelError, from_reason
from rondel.decoder.session import DecoderSession
from rondel.server import attending
from rondel.v1 import attention_pb2 as pb

FOLDER = "/dev/shm" if Path("/dev/shm").is_dir() else None
_PIECE = 100
"""Multiplications between which an attend stops: with 6 tokens, one query row."""
PATIENCE = 600.0
"""Virtual seconds within which all clients come to their end."""


class Simulation:
    """Everything that there is."""

    def __init__(self, plan: Plan, path: Path, tally: Tally) -> None:
        self.plan = plan
        self.tally = tally
        self._loop = asyncio.get_running_loop()
        self._path = path
        self.network = Network(self._loop, plan)
        self.monitor = Monitor(plan, self._loop.time, tally)
        self.twins = Arena(8 << 20)
        self._rng = random.Random(f"calls {plan.seed}")
        self._starts = 0
        self._machine: Machine | None = self._start()

    async def run(self) -> None:
        """Raises Violation, or whatever goes wrong."""
        plan = self.plan
        clients = [Client(self, number, f"tenant{number % plan.tenants}") for number in range(plan.clients)]
        tasks = [self._loop.create_task(client.run()) for client in clients]
        others = [self._loop.create_task(self._faults()), self._loop.create_task(self._flood())]
        everyone = asyncio.gather(*tasks)
        await asyncio.wait((everyone, *others), timeout=PATIENCE / 10, return_when=asyncio.FIRST_EXCEPTION)
        self.network.healed = True
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        if self._machine is None:
            self._machine = self._start()
        await asyncio.wait((everyone,), timeout=PATIENCE)
        hold("answered", everyone.done(), "a client has not come to its end")
        everyone.result()
        await self._end()

    async def _end(self) -> None:
        """Nobody comes any more: the leases end what was left, and everything is given back."""
        machine = self._machine
        if machine is None:
            raise RuntimeError("the server is to be up")
        await asyncio.sleep(1.6 * self.plan.lease + 3.0)
        hold("answered", not machine.calls, f"{machine.calls} calls have no answer")
        left, reserved = len(machine.streams), machine.arena.stats().reserved
        hold("lease", left == 0, f"{left} streams that nobody uses are there")
        hold("given-back", reserved == 0, f"{reserved} bytes are reserved for no stream")
        waiting = machine.scheduler.waiting_bytes, machine.scheduler.waiting_seconds
        hold("given-back", waiting == (0, 0.0), f"{waiting} waits when nothing does")
        await machine.stop()

    def session(self, handle: str) -> DecoderSession | None:
        """The server's, if it is up."""
        return None if self._machine is None else sessions(self._machine.streams).get(handle)

    async def call(
        self, method: str, request: Message, tenant: str, timeout: float, leave: float | None
    ) -> Message | RondelError | None:
        """One request over the network; None: there was no answer in time, or its caller has left."""
        answers: asyncio.Future[Message | RondelError] = self._loop.create_future()
        deadline = self._loop.time() + timeout
        # Some callers do not say how long they wait; and that a call is over is heard sooner or later.
        told, lag = self._rng.random() < 0.8, self._rng.choice((0.001, 0.1))
        ends: list[Callable[[], None]] = []

        def arrive() -> None:
            machine = self._machine
            if machine is None:
                return
            ends.append(machine.receive(method, request, deadline if told else None, tenant, answer))
            if told:
                self._loop.call_at(deadline + lag, ends[-1])

        def answer(reply: Message | RondelError) -> None:
            self.network.send(lambda: take(reply))

        def take(reply: Message | RondelError) -> None:
            if not answers.done():
                answers.set_result(reply)
            elif not answers.cancelled():
                self.tally.note("answered twice")

        self.network.send(arrive)
        done, _ = await asyncio.wait((answers,), timeout=timeout if leave is None else leave)
        if done:
            return answers.result()
        answers.cancel()
        if leave is not None:
            for end in ends:
                self.network.send(end)
        return None

    def converse(self, tenant: str) -> Wire | None:
        """A Decode call; None: nobody takes one."""
        if self._machine is None or not self._machine.up:
            return None
        wire = Wire(self.network, self.tally)
        self._machine.converse(wire, tenant)
        return wire

    @staticmethod
    def error_of(status: status_pb2.Status) -> RondelError:
        """The error of an item."""
        info = error_details_pb2.ErrorInfo()
        status.details[0].Unpack(info)
        facts: dict[str, Any] = {
            name: int(value) if value.lstrip("-").isdecimal() else value
            for name, value in info.metadata.items()
        }
        return from_reason(info.reason, status.message, facts)

    # --- faults ---------------------------------------------------------------------------------------

    def _start(self) -> Machine:
        self._starts += 1
        return Machine(self.plan, self._path, self.monitor, self._starts)

    async def _faults(self) -> None:
        rng, plan = random.Random(f"faults {self.plan.seed}"), self.plan
        faults = ["kill"] * plan.kills + ["stop"] * plan.stops
        rng.shuffle(faults)
        for fault in faults:
            await asyncio.sleep(rng.expovariate(1 / (40 * plan.work + 10 * plan.delay)))
            machine = self._machine
            if machine is None:
                return
            if fault == "kill":
                machine.kill()
                self._machine = None
            else:
                await machine.stop()
                self._machine = None
            await asyncio.sleep(rng.choice([0.0, 0.1, 1.0]))
            self._machine = self._start()

    async def _flood(self) -> None:
        """The first tenant asks for more than can be done, about nothing that anybody has."""
        rng, plan = random.Random(f"flood {self.plan.seed}"), self.plan
        for _ in range(3 if plan.flood else 0):
            await asyncio.sleep(rng.expovariate(1 / (60 * plan.work)))
            for _ in range(plan.flood):
                request = pb.GetStreamRequest(
                    stream=pb.StreamRef(handle="nobody's " + "x" * rng.randrange(100))
                )
                calling = self.call("get_stream", request, "tenant0", 40 * plan.work, None)
                task = self._loop.create_task(calling)
                task.add_done_callback(lambda task: task.cancelled() or task.exception())


def simulate(seed: int, tally: Tally | None = None) -> Exception | None:
    """What a seed finds: a Violation, or an exception that nothing should raise. The tally is added to."""
    loop = VirtualLoop()
    COURT.open(loop.stop)
    loop.set_exception_handler(_bring)
    with (
        tempfile.TemporaryDirectory(dir=FOLDER, prefix="rondel-simulation-") as folder,
        patch.object(attending, "PIECE_PRODUCTS", _PIECE),
        patch.object(logging.getLogger("rondel.server"), "disabled", True),
    ):
        main = loop.create_task(_run(seed, Path(folder) / "arena", tally or Tally()))
        try:
            loop.run_until_complete(main)
        except Stuck:
            COURT.bring(Violation("answered", "everything waits, and for nothing that will come"))
        except Exception as error:  # noqa: BLE001 - it is what was found
            COURT.bring(error)
        found = COURT.first
        _clear_away(loop)
    return found


def _bring(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    COURT.bring(error if isinstance(error, Exception) else RuntimeError(context["message"]))


def _clear_away(loop: VirtualLoop) -> None:
    loop.set_exception_handler(lambda loop, context: None)
    for task in asyncio.all_tasks(loop):
        task.cancel()
    for _ in range(3):
        loop.call_soon(loop.stop)
        loop.run_forever()
    loop.close()


async def _run(seed: int, path: Path, tally: Tally) -> None:
    await Simulation(Plan.of(seed), path, tally).run()
