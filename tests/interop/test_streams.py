"""Streams used through foreign gRPC stacks: what they are told is what the float64 reference says."""

from __future__ import annotations

import grpc
import numpy as np
import pytest
from expected import LAYERS, QUERY_HEADS, VALUE_DIM, Expected
from foreign import Caller, Connect, Refused, given
from google.rpc import error_details_pb2

from rondel.client.cli.launch import ServerProcess
from rondel.v1 import attention_pb2 as pb
from rondel.v1.wire import from_tensor

pytestmark = pytest.mark.interop


def opened(caller: Caller, rng: np.random.Generator, storage: str = "int8") -> Expected:
    stream = Expected(storage, rng)
    stream.opened(caller.call("AttentionService/OpenStream", stream.open()))
    return stream


def stepped(caller: Caller, layer: int, *items: pb.StepItem) -> list[pb.StepResult]:
    request = pb.StepRequest(layer=layer, items=items)
    return list(caller.call("AttentionService/Step", request).results)


@pytest.mark.parametrize("storage", ["int8", "float32"])
def test_the_life_of_a_stream(caller: Caller, rng: np.random.Generator, storage: str) -> None:
    stream = opened(caller, rng, storage)
    assert caller.call("AttentionService/AppendToken", stream.append(70)).committed_length == 70
    for position in range(70, 90):
        for layer in range(LAYERS):
            item = stream.step(layer)
            (result,) = stepped(caller, layer, item)
            assert (result.status.code, result.layer_length) == (0, position + 1)
            stream.check(layer, item, result)
    for layer in range(LAYERS):
        request = stream.attend(layer, rows=5)
        stream.check(layer, request, caller.call("AttentionService/Attend", request))
    state = caller.call("AttentionService/GetStream", pb.GetStreamRequest(stream=stream.stream))
    assert (state.committed_length, list(state.layer_lengths)) == (90, [90, 90])
    reply = caller.call("AttentionService/CloseStream", pb.CloseStreamRequest(stream=stream.stream))
    assert (reply.committed_length, reply.bytes_released > 0) == (90, True)
    with pytest.raises(Refused) as refused:
        caller.call("AttentionService/GetStream", pb.GetStreamRequest(stream=stream.stream))
    assert (refused.value.code, refused.value.reason) == (grpc.StatusCode.NOT_FOUND, "STREAM_CLOSED")


def test_the_items_of_a_step_have_statuses_of_their_own(caller: Caller, rng: np.random.Generator) -> None:
    one, other = opened(caller, rng), opened(caller, rng)
    items = [one.step(0, tokens=3), other.step(0, tokens=2)]
    bad = pb.StepItem()
    bad.CopyFrom(items[0])
    bad.stream.epoch += 1  # 63 bits, which a JavaScript number cannot hold
    first, failed, last = stepped(caller, 0, items[0], bad, items[1])
    one.check(0, items[0], first)
    other.check(0, items[1], last)
    info = error_details_pb2.ErrorInfo()
    assert failed.status.details[0].Unpack(info)
    assert (failed.status.code, info.reason) == (grpc.StatusCode.NOT_FOUND.value[0], "STREAM_NOT_FOUND")


def test_errors_say_what_and_where(caller: Caller, rng: np.random.Generator) -> None:
    stream = opened(caller, rng)
    request = stream.append(4)
    request.position = 3
    with pytest.raises(Refused) as refused:
        caller.call("AttentionService/AppendToken", request)
    assert (refused.value.code, refused.value.reason) == (grpc.StatusCode.OUT_OF_RANGE, "SEQUENCE_GAP")
    assert refused.value.facts["expected"] == "0"
    wrong = stream.open()
    wrong.spec.groups[0].kv_heads = 4
    with pytest.raises(Refused) as refused:
        caller.call("AttentionService/OpenStream", wrong)
    assert (refused.value.code, refused.value.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_SPEC")
    (violation,) = refused.value.detail("BadRequest")["field_violations"]
    assert (violation["field"], violation["description"]) == ("query_heads", refused.value.message)


def test_a_call_may_be_made_again(caller: Caller, rng: np.random.Generator) -> None:
    stream = opened(caller, rng)
    request = stream.append(4)
    replies = [caller.call("AttentionService/AppendToken", request) for _ in range(2)]
    assert [reply.duplicate for reply in replies] == [False, True]
    item = stream.step(1)
    (first,), (second,) = stepped(caller, 1, item), stepped(caller, 1, item)
    assert (first.duplicate, second.duplicate) == (False, True)
    assert second.out.data == first.out.data


def test_messages_larger_than_any_frame_or_window(caller: Caller, rng: np.random.Generator) -> None:
    stream = opened(caller, rng)
    request = stream.append(10_000)
    assert request.ByteSize() > 5 << 20  # also beyond the 4 MiB that gRPC takes by default
    assert caller.call("AttentionService/AppendToken", request).committed_length == 10_000
    request = stream.attend(0, rows=9)
    request.explain = True
    reply = caller.call("AttentionService/Attend", request)
    stream.check(0, request, reply)
    weights = from_tensor(reply.explanation.weights, name="weights")
    assert weights.nbytes > 4 * QUERY_HEADS * 9 * 50
    memory = stream.memory()
    memory.opened(caller.call("AttentionService/OpenStream", memory.open()))
    caller.call("AttentionService/AppendToken", memory.append(3))
    request = memory.attend(1, rows=4000)
    reply = caller.call("AttentionService/Attend", request)
    assert len(reply.out.data) == 4 * 4000 * QUERY_HEADS * VALUE_DIM
    memory.check(1, request, reply)


@pytest.mark.parametrize(("giver", "taker"), [("node-protos", "grpclib"), ("grpclib", "node-reflection")])
def test_a_snapshot_goes_from_one_stack_to_another(
    running: ServerProcess, connect: Connect, rng: np.random.Generator, giver: str, taker: str
) -> None:
    one, other = (connect(given(stack), running.address) for stack in (giver, taker))
    stream = opened(one, rng)
    one.call("AttentionService/AppendToken", stream.append(300))
    asked = pb.ExportStreamRequest(stream=stream.stream, max_data_bytes=4096)
    parts = one.stream("AttentionService/ExportStream", asked)
    assert len(parts) > 5
    assert sum(len(part.data) for part in parts) == parts[0].total_bytes
    requests = [pb.ImportStreamRequest(data=part.data) for part in parts]
    (reply,) = other.stream("AttentionService/ImportStream", *requests)
    stream.opened(reply.opened)
    request = stream.attend(1, rows=2)
    stream.check(1, request, other.call("AttentionService/Attend", request))
    with pytest.raises(Refused) as refused:
        other.stream("AttentionService/ImportStream", *requests[1:])
    assert refused.value.reason == "CORRUPT_SNAPSHOT"
