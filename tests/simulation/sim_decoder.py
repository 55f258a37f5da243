"""Steps of a client through a Decode call: all of them are on their way before the first is answered."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from sim_properties import hold
from sim_stream import Known
from sim_wire import END, Wire

from rondel.v1 import attention_pb2 as pb


@dataclass
class Sent:
    """A step of one token in one layer."""

    stream: Known
    token: int
    layer: int


class Conversation:
    """One Decode call of a client."""

    def __init__(self, wire: Wire, rng: random.Random, name: str) -> None:
        self._wire = wire
        self._rng = rng
        self._name = name
        self._op_id = 0
        self._results: dict[int, pb.DecodeResult] = {}
        self._ended = False

    async def run(self, pending: list[tuple[Known, list[int]]]) -> dict[str, pb.DecodeResult]:
        """Attaches to streams, and steps them by the tokens that are pending for each. What is stored is
        taken off these; the errors of streams that could not be attached to are returned."""
        failed: dict[str, pb.DecodeResult] = {}
        attaching = [self._attach(stream, ref) for ref, (stream, _) in enumerate(pending, start=1)]
        await self._answered(attaching)
        sent: dict[int, Sent] = {}
        for ref, (op_id, (stream, tokens)) in enumerate(zip(attaching, pending, strict=True), start=1):
            result = self._results.get(op_id)
            if result is None:
                continue
            if result.status.code:
                failed[stream.ref.handle] = result
                continue
            del tokens[: stream.resumed(result.attach.stream, tokens)]
            sent.update(self._steps(stream, ref, tokens))
        await self._answered(sent)
        layers: Counter[int] = Counter()
        for op_id, step in sent.items():
            result = self._results.get(op_id)
            if result is None or result.status.code or result.step.results[0].status.code:
                continue
            # In a layer, all behind one that failed have failed; but another layer may have run ahead.
            step.stream.stepped(step.layer, [step.token], result.step.results[0])
            layers[step.token] += 1
            if layers[step.token] == step.stream.spec.layers:
                step.stream.tokens.append(step.token)
                tokens = next(tokens for stream, tokens in pending if stream is step.stream)
                hold("order", tokens.pop(0) == step.token, f"token {step.token} was stored before others")
        self._wire.tell(END)
        return failed

    def _attach(self, stream: Known, ref: int) -> int:
        operation = self._operation(ref)
        operation.attach.stream.CopyFrom(stream.ref)
        operation.attach.request_id = f"{self._name}/{ref}"
        self._send(operation)
        return operation.op_id

    def _steps(self, stream: Known, ref: int, tokens: list[int]) -> Iterator[tuple[int, Sent]]:
        """Sends them: token by token, each through all layers."""
        for number, token in enumerate(tokens):
            for layer in range(stream.spec.layers):
                operation = self._operation(0)
                if self._rng.random() < 0.1:
                    operation.timeout_ms = self._rng.randint(1, 50)
                item = stream.item([token])
                item.ClearField("stream")
                item.stream_ref, item.position = ref, len(stream.tokens) + number
                operation.step.layer = layer
                operation.step.items.append(item)
                self._send(operation)
                yield operation.op_id, Sent(stream, token, layer)

    def _operation(self, ref: int) -> pb.DecodeOperation:
        self._op_id += 1
        return pb.DecodeOperation(op_id=self._op_id, stream_ref=ref)

    def _send(self, operation: pb.DecodeOperation) -> None:
        self._wire.tell(pb.DecodeRequest(operations=[operation]).SerializeToString())

    async def _answered(self, wanted: object) -> None:
        """Until these have their results, or there will be no more."""
        missing = set(wanted) - self._results.keys()  # type: ignore[call-overload]
        while missing and not self._ended:
            raw = await self._wire.hear()
            if raw is END:
                self._ended = True
                return
            response = pb.DecodeResponse.FromString(raw)
            for result in response.results:
                hold("answered", result.op_id not in self._results, f"operation {result.op_id} twice")
                self._results[result.op_id] = result
                missing.discard(result.op_id)
            if response.results and self._rng.random() < 0.7:
                told = pb.DecodeRequest(received_op_id=response.results[-1].op_id)
                self._wire.tell(told.SerializeToString())
