"""A stream as its caller knows it: the messages to send, and the float64 answers to expect."""

from __future__ import annotations

from typing import Any

import numpy as np
from comparators import assert_near
from numpy.typing import NDArray
from oracle import ALWAYS, LSE

from rondel.decoder import reference
from rondel.decoder.spec import StreamSpec
from rondel.v1 import attention_pb2 as pb
from rondel.v1.specs import spec_to_message
from rondel.v1.wire import from_tensor, to_tensor

Floats = NDArray[np.float32]
LAYERS, QUERY_HEADS, KV_HEADS, KEY_DIM, VALUE_DIM = 2, 6, 2, 32, 16
WINDOW, SINKS = 50, 4


class Expected:
    """Everything that was told to one stream, per layer, and what attention over it is."""

    def __init__(self, storage: str, rng: np.random.Generator, *, causal: bool = True, ref: int = 0) -> None:
        self.storage = storage
        self.ref = ref
        """Its number in a Decode call, whose requests name no stream. 0 = they are for other calls."""
        self.causal = causal
        self.stream: pb.StreamRef | None = None
        self._rng = rng
        self._k: list[list[Floats]] = [[] for _ in range(LAYERS)]
        self._v: list[list[Floats]] = [[] for _ in range(LAYERS)]

    def open(self) -> pb.OpenStreamRequest:
        spec = StreamSpec.uniform(
            layers=LAYERS,
            query_heads=QUERY_HEADS,
            kv_heads=KV_HEADS,
            head_dim=KEY_DIM,
            value_dim=VALUE_DIM,
            storage=self.storage,
            causal=self.causal,
            **({"window": WINDOW, "sinks": SINKS, "reserve": 8} if self.causal else {"max_length": 64}),
        )
        return pb.OpenStreamRequest(spec=spec_to_message(spec))

    def memory(self) -> Expected:
        """Another one, whose queries see all that is stored and may be any number."""
        return Expected(self.storage, self._rng, causal=False)

    def opened(self, reply: pb.OpenStreamResponse) -> None:
        """Requests are for this stream from now on."""
        self.stream = pb.StreamRef(handle=reply.handle, epoch=reply.epoch)

    def length(self, layer: int) -> int:
        return sum(len(k) for k in self._k[layer])

    def append(self, tokens: int) -> pb.AppendTokenRequest:
        """The next tokens, of every layer."""
        position = self.length(0)
        k, v = (
            np.stack(x) for x in zip(*(self._next(layer, tokens) for layer in range(LAYERS)), strict=True)
        )
        return pb.AppendTokenRequest(stream=self.stream, position=position, k=to_tensor(k), v=to_tensor(v))

    def step(self, layer: int, tokens: int = 1) -> pb.StepItem:
        """The next tokens of one layer, with queries."""
        position, q = self.length(layer), self._draw(tokens, QUERY_HEADS, KEY_DIM)
        k, v = self._next(layer, tokens)
        return pb.StepItem(
            stream=self.stream,
            stream_ref=self.ref,
            position=position,
            q=to_tensor(q),
            k=to_tensor(k),
            v=to_tensor(v),
            return_lse=True,
        )

    def attend(self, layer: int, rows: int) -> pb.AttendRequest:
        """Queries from the last rows."""
        q = to_tensor(self._draw(rows, QUERY_HEADS, KEY_DIM))
        return pb.AttendRequest(stream=self.stream, layer=layer, q=q, return_lse=True)

    def check(self, layer: int, request: Any, reply: Any) -> None:
        """A reply to a step's item, or to an Attend from the layer's last rows, against the oracle."""
        q = from_tensor(request.q, name="q")
        step = isinstance(request, pb.StepItem)
        end = request.position + len(q) if step else self.length(layer)
        k, v = (self._stored(np.concatenate(x[layer])[:end]) for x in (self._k, self._v))
        seen = reference.Options(causal=self.causal)
        if self.causal:
            seen |= reference.Options(window=WINDOW, sinks=SINKS)
        want, want_lse = reference.attend(q, k, v, **seen)
        out, lse = from_tensor(reply.out, name="out"), from_tensor(reply.lse, name="lse")
        assert_near(out, want, ALWAYS[self.storage] * float(np.abs(v).max()), "out")
        assert_near(lse, want_lse, LSE[self.storage] * np.maximum(1.0, np.abs(want_lse)), "lse")

    def _stored(self, x: Floats) -> NDArray[np.float64]:
        if self.storage == "float32":
            return x.astype(np.float64)
        return reference.dequantise(*reference.quantise_rows(x))

    def _draw(self, *shape: int) -> Floats:
        return self._rng.standard_normal(shape, np.float32)

    def _next(self, layer: int, tokens: int) -> tuple[Floats, Floats]:
        k, v = self._draw(tokens, KV_HEADS, KEY_DIM), self._draw(tokens, KV_HEADS, VALUE_DIM)
        self._k[layer].append(k)
        self._v[layer].append(v)
        return k, v
