"""How far a stream reaches: lengths of its layers, what its rings still hold, and the rules between them.

Integers only. Nothing here touches stored data; a check that raises has changed nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from rondel.decoder.cache.cuts import Cut, checked_note
from rondel.decoder.cache.layout import RingLayout
from rondel.decoder.errors import (
    ChunkTooLong,
    DuplicateTooOld,
    InvalidRequest,
    LengthExceeded,
    QuotaExceeded,
    RollbackTooDeep,
    SequenceGap,
    StreamSealed,
    WindowEvicted,
)
from rondel.decoder.spec import StreamSpec, integer

Marks = tuple[list[int], list[int], int, int]


class StreamExtent:
    """Lengths, high water and generation of one stream; ``layouts`` has one ring layout per layer group.

    Every layer has a high water of its own, ``claimed``: what one layer has overwritten says nothing about
    the ring of another. ``high_water`` is the largest of them.
    """

    def __init__(self, spec: StreamSpec, layouts: Sequence[RingLayout]) -> None:
        self._spec = spec
        self._layouts = layouts
        self._lengths = [0] * spec.layers
        self._claimed = [0] * spec.layers
        self.length = 0
        self.high_water = 0
        self.generation = 0
        self.sealed = False
        self.cut: Cut | None = None
        """The last truncate, if there was one."""
        self._quota: int | None = None
        # No ring wraps up to here.
        self._safe = min(layout.group.sinks + layout.capacity for layout in layouts)

    def fork(self, max_new_tokens: int | None) -> StreamExtent:
        """The same lengths and claims, for a stream that may reach ``max_new_tokens`` beyond ``length``. Its
        generations begin anew. A sealed one is sealed."""
        fork = StreamExtent(self._spec, self._layouts)
        fork.reset(self.marks())
        fork.sealed = self.sealed
        fork._quota = None if max_new_tokens is None else self.length + max_new_tokens
        return fork

    @property
    def length_limit(self) -> int:
        """The most tokens that the specification allows."""
        return self._spec.length_limit

    @property
    def quota(self) -> int | None:
        """The most tokens that the stream may reach as a fork; None = no such limit."""
        return self._quota

    def layer_length(self, layer: int) -> int:
        """Tokens that one layer has. Raises InvalidLayer."""
        self._spec.group_index(layer)
        return self._lengths[layer]

    def held(self, layer: int) -> int:
        """:meth:`layer_length` of a layer that is known to exist."""
        return self._lengths[layer]

    def claimed(self, layer: int) -> int:
        """The largest position + 1 that one layer ever claimed."""
        return self._claimed[layer]

    @property
    def min_length(self) -> int:
        """The smallest length that a truncate may ask for; never more than ``length``.

        A truncate reaches every layer, so within a group the layer that has overwritten most decides, and the
        tightest group for the stream. A group that has overwritten nothing does not ask for anything.
        """
        limits = [
            min(self.length, claimed - layout.group.reserve)
            for layout in self._layouts
            if layout.wraps_at(claimed := max(self._claimed[layer] for layer in layout.group.layers))
        ]
        return max(limits, default=0)

    def claim(self, layer: int, length: int) -> None:
        """Note that a layer's positions below ``length`` are about to be written: the first store of any
        change."""
        self._claimed[layer] = max(self._claimed[layer], length)
        self.high_water = max(self.high_water, length)

    def advance(self, layer: int, length: int) -> None:
        """Note that a layer has all tokens below ``length``: the last store of any change."""
        self._lengths[layer] = length
        self.length = min(self._lengths)

    def marks(self) -> Marks:
        """All lengths and claims as they are, for :meth:`reset`."""
        return list(self._lengths), list(self._claimed), self.length, self.high_water

    def reset(self, marks: Marks) -> None:
        """Be as at those marks. Only once the pages claimed since have got their old contents back: otherwise
        what a claim has overwritten is gone, whether the call went well or not."""
        lengths, claimed, self.length, self.high_water = marks
        self._lengths, self._claimed = list(lengths), list(claimed)

    def resume(self, marks: Marks, *, generation: int, sealed: bool) -> None:
        """Go on where another stream stood: for an empty one that has the other's pages."""
        self.reset(marks)
        self.generation, self.sealed = generation, sealed

    def forgets(self, end: int) -> bool:
        """Whether a call that takes all layers from their common length to ``end`` overwrites what the stream
        would need to go back to that length."""
        return any(
            layout.wraps_at(end) and end - layout.group.reserve > self.length for layout in self._layouts
        )

    def begin(self, length: int) -> None:
        """Note that a change is about to be made which shows before it is complete, and that the stream had
        so many tokens before it. Only a stream in a file does: it may be killed before :meth:`end`, or before
        :meth:`reset` is through."""

    def end(self) -> None:
        """Note that the change is complete."""

    def seal(self) -> None:
        """Refuse all change from now on. Raises SequenceGap unless all layers have the same length."""
        if max(self._lengths) != self.length:
            raise SequenceGap(
                f"a stream is sealed when all layers have as many tokens, got {self.length} to "
                f"{max(self._lengths)}",
                expected=self.length,
            )
        self.sealed = True

    def _check_open(self) -> None:
        if self.sealed:
            raise StreamSealed(f"the stream was sealed at {self.length} tokens, nothing changes it")

    def truncate(self, length: int, note: bytes = b"") -> None:
        """Set every layer to ``length`` and begin a generation. Raises InvalidRequest, SequenceGap,
        RollbackTooDeep, StreamSealed."""
        self._check_open()
        checked_note(note)
        length = integer("length", length)
        if not 0 <= length <= self.length:
            raise SequenceGap(
                f"length must be from 0 to the stream's {self.length}, got {length}", expected=self.length
            )
        if length < self.min_length:
            raise RollbackTooDeep(
                f"the stream can be truncated to {self.min_length} at the least, got {length}",
                limit=self.min_length,
            )
        self._lengths = [length] * self._spec.layers
        self.length = length
        self.generation += 1
        self.cut = Cut(self.generation, length, note)

    def check_append(self, layers: Sequence[int], tokens: int) -> int:
        """The position at which all of ``layers`` may take ``tokens`` more.

        Raises:
            StreamSealed: none may.
            SequenceGap: the layers are not level.
            LengthExceeded: the stream would pass its max_length.
            QuotaExceeded: it would pass what its fork has reserved.
            ChunkTooLong: a wrapped layer would run too far ahead. Never when ``layers`` are all layers of
                the stream: those advance piece by piece, each piece committed.
        """
        self._check_open()
        start = self._lengths[layers[0]]
        for layer in layers:
            if self._lengths[layer] != start:
                raise SequenceGap(
                    f"layer {layer} has {self._lengths[layer]} tokens, layer {layers[0]} has {start}",
                    expected=start,
                )
        end = start + tokens
        if end > self._spec.length_limit:
            raise LengthExceeded(
                f"the stream holds at most {self._spec.length_limit} tokens, got {start} and {tokens} more",
                limit=self._spec.length_limit,
            )
        if self._quota is not None and end > self._quota:
            raise QuotaExceeded(
                f"the stream was forked to hold {self._quota} tokens at most, got {start} and {tokens} more",
                limit=self._quota,
            )
        if len(layers) < self._spec.layers and end > self._safe:
            for index in {self._spec.group_index(layer) for layer in layers}:
                self._check_lead(self._layouts[index], end)
        return start

    def _check_lead(self, layout: RingLayout, end: int) -> None:
        limit, lead = layout.group.reserve + 1, end - self.length
        if layout.wraps_at(end) and lead > limit:
            raise ChunkTooLong(
                f"a wrapped layer may be {limit} tokens ahead of the stream's {self.length}, got {lead}",
                limit=limit,
            )

    def check_held(self, layer: int, position: int, tokens: int) -> None:
        """Raises SequenceGap unless the layer has all of ``tokens`` positions from ``position`` on."""
        position, tokens, held = (
            integer("position", position),
            integer("tokens", tokens),
            self._lengths[layer],
        )
        if position < 0 or tokens < 0 or position + tokens > held:
            raise SequenceGap(
                f"layer {layer} holds {held} tokens, got positions {position} to {position + tokens - 1}",
                expected=held,
            )

    def rows_at(self, layer: int, position: int | None, rows: int) -> int:
        """Where the first of some query rows stands; None = the rows are the layer's last.

        Rows without positions, which see all that is stored, stand behind it, all in one place: -1 where
        nothing is.

        Raises:
            InvalidRequest: such rows were given a position.
            SequenceGap, WindowEvicted: as :meth:`check_window` does.
        """
        held, group = self._lengths[layer], self._spec.group(layer)
        if not group.placed:
            if position is not None:
                raise InvalidRequest(
                    f"position must be None where every row sees all that is stored, got {position!r}",
                    field="position",
                )
            return held - 1
        if position is None and rows <= held and group.window is None:
            return held - rows  # the usual case: nothing else can be wrong with it
        first = held - rows if position is None else position
        self.check_window(layer, first, rows)
        return first

    def check_window(self, layer: int, position: int, rows: int) -> None:
        """Raises SequenceGap, or WindowEvicted unless all that rows from ``position`` on see is stored."""
        self.check_held(layer, position, rows)
        layout = self._layouts[self._spec.group_index(layer)]
        group, oldest = layout.group, layout.oldest_whole(self._claimed[layer])
        # Rows within the sinks see only sinks, which are always there.
        start = max(position, group.sinks)
        if group.window is None or oldest <= group.sinks or start >= position + rows:
            return
        if start - group.window + 1 < oldest:
            first = oldest + group.window - 1
            raise WindowEvicted(
                f"the window of position {start} is no longer whole, that of {first} is", oldest=first
            )

    def check_stored(self, layer: int, position: int, tokens: int) -> None:
        """Raises SequenceGap, or DuplicateTooOld unless these positions are still stored."""
        self.check_held(layer, position, tokens)
        layout = self._layouts[self._spec.group_index(layer)]
        oldest = layout.oldest_whole(self._claimed[layer])
        if max(position, layout.group.sinks) < min(oldest, position + tokens):
            raise DuplicateTooOld(f"position {position} is no longer stored, {oldest} is", oldest=oldest)
