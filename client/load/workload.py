"""What a stream does in its life. A seed says all of it: a run can be repeated, its answers recomputed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from rondel.client.load.arrays import Numbers
from rondel.client.values import Array
from rondel.decoder.errors import InvalidSpec
from rondel.decoder.spec import StreamSpec

_APART: Final = 1 << 16
"""Between the names of arrays of two streams of a batch: more than one stream's step has."""


class Kind(StrEnum):
    """Kinds of operations: what latency is reported for."""

    OPEN = "open"
    APPEND = "append"
    STEP = "step"
    ATTEND = "attend"
    TRUNCATE = "truncate"
    FORK = "fork"
    MOVE = "move"
    CLOSE = "close"


class Act(StrEnum):
    """Kinds of calls on a stream."""

    OPEN = "open"
    APPEND = "append"
    STEP = "step"
    ATTEND = "attend"
    TRUNCATE = "truncate"
    FORK = "fork"
    ATTEND_FORK = "attend_fork"
    CLOSE_FORK = "close_fork"
    EXPORT = "export"
    IMPORT = "import"
    CLOSE_MOVED = "close_moved"
    CLOSE = "close"


@dataclass(frozen=True, slots=True)
class Move:
    """One call, with all that it is told. Arrays as ``DecoderSession`` takes them."""

    act: Act
    layer: int = 0
    length: int = 0
    """What is truncated to."""
    q: Array | None = None
    k: Array | None = None
    v: Array | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """What one arrival asks for: a call, or several that belong together, one after the other."""

    kind: Kind
    number: int = 0
    """Names its arrays."""
    tokens: int = 0
    """Tokens that it stores."""
    layer: int = 0
    length: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Streams that are all alike: opened, stepped through their layers, closed. Raises InvalidSpec."""

    batch: int = 1
    """Streams that go through life together: a step of all of them is one call per layer."""

    layers: int = 4
    query_heads: int = 8
    kv_heads: int = 2
    head_dim: int = 64
    window: int = 1024
    tokens: int = 1
    """Tokens of a step."""
    prompt: int = 0
    """Tokens that are stored at once when a stream was opened."""
    attends: float = 0.0
    """Share of operations that only attend, to one layer."""
    truncates: float = 0.0
    """Share of operations that take the tokens of a step back."""
    forks: float = 0.0
    """Share of operations that fork the stream, attend to the fork, and close it."""
    moves: float = 0.0
    """Share of operations that export the stream, import it, go on with that and close the first one."""
    operations: int | None = None
    """Operations in a stream's life, after which it is closed and another one opened; None = it stays."""
    seed: int = 0

    def __post_init__(self) -> None:
        shares = (self.attends, self.truncates, self.forks, self.moves)
        if not (all(0 <= share <= 1 for share in shares) and sum(shares) <= 1):
            raise InvalidSpec(
                f"attends, truncates, forks and moves must be shares from 0 to 1 of 1 in all, got {shares}",
                field="attends",
            )
        for name, low in (("batch", 1), ("tokens", 1), ("prompt", 0), ("operations", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and value < low:
                raise InvalidSpec(f"{name} must be {low} or more, got {value}", field=name)
        self.spec()

    def spec(self) -> StreamSpec:
        """What streams are opened with. The reserve is what one truncate takes back."""
        return StreamSpec.uniform(
            layers=self.layers,
            query_heads=self.query_heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            window=self.window,
            reserve=self.tokens,
        )

    def numbers(self) -> Numbers:
        """The arrays of all streams."""
        rows = max(self.tokens * self.query_heads, self.layers * self.prompt * self.kv_heads)
        return Numbers(self.seed, rows * self.head_dim)

    def life(self, stream: int, number: int) -> Iterator[Operation]:
        """What a stream does in its ``number``-th life, from open to close; of a batch, the first stream's is
        that of all."""
        rng = random.Random(f"{self.seed}/{stream}/{number}")
        yield Operation(Kind.OPEN)
        if self.prompt:
            yield Operation(Kind.APPEND, rng.getrandbits(48), tokens=self.prompt)
        length = high = self.prompt
        for _ in itertools.count() if self.operations is None else range(self.operations):
            kind, name = self._drawn(rng), rng.getrandbits(48)
            # There must be something to attend to; and the reserve is for taking one step back.
            if not length or (kind is Kind.TRUNCATE and (length <= self.tokens or length < high)):
                kind = Kind.STEP
            match kind:
                case Kind.STEP:
                    length += self.tokens
                    high = max(high, length)
                    yield Operation(kind, name, tokens=self.tokens)
                case Kind.TRUNCATE:
                    length -= self.tokens
                    yield Operation(kind, length=length)
                case _:
                    yield Operation(kind, name, layer=rng.randrange(self.layers))
        yield Operation(Kind.CLOSE)

    def calls(self, operation: Operation, numbers: Numbers, member: int = 0) -> list[Move]:
        """The calls of an operation on one stream of a batch."""
        name, queries = operation.number + member * _APART, (self.query_heads, self.head_dim)
        match operation.kind:
            case Kind.STEP:
                return [self._step(layer, name, numbers) for layer in range(self.layers)]
            case Kind.APPEND:
                shape = (self.layers, self.prompt, self.kv_heads, self.head_dim)
                k, v = (numbers.cut(name + n, shape) for n in range(2))
                return [Move(Act.APPEND, k=k, v=v)]
            case Kind.ATTEND:
                return [Move(Act.ATTEND, operation.layer, q=numbers.cut(name, (1, *queries)))]
            case Kind.FORK:
                q = numbers.cut(name, (1, *queries))
                return [Move(Act.FORK), Move(Act.ATTEND_FORK, operation.layer, q=q), Move(Act.CLOSE_FORK)]
            case Kind.MOVE:
                return [Move(Act.EXPORT), Move(Act.IMPORT), Move(Act.CLOSE_MOVED)]
            case Kind.TRUNCATE:
                return [Move(Act.TRUNCATE, length=operation.length)]
            case Kind.OPEN:
                return [Move(Act.OPEN)]
            case Kind.CLOSE:
                return [Move(Act.CLOSE)]

    def _drawn(self, rng: random.Random) -> Kind:
        drawn = rng.random()
        for kind, share in (
            (Kind.ATTEND, self.attends),
            (Kind.TRUNCATE, self.truncates),
            (Kind.FORK, self.forks),
            (Kind.MOVE, self.moves),
        ):
            if drawn < share:
                return kind
            drawn -= share
        return Kind.STEP

    def _step(self, layer: int, name: int, numbers: Numbers) -> Move:
        name, pairs = name + 3 * layer, (self.tokens, self.kv_heads, self.head_dim)
        return Move(
            Act.STEP,
            layer,
            q=numbers.cut(name, (self.tokens, self.query_heads, self.head_dim)),
            k=numbers.cut(name + 1, pairs),
            v=numbers.cut(name + 2, pairs),
        )
