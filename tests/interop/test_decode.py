"""Decode through foreign gRPC stacks: many streams in one call, requests on their way while results come."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import grpc
import numpy as np
import pytest
from expected import LAYERS, Expected
from foreign import Caller, Connect, Refused, draining, given
from google.rpc import error_details_pb2

from rondel.client.cli.launch import server
from rondel.v1 import attention_pb2 as pb

pytestmark = pytest.mark.interop


class Call:
    """A Decode call of a caller that has taken in every result when it says so."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.results: dict[int, pb.DecodeResult] = {}
        self._numbers = count(1)
        caller.start("AttentionService/Decode")

    def hello(self) -> pb.DecodeHello:
        first = self.caller.receive()
        assert first.HasField("hello")
        self._take(first)
        return first.hello

    def send(self, *operations: pb.DecodeOperation) -> list[int]:
        """The numbers of operations, which are sent in one request."""
        for operation in operations:
            operation.op_id = next(self._numbers)
        received = max(self.results, default=0)
        self.caller.send(pb.DecodeRequest(operations=operations, received_op_id=received))
        return [operation.op_id for operation in operations]

    def wait(self, *numbers: int) -> Iterator[pb.DecodeResult]:
        for number in numbers:
            while number not in self.results:
                self._take(self.caller.receive())
            yield self.results[number]

    def _take(self, response: pb.DecodeResponse) -> None:
        for result in response.results:
            assert result.op_id not in self.results
            self.results[result.op_id] = result


def test_many_streams_in_one_call(caller: Caller, rng: np.random.Generator) -> None:
    call = Call(caller)
    streams = [Expected(storage, rng, ref=n + 1) for n, storage in enumerate(["int8", "float32", "int8"])]
    opening = call.send(*(pb.DecodeOperation(stream_ref=s.ref, open=s.open()) for s in streams))
    appends = [pb.DecodeOperation(stream_ref=s.ref, append=s.append(60)) for s in streams]
    call.send(*appends)  # before anything is known of the opening
    sent: list[tuple[int, int, list[pb.StepItem]]] = []
    for _ in range(8):
        for layer in range(LAYERS):
            items = [stream.step(layer) for stream in streams]
            (number,) = call.send(pb.DecodeOperation(step=pb.StepRequest(layer=layer, items=items)))
            sent.append((number, layer, items))
    assert call.hello().limits.decode_window_bytes > 0
    handles = [result.open.handle for result in call.wait(*opening)]
    for number, layer, items in sent:
        (result,) = call.wait(number)
        for stream, item, answer in zip(streams, items, result.step.results, strict=True):
            assert answer.status.code == 0
            stream.check(layer, item, answer)
    attends = [pb.DecodeOperation(stream_ref=s.ref, attend=s.attend(1, rows=3)) for s in streams]
    for stream, asked, result in zip(streams, attends, call.wait(*call.send(*attends)), strict=True):
        stream.check(1, asked.attend, result.attend)
    caller.finish()
    assert caller.receive() is None
    for handle in handles:  # the call has ended, and the streams have not
        state = caller.call(
            "AttentionService/GetStream", pb.GetStreamRequest(stream=pb.StreamRef(handle=handle))
        )
        assert state.committed_length == 68


def test_an_operation_fails_alone(caller: Caller, rng: np.random.Generator) -> None:
    call = Call(caller)
    stream = Expected("int8", rng, ref=1)
    gap = stream.append(3)
    gap.position = 7
    call.hello()
    operations = [pb.DecodeOperation(stream_ref=1, append=gap), pb.DecodeOperation(stream_ref=1, release={})]
    opened, refused, released = call.wait(
        *call.send(pb.DecodeOperation(stream_ref=1, open=stream.open()), *operations)
    )
    info = error_details_pb2.ErrorInfo()
    assert refused.status.details[0].Unpack(info)
    assert (info.reason, info.metadata["expected"]) == ("SEQUENCE_GAP", "0")
    assert (opened.status.code, released.status.code) == (0, 0)
    again = pb.DecodeOperation(
        stream_ref=2, attach=pb.AttachStreamRequest(stream=pb.StreamRef(handle=opened.open.handle))
    )
    (attached,) = call.wait(*call.send(again))
    assert attached.attach.stream.generation == 1
    caller.cancel()


def test_a_malformed_request_fails_the_call(caller: Caller, stack: str, rng: np.random.Generator) -> None:
    caller.start("AttentionService/Decode")
    wrong = pb.DecodeOperation(op_id=0, stream_ref=1, open=Expected("int8", rng).open())
    caller.send(pb.DecodeRequest(operations=[wrong]))
    with pytest.raises(Refused) as refused:
        list(iter(caller.receive, None))
    if stack == "grpclib" and "reset" in refused.value.message:
        # The server answers, and then wants no more of the request (RFC 9113, 8.1). grpclib takes the second
        # for the loss of the first, if they come together.
        assert refused.value.message == "Stream reset by remote party, error_code: 0"
        return
    assert refused.value.code == grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.reason == "INVALID_REQUEST"


# For grpclib see above: of a call that the server ends it may lose what came last.
@pytest.mark.parametrize("stack", ["node-protos", "node-reflection"])
def test_a_server_that_stops_says_go_away(connect: Connect, stack: str, rng: np.random.Generator) -> None:
    with server("--budget-bytes", str(64 << 20)) as process:
        call = Call(connect(given(stack), process.address))
        call.hello()
        stream = Expected("int8", rng, ref=1)
        (opened,) = call.wait(*call.send(pb.DecodeOperation(stream_ref=1, open=stream.open())))
        assert opened.open.handle
        with draining(process, connect(given("node-protos"), process.address)):
            assert call.caller.receive().go_away.last_op_id == 1
            assert call.caller.receive() is None
