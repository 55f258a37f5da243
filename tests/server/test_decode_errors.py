"""What goes wrong in a Decode call: an item, an operation, or the call, and never more than that."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import grpc
import numpy as np
import pytest
from held import Held
from rawclient import SPEC, Client, Failure, Tokens, item
from rawdecode import Decode, failed, out, part, tokens_of

from rondel.decoder.spec import StreamSpec
from rondel.server.app import Server
from rondel.server.config import ServerConfig
from rondel.v1 import attention_pb2 as pb
from rondel.v1.specs import spec_to_message


async def failure(call: Awaitable[object]) -> Failure:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return Failure.of_call(caught.value)


async def test_items_fail_alone(client: Client, tokens: Tokens) -> None:
    q, k, v = tokens.qkv(1)
    async with Decode(client) as decode:
        for ref in (1, 2, 3, 4):
            await decode.open(ref)
        results = await decode.step(
            0,
            part(1, 0, q, k, v),
            part(2, 5, q, k, v),
            part(9, 0, q, k, v),
            part(3, 0, q, k * np.float32(np.nan), v),
            part(4, 0, q[:, :, :3], k, v),
            part(1, 1, q, k, v),
            pb.StepItem(stream_ref=2, stream=pb.StreamRef(handle="x")),
            part(3, 0, q, k, v, generation=4),
        )
        out(results[0])
        assert [failed(result).reason for result in results[1:]] == [
            *("SEQUENCE_GAP", "INVALID_REQUEST", "VALUE_RANGE", "INVALID_SHAPE"),
            *("INVALID_REQUEST", "INVALID_REQUEST", "INVALID_REQUEST"),
        ]
        assert failed(results[1]).facts["expected"] == "0"
        assert "9 is not bound" in failed(results[2]).message
        (stale,) = await decode.step(0, part(4, 0, q, k, v, generation=4))
        assert (failed(stale).reason, failed(stale).facts["current"]) == ("STALE_GENERATION", "0")
        for ref in (2, 3, 4):
            out((await decode.step(0, part(ref, 0, q, k, v)))[0])


async def test_operations_fail_alone(client: Client, tokens: Tokens) -> None:
    k, v = tokens.kv(2)
    attach = pb.AttachStreamRequest
    impossible = pb.OpenStreamRequest(spec=spec_to_message(SPEC), max_new_tokens=4)
    async with Decode(client) as decode:
        stream = await decode.open(1)
        refused = [
            ("INVALID_REQUEST", decode.op(2, open=impossible)),
            ("STREAM_NOT_FOUND", decode.op(4, open=pb.OpenStreamRequest(from_prefix="nobody"))),
            ("INVALID_REQUEST", decode.opening(0)),
            ("INVALID_REQUEST", decode.opening(1)),
            ("INVALID_REQUEST", decode.op(1, attach=attach(stream=stream))),
            ("STREAM_NOT_FOUND", decode.op(3, attach=attach(stream=pb.StreamRef(handle="x")))),
            ("INVALID_REQUEST", decode.op(3, attach=attach(stream=stream, request_id="x" * 129))),
            ("SEQUENCE_GAP", decode.op(1, append=tokens_of(3, k, v))),
            ("INVALID_REQUEST", decode.op(1, append=pb.AppendTokenRequest(stream=stream))),
            ("INVALID_REQUEST", decode.op(8, append=tokens_of(0, k, v))),
            ("INVALID_REQUEST", decode.op(8, release=pb.DecodeRelease())),
            ("SEQUENCE_GAP", decode.op(1, truncate=pb.TruncateStreamRequest(length=5))),
            ("INVALID_REQUEST", decode.op(1, close=pb.CloseStreamRequest(request_id="x" * 129))),
            ("INVALID_REQUEST", decode.stepping(0)),
            ("INVALID_REQUEST", decode.op(1, step=pb.StepRequest(items=[part(1, 0, *tokens.qkv(1))]))),
        ]
        results = await decode.ask(*(operation for _, operation in refused))
        assert [failed(result).reason for result in results] == [reason for reason, _ in refused]
        (appended,) = await decode.ask(decode.op(1, append=tokens_of(0, k, v)))
        assert appended.append.committed_length == 2
    assert (await client.info()).streams == 1


async def test_a_number_whose_open_failed_stands_for_nothing(client: Client, tokens: Tokens) -> None:
    """Also for what was sent right behind it; afterwards the number is free."""
    k, v = tokens.kv(1)
    huge = StreamSpec.uniform(layers=64, query_heads=64, kv_heads=64, head_dim=256, max_length=1 << 20)
    async with Decode(client) as decode:
        opening = decode.opening(1, huge)
        behind = decode.op(1, append=tokens_of(0, k, v))
        step = decode.stepping(0, part(1, 0, *tokens.qkv(1)))
        results = await decode.ask(opening, behind, step)
        assert [failed(result).reason for result in results[:2]] == ["BUDGET_EXCEEDED", "STREAM_NOT_FOUND"]
        assert failed(results[2].step.results[0]).reason == "STREAM_NOT_FOUND"
        await decode.open(1)


async def test_a_released_number_is_free_and_the_stream_stays(client: Client, tokens: Tokens) -> None:
    k, v = tokens.kv(3)
    async with Decode(client) as decode:
        first = await decode.open(1)
        append = decode.op(1, append=tokens_of(0, k, v))
        results = await decode.ask(append, decode.op(1, release=pb.DecodeRelease()), decode.opening(1))
        assert not any(result.status.code for result in results)
        assert results[2].open.handle != first.handle
        (again,) = await decode.ask(decode.op(2, attach=pb.AttachStreamRequest(stream=first)))
        assert again.attach.stream.committed_length == 3


async def test_a_closed_stream_s_number_is_free(client: Client) -> None:
    async with Decode(client) as decode:
        await decode.open(1)
        close = pb.CloseStreamRequest
        results = await decode.ask(decode.op(1, close=close(request_id="a")), decode.op(1, close=close()))
        assert failed(results[1]).reason == "STREAM_CLOSED"
        await decode.open(1)


class TestFewStreams:
    @pytest.fixture
    def config(self) -> ServerConfig:
        return ServerConfig(port=0, budget_bytes=64 << 20, max_streams=3)

    async def test_a_call_has_as_many_numbers_as_there_may_be_streams(self, client: Client) -> None:
        async with Decode(client) as decode:
            stream = await decode.open(1)
            attach = pb.AttachStreamRequest(stream=stream)
            results = await decode.ask(*(decode.op(ref, attach=attach) for ref in (2, 3, 4)))
            assert not any(result.status.code for result in results[:2])
            assert failed(results[2]).reason == "QUOTA_EXCEEDED"


MALFORMED: dict[str, Any] = {
    "no message": b"\x0a\xff\xff",
    "no operation": [pb.DecodeOperation(op_id=5, stream_ref=1)],
    "unknown kind": pb.DecodeRequest(operations=[pb.DecodeOperation(op_id=5)]).SerializeToString()[:-2]
    + b"\x05\x08\x05\xfa\x06\x00",
    "no number": [pb.DecodeOperation(release=pb.DecodeRelease())],
    "the same number": [pb.DecodeOperation(op_id=n, release=pb.DecodeRelease()) for n in (7, 7)],
    "a smaller number": [pb.DecodeOperation(op_id=n, release=pb.DecodeRelease()) for n in (8, 7)],
    "an earlier number": [pb.DecodeOperation(op_id=2, release=pb.DecodeRelease())],
    "too many": [pb.DecodeOperation(op_id=n, release=pb.DecodeRelease()) for n in range(10, 1035)],
    "news of nothing": pb.DecodeRequest(received_op_id=99),
}  # fmt: skip


@pytest.mark.parametrize("case", MALFORMED)
async def test_a_malformed_message_ends_the_call_and_nothing_of_it_is_done(
    client: Client, tokens: Tokens, case: str
) -> None:
    stub = client.channel.stream_stream(
        "/rondel.v1.AttentionService/Decode", response_deserializer=pb.DecodeResponse.FromString
    )
    message = MALFORMED[case]
    good = pb.DecodeOperation(op_id=3, stream_ref=2, open=pb.OpenStreamRequest(spec=spec_to_message(SPEC)))
    first = pb.DecodeOperation(op_id=2, stream_ref=1, open=pb.OpenStreamRequest(spec=spec_to_message(SPEC)))
    call = stub()
    await call.read()
    await call.write(pb.DecodeRequest(operations=[first]).SerializeToString())
    assert (await call.read()).results[0].open.handle
    if isinstance(message, list):
        operations = message if message[0].op_id <= 3 else [good, *message]
        message = pb.DecodeRequest(operations=operations)
    await call.write(message if isinstance(message, bytes) else message.SerializeToString())
    failed_call = await failure(call.read())
    assert (failed_call.code, failed_call.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST")
    assert (await client.info()).streams == 1


async def test_the_last_result_may_be_told_of_again_and_an_earlier_one_not(client: Client) -> None:
    async with Decode(client) as decode:
        for ref in (1, 2, 3):
            await decode.open(ref)
        for _ in range(2):
            await decode.call.write(pb.DecodeRequest(received_op_id=3))
        await decode.open(4)
        await decode.call.write(pb.DecodeRequest(received_op_id=2))
        assert "from 3 on, got 2" in (await failure(decode.ended())).message


async def test_a_step_outside_of_a_call_has_no_numbers(client: Client, tokens: Tokens) -> None:
    stream = await client.open()
    wrong = item(stream, 0, *tokens.qkv(1))
    wrong.stream_ref = 1
    (result,) = await client.step(0, wrong)
    assert failed(result).facts["field"] == "stream_ref"


async def test_an_operation_whose_time_is_over_is_not_begun(
    server: Server, client: Client, tokens: Tokens
) -> None:
    """The call goes on, and so do operations that have more time."""
    q, k, v = tokens.qkv(1)
    async with Decode(client) as decode:
        stream = await decode.open(1)
        await decode.open(2)
        async with Held(server) as held:
            hurried = decode.stepping(0, part(1, 0, q, k, v), timeout_ms=20)
            patient = decode.stepping(0, part(2, 0, q, k, v), timeout_ms=60_000)
            await held.queued(decode.send(hurried, patient), 1)
            await asyncio.sleep(0.05)
        results = await decode.wait((hurried.op_id, patient.op_id))
        late = failed(results[0])
        assert (late.code, late.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXPIRED")
        out(results[1].step.results[0])
        assert (await client.get(stream)).high_water == 0
        out((await decode.step(0, part(1, 0, q, k, v)))[0])


HOSTILE = [-(2**63), -(2**31), -1, 0, 2**31, 2**48 + 1, 2**63 - 1]


async def test_hostile_numbers_are_refused_and_nothing_changes(client: Client, tokens: Tokens) -> None:
    """Every integer of a step's and an attend's message; the call goes on."""
    q, k, v = tokens.qkv(1)
    async with Decode(client) as decode:
        stream = await decode.open(1)
        (first,) = await decode.step(0, part(1, 0, q, k, v))
        out(first)
        before = await client.get(stream)
        operations = []
        for number in HOSTILE:
            for name in ("position", "generation"):
                if number != 0:
                    wrong = part(1, 1, q, k, v)
                    setattr(wrong, name, number)
                    operations.append(decode.stepping(0, wrong))
            for name in ("q", "k", "v"):
                for axis in range(3):
                    wrong = part(1, 1, q, k, v)
                    getattr(wrong, name).shape[axis] = number
                    operations.append(decode.stepping(0, wrong, part(7, 0, q, k, v)))
            attend = pb.AttendRequest(q=part(1, 0, q, k, v).q)
            attend.q.shape[0] = number
            operations.append(decode.op(1, attend=attend))
        operations += [decode.stepping(layer, part(1, 1, q, k, v)) for layer in (3, 2**31, 2**32 - 1)]
        operations.append(decode.stepping(0, part(2**32 - 1, 1, q, k, v)))
        for result in await decode.ask(*operations):
            assert result.status.code or failed(result.step.results[0])
        assert await client.get(stream) == before
        (second,) = await decode.step(0, part(1, 1, q, k, v))
        out(second)


async def test_repetitions_and_gaps_are_what_they_are_in_unary_calls(client: Client, tokens: Tokens) -> None:
    k, v = tokens.kv(6)
    q = tokens.q(6)
    async with Decode(client) as decode:
        await decode.open(1)
        step = part(1, 0, q[:2], k[0, :2], v[0, :2], lse=True)
        (first,), (again,) = await decode.step(0, step), await decode.step(0, step)
        assert (first.duplicate, again.duplicate) == (False, True)
        assert (again.out, again.lse, again.layer_length) == (first.out, first.lse, 2)
        other = await decode.step(0, part(1, 0, q[:2], k[0, 2:4], v[0, 2:4]))
        gap = await decode.step(0, part(1, 4, q[:2], k[0, 2:4], v[0, 2:4]))
        overlap = await decode.step(0, part(1, 1, q[:2], k[0, 1:3], v[0, 1:3]))
        assert [failed(result[0]).reason for result in (other, gap, overlap)] == [
            *("POSITION_CONFLICT", "SEQUENCE_GAP", "SEQUENCE_GAP")
        ]
        assert failed(gap[0]).facts["expected"] == "2"
        append = tokens_of(0, k[1:, :2], v[1:, :2], layer=1)
        results = await decode.ask(*(decode.op(1, append=append) for _ in range(3)))
        assert [result.append.duplicate for result in results] == [False, True, True]
        assert {result.append.committed_length for result in results} == {2}


class TestOverload:
    @pytest.fixture
    def config(self) -> ServerConfig:
        return ServerConfig(port=0, budget_bytes=64 << 20, queue_bytes=19_700)

    async def test_what_there_is_no_room_for_is_refused_at_once(
        self, server: Server, client: Client, tokens: Tokens
    ) -> None:
        k, v = tokens.kv(34)
        async with Decode(client) as decode:
            await decode.open(1)
            async with Held(server) as held:
                first = decode.op(1, append=tokens_of(0, k, v))
                await held.queued(decode.send(first), 19_600)
                results = await decode.ask(
                    decode.op(1, append=tokens_of(34, k, v)), decode.opening(2, request_id="x" * 100)
                )
                for result in results:
                    assert failed(result).reason == "OVERLOADED"
                    assert "google.rpc.RetryInfo" in failed(result).status.details[1].type_url
            (done,) = await decode.wait([first.op_id])
            assert done.append.committed_length == 34
            (again,) = await decode.ask(decode.op(1, append=tokens_of(34, k, v)))
            assert again.append.committed_length == 68
            await decode.open(2)
