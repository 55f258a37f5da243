"""Exports and imports in one line each, and the sessions behind the handles."""

import asyncio
import io
from collections.abc import Iterable

import grpc
import pytest
from rawclient import Client, Failure
from transports import tenant, waiting_channel_to

from rondel.decoder.session import DecoderSession
from rondel.server.app import Server
from rondel.v1 import attention_pb2 as pb
from rondel.v1.attention_pb2_grpc import AttentionServiceStub

Import = grpc.aio.StreamUnaryCall[pb.ImportStreamRequest, pb.ImportStreamResponse]


async def exported(client: Client, stream: pb.StreamRef, size: int = 0) -> bytes:
    request = pb.ExportStreamRequest(stream=stream, max_data_bytes=size)
    replies = [reply async for reply in client.attention.ExportStream(request)]
    raw = b"".join(reply.data for reply in replies)
    assert {reply.total_bytes for reply in replies} == {len(raw)}
    assert all(len(reply.data) == len(replies[0].data) for reply in replies[:-1])
    return raw


def pieces(
    raw: bytes, size: int = 1 << 20, request_id: str = "", projections: str = ""
) -> list[pb.ImportStreamRequest]:
    cut = [raw[start : start + size] for start in range(0, len(raw), size)] or [b""]
    first = pb.ImportStreamRequest(data=cut[0], request_id=request_id, projections=projections)
    return [first, *(pb.ImportStreamRequest(data=data) for data in cut[1:])]


async def imported(
    client: Client, raw: bytes, *, size: int = 1 << 20, request_id: str = "", projections: str = ""
) -> pb.ImportStreamResponse:
    return await client.attention.ImportStream(iter(pieces(raw, size, request_id, projections)))


async def refused(server: Server, requests: Iterable[pb.ImportStreamRequest]) -> Failure:
    """Why the server refuses an import. Not by grpc.aio, which may lose the status of a call that ends while
    a request is on its way (grpc issue 36066)."""

    def ask() -> Failure:
        with waiting_channel_to(server.address) as channel, pytest.raises(grpc.RpcError) as caught:
            AttentionServiceStub(channel).ImportStream(iter(requests))
        return Failure.of_call(caught.value)

    return await asyncio.to_thread(ask)


def ref(reply: pb.ImportStreamResponse) -> pb.StreamRef:
    return pb.StreamRef(handle=reply.opened.handle, epoch=reply.opened.epoch)


def session_of(server: Server, stream: pb.StreamRef) -> DecoderSession:
    return server.streams.of(tenant()).get(stream.handle, stream.epoch).session


def snapshot_of(server: Server, stream: pb.StreamRef) -> bytes:
    file = io.BytesIO()
    session_of(server, stream).snapshot(file)
    return file.getvalue()
