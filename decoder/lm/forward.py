"""The forward pass: everything but attention, in NumPy float32.

One block: RMSNorm, q k v, rotary and attention (both by the stream), output, RMSNorm, SwiGLU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from os import PathLike
from typing import Final

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from rondel.decoder.errors import InvalidRequest, InvalidSpec, LengthExceeded, RondelError
from rondel.decoder.lm.config import ModelConfig
from rondel.decoder.lm.gguf_file import GgufFile
from rondel.decoder.lm.stream import AttentionStream
from rondel.decoder.lm.tokenizer import Tokenizer
from rondel.decoder.lm.weights import Array, LayerWeights, Progress, Weights
from rondel.decoder.spec import StreamSpec

CHUNK: Final = 64
"""Most tokens in one pass over the weights. The same wherever attention runs, so that a prompt gives
the same bits there; small enough that a call can be given up in a fraction of a second."""


class LanguageModel:
    """A llama-family model. Immutable after loading; may be used by several threads, a stream each."""

    def __init__(self, config: ModelConfig, weights: Weights, tokenizer: Tokenizer) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self._weights = weights

    @classmethod
    def load(
        cls, path: str | PathLike[str], *, progress: Progress | None = None, blas_threads: int | None = 1
    ) -> LanguageModel:
        """Load a GGUF file; ``progress(done, total)`` is called as its layers are read.

        NumPy's BLAS is held to ``blas_threads`` from then on, in the whole process (None leaves it alone):
        its workers spin while they wait, which on busy cores costs more than they bring, and how many they
        are shows in the last bits.

        Raises:
            ModelNotFound, CorruptModel, UnsupportedModel: what is wrong with the file.
            BudgetExceeded: its weights are larger than this machine's memory.
        """
        file = GgufFile(path)
        if blas_threads is not None:
            threadpool_limits(limits=blas_threads, user_api="blas")
        config = ModelConfig.read(file)
        tokenizer = Tokenizer(file)
        return cls(config, Weights.read(file, config, progress=progress), tokenizer)

    @property
    def name(self) -> str:
        """What the file calls itself."""
        return self.config.name

    @property
    def context_length(self) -> int:
        """Positions that the model was trained for."""
        return self.config.context_length

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        return self.config.vocab

    def spec(
        self,
        *,
        window: int | None = None,
        sinks: int = 0,
        reserve: int = 0,
        storage: str = "int8",
        max_length: int | None = None,
    ) -> StreamSpec:
        """The spec of a stream for this model; ``max_length`` defaults to the model's context.

        It may be larger with a window that lies, sinks included, within the context: see :meth:`limit`.

        Raises:
            InvalidSpec: an option is impossible, or max_length is beyond what the model can look over.
        """
        c = self.config
        spec = StreamSpec.uniform(
            layers=c.layers,
            query_heads=c.query_heads,
            kv_heads=c.kv_heads,
            head_dim=c.head_dim,
            value_dim=c.value_dim,
            window=window,
            sinks=sinks,
            reserve=reserve,
            storage=storage,
            centring=storage == "int8",
            rope=c.rope,
            max_length=c.context_length if max_length is None else max_length,
        )
        if self.limit(spec) < spec.length_limit:
            raise InvalidSpec(
                f"max_length is at most the model's context of {c.context_length} unless window and sinks "
                f"lie within it, got {max_length} with window={window}, sinks={sinks}",
                field="max_length",
            )
        return spec

    def limit(self, spec: StreamSpec) -> int:
        """How many tokens such a stream takes from this model in all.

        What the model was trained for are distances, since nothing but the rope knows a position. Where the
        sinks and the window of every layer lie within its context, no key is ever further away than the
        model has seen (the sinks are scored as if they lay right before the window, arXiv 2309.17453), and
        only the stream's own limit holds. Any other stream ends with the context.
        """
        widths = (
            None if group.window is None else group.sinks + group.window + group.window_right
            for group in spec.groups
        )
        if all(width is not None and width <= self.context_length for width in widths):
            return spec.length_limit
        return min(self.context_length, spec.length_limit)

    def room(self, stream: AttentionStream) -> int:
        """How many tokens the stream can still take from this model."""
        return self.limit(stream.spec) - stream.length

    def check(self, tokens: Sequence[int], stream: AttentionStream) -> NDArray[np.int64]:
        """The tokens as an array [n], if :meth:`forward` can take them. Changes nothing.

        Raises:
            InvalidRequest: no tokens, or an id that is not in the vocabulary.
            LengthExceeded: more than there is :meth:`room` for.
            InvalidSpec: the stream was made for another model.
        """
        try:
            ids = np.asarray(tokens)
        except ValueError as error:
            raise InvalidRequest(f"tokens must be a sequence of ids, got: {error}", field="tokens") from None
        if ids.ndim != 1 or ids.size == 0 or ids.dtype.kind not in "iu":
            raise InvalidRequest(
                f"tokens must be a sequence of at least one id, got {ids.dtype} of shape {ids.shape}",
                field="tokens",
            )
        if ids.min() < 0 or ids.max() >= self.vocabulary:
            wrong = int(ids[(ids < 0) | (ids >= self.vocabulary)][0])
            raise InvalidRequest(f"token ids go from 0 to {self.vocabulary - 1}, got {wrong}", field="tokens")
        wanted = self.spec()
        if stream.spec.layers != wanted.layers or any(
            _shape(group) != _shape(wanted.groups[0]) for group in stream.spec.groups
        ):
            raise InvalidSpec(
                f"the stream's layers do not fit the model: got {stream.spec.groups}, "
                f"expected {wanted.groups}",
                field="groups",
            )
        if ids.size > self.room(stream):
            limit = self.limit(stream.spec)
            raise LengthExceeded(
                f"got {ids.size} tokens at position {stream.length}, expected at most {limit} in all",
                limit=limit,
            )
        return ids.astype(np.int64)

    def forward(
        self,
        tokens: Sequence[int],
        stream: AttentionStream,
        *,
        checkpoint: Callable[[], None] | None = None,
    ) -> Array:
        """Run tokens at the stream's next positions.

        Args:
            tokens: [n] ids, n ≥ 1.
            stream: takes their keys and values.
            checkpoint: called before each chunk of at most ``CHUNK`` tokens. Whatever it raises ends the
                call there, with the chunks before it in the stream.

        Returns:
            Logits after the last token, [vocab].

        Raises:
            InvalidRequest, LengthExceeded, InvalidSpec: see :meth:`check`; nothing has changed.
            RondelError: what the stream's step raises. All layers of the stream then have the same
                length again, that of the last whole chunk.
        """
        ids = self.check(tokens, stream)
        for part in stream.chunks(len(ids), at_most=CHUNK):
            if checkpoint is not None:
                checkpoint()
            hidden = self._chunk(ids[part], stream)
        return self._logits(hidden[-1])

    def logits(self, tokens: Sequence[int], stream: AttentionStream, *, first: int = 0) -> Iterator[Array]:
        """Run tokens at the stream's next positions, and give the logits after each of them, from one on.

        A chunk is run when its block is asked for. Given up in between, the stream has the chunks so far.

        Args:
            tokens: [n] ids, n ≥ 1.
            stream: takes their keys and values.
            first: index of the first token whose logits are wanted, 0 to n - 1. Those before it are run
                without the product with the vocabulary.

        Returns:
            Blocks [rows, vocab] of logits, n - first rows in all. None has more than ``CHUNK``: all rows of
            a long text at once would be gigabytes.

        Raises:
            InvalidRequest, LengthExceeded, InvalidSpec: at once; see :meth:`check`.
            RondelError: as :meth:`forward`, when the block is asked for.
        """
        ids = self.check(tokens, stream)
        if not 0 <= first < len(ids):
            raise InvalidRequest(f"first must be from 0 to {len(ids) - 1}, got {first}", field="first")
        return self._blocks(ids, stream, first)

    def _blocks(self, ids: NDArray[np.int64], stream: AttentionStream, first: int) -> Iterator[Array]:
        for part in stream.chunks(len(ids), at_most=CHUNK):
            hidden = self._chunk(ids[part], stream)
            if part.stop > first:
                yield self._logits(hidden[max(0, first - part.start) :])

    # An overflow becomes an inf, which the stream's step or the reader of the logits refuses (ValueRange).
    # Not around the generator above: its state would be the caller's between two blocks.
    @np.errstate(over="ignore", invalid="ignore")
    def _logits(self, hidden: Array) -> Array:
        """Hidden states [..., d_model] to logits [..., vocab]."""
        normed = rms_norm(hidden, self._weights.output_norm, self.config.norm_eps)
        logits: Array = normed @ self._weights.output.T
        return logits

    @np.errstate(over="ignore", invalid="ignore")
    def _chunk(self, ids: NDArray[np.int64], stream: AttentionStream) -> Array:
        """The hidden states after each of the chunk's tokens, [n, d_model]."""
        start = stream.length
        x = self._weights.embedding[ids]  # [n, d_model]
        try:
            for number, layer in enumerate(self._weights.layers):
                x += self._attention(number, layer, x, stream)
                x += self._ffn(layer, x)
        except BaseException as error:
            # Layers that already have the chunk must not be ahead of the others when the next one comes.
            try:
                stream.truncate(start)
            except RondelError as second:
                error.add_note(f"the stream could not be rolled back to {start}: {second}")
            raise
        return x

    def _attention(self, number: int, layer: LayerWeights, x: Array, stream: AttentionStream) -> Array:
        c, n = self.config, len(x)
        joined = rms_norm(x, layer.attention_norm, c.norm_eps) @ layer.qkv.T
        q, k, v = np.split(joined, np.cumsum([c.query_heads * c.head_dim, c.kv_heads * c.head_dim]), axis=1)
        out = stream.step(
            number,
            np.ascontiguousarray(q).reshape(n, c.query_heads, c.head_dim),
            np.ascontiguousarray(k).reshape(n, c.kv_heads, c.head_dim),
            np.ascontiguousarray(v).reshape(n, c.kv_heads, c.value_dim),
        )
        mixed: Array = out.reshape(n, -1) @ layer.attention_output.T
        return mixed

    def _ffn(self, layer: LayerWeights, x: Array) -> Array:
        gate, up = np.split(rms_norm(x, layer.ffn_norm, self.config.norm_eps) @ layer.gate_up.T, 2, axis=1)
        mixed: Array = (silu(gate) * up) @ layer.down.T
        return mixed


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """x [..., d] over the root of its mean square (plus eps), times weight [d]."""
    # float64: the square of 2e19 is past float32, and an infinite root would turn the row into zeros.
    root = np.sqrt(np.square(x, dtype=np.float64).mean(axis=-1, keepdims=True) + eps)
    normed: Array = x / root.astype(np.float32) * weight
    return normed


def silu(x: Array) -> Array:
    """x · sigmoid(x). Below -80 the sigmoid is held there: the result is 0 to float32 either way."""
    divisor: Array = np.exp(-np.maximum(x, np.float32(-80.0)))
    divisor += 1.0
    return x / divisor


def _shape(group: object) -> tuple[object, ...]:
    names = ("query_heads", "kv_heads", "key_dim", "value_dim", "score_scale", "rope")
    return tuple(getattr(group, name) for name in names)
