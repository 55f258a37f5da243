"""Valid requests for every method, from which a fuzzer makes others. One number says which."""

from __future__ import annotations

import io
import random
from functools import cache

import numpy as np
from google.protobuf.message import Message
from targets import D_MODEL, SORTS, Sort, draw

from rondel.decoder.cache.arena import Arena
from rondel.decoder.session import DecoderSession
from rondel.v1 import attention_pb2 as pb
from rondel.v1 import generation_pb2 as gen
from rondel.v1 import options_pb2, tenant_pb2, tensor_pb2
from rondel.v1.specs import spec_to_message
from rondel.v1.wire import to_tensor

DTYPES = (tensor_pb2.DTYPE_FLOAT32, tensor_pb2.DTYPE_FLOAT16, tensor_pb2.DTYPE_BFLOAT16)


def valid(method: str, sort: Sort, stream: pb.StreamRef, rng: random.Random) -> list[Message]:
    """The requests of a call that can succeed: one, or those of a client stream."""
    makers = {
        "OpenStream": _open,
        "AppendToken": _append,
        "Attend": _attend,
        "Step": _step,
        "ForkStream": _fork,
        "TruncateStream": _truncate,
        "AttachStream": _attach,
        "SealStream": lambda *_: pb.SealStreamRequest(stream=stream),
        "GetStream": lambda *_: pb.GetStreamRequest(stream=stream, quality=rng.random() < 0.5),
        "CloseStream": lambda *_: pb.CloseStreamRequest(stream=stream, request_id=_name(rng)),
        "ExportStream": lambda *_: pb.ExportStreamRequest(
            stream=stream, max_data_bytes=rng.choice((0, 256, 5000))
        ),
        "ListStreams": lambda *_: tenant_pb2.ListStreamsRequest(page_size=rng.choice((0, 1, 50))),
        "GetServerInfo": lambda *_: pb.GetServerInfoRequest(),
        "Generate": _generate,
        "ListModels": lambda *_: gen.ListModelsRequest(),
    }
    if method == "ImportStream":
        return _import(sort, rng)
    if method == "Decode":
        return _decode(sort, stream, rng)
    return [makers[method](sort, stream, rng)]


def _name(rng: random.Random) -> str:
    return rng.choice(("", f"fuzz-{rng.getrandbits(40):x}"))


def _tensor(array: np.ndarray, rng: random.Random) -> tensor_pb2.Tensor:
    return to_tensor(array, dtype=rng.choice(DTYPES))


def _open(sort: Sort, stream: pb.StreamRef, rng: random.Random) -> pb.OpenStreamRequest:
    spec = spec_to_message(rng.choice(SORTS).spec, in_force=rng.random() < 0.5)
    return pb.OpenStreamRequest(spec=spec, request_id=_name(rng))


def _append(sort: Sort, stream: pb.StreamRef, rng: random.Random) -> pb.AppendTokenRequest:
    tokens = rng.randint(1, 4)
    _, k, v = draw(sort.spec, tokens, rng.getrandbits(20))
    run = slice(0, 2) if rng.random() < 0.7 else slice(first := rng.randrange(2), first + 1)
    return pb.AppendTokenRequest(
        stream=stream,
        position=sort.tokens,
        first_layer=run.start,
        k=_tensor(k[run], rng),
        v=_tensor(v[run], rng),
    )


def _options(sort: Sort, rows: int, rng: random.Random) -> options_pb2.AttendOptions:
    heads, columns, drawn = sort.spec.groups[0].query_heads, sort.tokens + 8, rng.getrandbits(20)
    values = np.random.default_rng(drawn).standard_normal((heads, rows, columns), np.float32)
    options = options_pb2.AttendOptions()
    if rng.random() < 0.3:
        options.scale, options.temperature, options.softcap = 0.3, 0.7, 20.0
    if rng.random() < 0.3 and sort.placed:
        options.alibi.CopyFrom(_tensor(values[:, 0, 0], rng))
    if rng.random() < 0.3:
        options.bias.CopyFrom(_tensor(values, rng))
    if rng.random() < 0.3:
        data = (values > -1).tobytes()
        options.mask.CopyFrom(tensor_pb2.Tensor(dtype=tensor_pb2.DTYPE_BOOL, shape=values.shape, data=data))
    if rng.random() < 0.3:
        options.ranges.ranges.add(low=0, high=5)
        options.ranges.ranges.add(low=7, high=sort.tokens)
    if rng.random() < 0.3:
        options.null_logit.CopyFrom(_tensor(values[:, 0, 1], rng))
    return options


def _attend(sort: Sort, stream: pb.StreamRef, rng: random.Random) -> pb.AttendRequest:
    rows = rng.randint(1, 3)
    q, _, _ = draw(sort.spec, rows, rng.getrandbits(20))
    request = pb.AttendRequest(stream=stream, layer=rng.randrange(2), q=_tensor(q, rng))
    if rng.random() < 0.3 and sort.placed:
        request.position = sort.tokens - rows
    if rng.random() < 0.5:
        request.options.CopyFrom(_options(sort, rows, rng))
    for name in ("return_lse", "return_entropy", "explain"):
        setattr(request, name, rng.random() < 0.3)
    request.top_k = rng.choice((0, 0, 3))
    return request


def _step(sort: Sort, stream: pb.StreamRef, rng: random.Random) -> pb.StepRequest:
    tokens, layer = rng.randint(1, 2), rng.randrange(2)
    q, k, v = draw(sort.spec, tokens, rng.getrandbits(20))
    item = pb.StepItem(stream=stream, position=sort.tokens, return_lse=rng.random() < 0.3)
    if sort.projections and rng.random() < 0.5:
        x = np.random.default_rng(rng.getrandbits(20)).standard_normal((tokens, D_MODEL), np.float32)
        item.embeddings.CopyFrom(_tensor(x, rng))
    else:
        for name, array in (("q", q), ("k", k[layer]), ("v", v[layer])):
            getattr(item, name).CopyFrom(_tensor(array, rng))
    if rng.random() < 0.3:
        item.options.CopyFrom(_options(sort, tokens, rng))
    request = pb.StepRequest(layer=layer, items=[item])
    if rng.random() < 0.3:
        other = request.items.add()
        other.CopyFrom(item)
        other.stream.handle = "nobody's"
    return request


def _fork(sort: Sort, stream: pb.StreamRef, rng: random.Random) -> pb.ForkStreamRequest:
    request = pb.ForkStreamRequest(stream=stream, length=sort.tokens, request_id=_name(rng))
    if rng.random() < 0.5:
        request.max_new_tokens = rng.randrange(5)
    if rng.random() < 0.3:
        request.max_new_tokens = 0
        request.prefix_name = f"prefix-{rng.getrandbits(40):x}"
    return request


def _truncate(sort: Sort, stream: pb.StreamRef, rng: random.Random) -> pb.TruncateStreamRequest:
    return pb.TruncateStreamRequest(
        stream=stream, length=sort.tokens - rng.randrange(5), request_id=_name(rng)
    )


def _attach(sort: Sort, stream: pb.StreamRef, rng: random.Random) -> pb.AttachStreamRequest:
    request = pb.AttachStreamRequest(stream=stream, request_id=_name(rng))
    if rng.random() < 0.3:
        request.generation = 0
    return request


def _decode(sort: Sort, stream: pb.StreamRef, rng: random.Random) -> list[Message]:
    """Attach to the stream, open another, and a few operations on the two, in one message or in several."""
    nobody = pb.StreamRef()
    operations = [
        pb.DecodeOperation(stream_ref=1, attach=_attach(sort, stream, rng)),
        pb.DecodeOperation(stream_ref=2, open=_open(sort, nobody, rng)),
    ]
    for kind in rng.choices(("step", "append", "attend", "truncate", "seal", "close", "release"), k=4):
        operation = pb.DecodeOperation(stream_ref=rng.choice((1, 1, 2)))
        match kind:
            case "step":
                operation.step.CopyFrom(_step(sort, nobody, rng))
                for item in operation.step.items:
                    item.ClearField("stream")
                    item.stream_ref, item.generation = operation.stream_ref, 1
                operation.stream_ref = 0
            case "append":
                operation.append.CopyFrom(_append(sort, nobody, rng))
            case "attend":
                operation.attend.CopyFrom(_attend(sort, nobody, rng))
            case "truncate":
                operation.truncate.CopyFrom(_truncate(sort, nobody, rng))
            case "release":
                operation.release.SetInParent()
            case _:
                getattr(operation, kind).SetInParent()
        if kind not in ("step", "release"):
            request = getattr(operation, kind)
            request.ClearField("stream")
            if "generation" in request.DESCRIPTOR.fields_by_name:
                request.generation = 1  # attaching has begun a new one
        operations.append(operation)
    if rng.random() < 0.2:
        operations[-1].timeout_ms = 5000
    for op_id, operation in enumerate(operations, start=1):
        operation.op_id = op_id
    size = rng.choice((1, 2, len(operations)))
    parts = [operations[at : at + size] for at in range(0, len(operations), size)]
    return [pb.DecodeRequest(operations=part) for part in parts]


@cache
def _snapshot(sort: Sort) -> bytes:
    file = io.BytesIO()
    with DecoderSession(sort.spec, Arena(budget=16 << 20)) as session:
        _, k, v = draw(sort.spec, sort.tokens, 0)
        session.append_all(k, v)
        session.snapshot(file)
    return file.getvalue()


def _import(sort: Sort, rng: random.Random) -> list[Message]:
    raw = _snapshot(sort)
    size = rng.choice((len(raw), len(raw) // 2 + 1, len(raw) // 7 + 1))
    pieces = [pb.ImportStreamRequest(data=raw[at : at + size]) for at in range(0, len(raw), size)]
    pieces[0].request_id, pieces[0].projections = _name(rng), sort.projections
    return list(pieces)


def _generate(sort: Sort, stream: pb.StreamRef, rng: random.Random) -> gen.GenerateRequest:
    request = gen.GenerateRequest(max_tokens=rng.randint(1, 4), seed=rng.getrandbits(30))
    prompt = rng.choice(("text", "chat", "tokens"))
    if prompt == "text":
        request.text = "the other thing"
    elif prompt == "chat":
        request.chat.messages.add(role=gen.ROLE_SYSTEM, content="be brief")
        request.chat.messages.add(role=gen.ROLE_USER, content="the?")
    else:
        request.tokens.ids.extend([1, 2, 3, 250])
    if rng.random() < 0.5:
        request.temperature, request.top_p, request.top_k = 0.8, 0.9, 5
    if rng.random() < 0.3:
        request.window, request.sinks, request.reserve = 16, 2, 3
    if rng.random() < 0.3:
        request.stop.extend(["the", "\n"])
    return request
