"""The rules that make repeated requests harmless, over one session. For the scheduler's worker only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rondel.decoder.batch import Step
from rondel.decoder.errors import (
    DuplicateTooOld,
    InvalidLayer,
    InvalidRequest,
    InvalidShape,
    PositionConflict,
    SequenceGap,
    StaleGeneration,
    WindowEvicted,
)
from rondel.decoder.options import AttendOptions
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import MAX_LENGTH
from rondel.server import last_cut
from rondel.server.entries import Attached, Entry, Truncated

Floats = NDArray[np.float32]


class Appended(NamedTuple):
    """The outcome of an append: the last written layer's length, and whether it was a repetition."""

    layer_length: int
    duplicate: bool


class Stepped(NamedTuple):
    """The outcome of a step. ``out`` [tokens, Hq, Dv], ``lse`` [tokens, Hq] or None."""

    out: Floats
    lse: Floats | None
    layer_length: int
    duplicate: bool


def check_generation(session: DecoderSession, generation: int) -> None:
    """Raises StaleGeneration unless the request was made for the stream's generation."""
    if generation != session.generation:
        raise StaleGeneration(
            f"the stream's generation is {session.generation}, got {generation}",
            current=session.generation,
        )


def check_owner(entry: Entry, generation: int) -> None:
    """Raises StaleGeneration if somebody else has the stream by now: it is in another generation, and not
    because the server was started on its file."""
    session = entry.session
    started = entry.found == session.generation
    if not (started and last_cut.owned_since(session) <= generation < session.generation):
        check_generation(session, generation)


def check_position(name: str, position: int) -> None:
    """Raises InvalidRequest for a number that no stream can have as a position or length."""
    if not 0 <= position <= MAX_LENGTH:
        raise InvalidRequest(f"{name} must be from 0 to {MAX_LENGTH}, got {position}", field=name)


def append(
    session: DecoderSession, *, generation: int, position: int, first_layer: int, k: Floats, v: Floats
) -> Appended:
    """Stores k [layers, tokens, Hkv, Dk] and v [.., .., .., Dv] in a run of layers, or finds them there.

    Raises:
        StaleGeneration, InvalidRequest, InvalidLayer: the request does not fit the stream.
        SequenceGap, PositionConflict, DuplicateTooOld: the tokens neither come next nor are there already.
        InvalidShape, ValueRange, ChunkTooLong, LengthExceeded: the session refused the tokens.
    """
    check_generation(session, generation)
    check_position("position", position)
    _check_axes("k", k, 4)
    _check_axes("v", v, 4)
    if k.shape[:2] != v.shape[:2]:
        raise InvalidShape(
            f"k and v must have the same layers and tokens, got {k.shape[:2]} and {v.shape[:2]}",
            field="v",
            got=str(v.shape[:2]),
            expected=str(k.shape[:2]),
        )
    count, tokens = k.shape[:2]
    if first_layer + count > session.spec.layers:
        raise InvalidLayer(
            f"layers {first_layer} to {first_layer + count - 1} were given, the stream has "
            f"{session.spec.layers}",
            field="first_layer",
            layers=session.spec.layers,
        )
    layers = range(first_layer, first_layer + count)
    if _is_new(session, layers, position, tokens):
        session.append_all(k, v, first_layer=first_layer)
        return Appended(session.layer_length(layers[-1]), False)
    for index, layer in enumerate(layers):
        _check_same(session, layer, position, k[index], v[index])
    return Appended(session.layer_length(layers[-1]), True)


def step(
    session: DecoderSession,
    *,
    generation: int,
    position: int,
    layer: int,
    q: Floats,
    k: Floats,
    v: Floats,
    return_lse: bool,
    options: AttendOptions | None = None,
) -> Step | Stepped:
    """The step that q [n, Hq, Dk], k [n, Hkv, Dk] and v [n, Hkv, Dv] ask for, which is still to be carried
    out; or, if the tokens are there already, its answer once more.

    Rows that are not causal also see what comes later: once that is there, their answer is gone.

    Raises:
        As :func:`append`, except for what the session will refuse when the step is carried out.
    """
    check_generation(session, generation)
    check_position("position", position)
    group = session.spec.group(layer)
    if not (q.ndim == k.ndim == v.ndim == 3 and len(q) and len(k) and len(v)):
        for name, array in (("q", q), ("k", k), ("v", v)):
            _check_axes(name, array, 3)
    if not len(q) == len(k) == len(v):
        got = f"{len(q)}, {len(k)} and {len(v)}"
        raise InvalidShape(
            f"q, k and v must have as many tokens, got {got}", field="q", got=got, expected="equal numbers"
        )
    # The first is the second for most steps, and a quarter of its time.
    if session.layer_length(layer) == position or _is_new(session, (layer,), position, len(k)):
        return Step(session, layer, q, k, v, options)
    _check_same(session, layer, position, k, v)
    if not group.causal and session.layer_length(layer) > position + len(k):
        raise DuplicateTooOld(
            f"the tokens at {position} are stored, and later ones, which the rows would see: the layer has "
            f"{session.layer_length(layer)}"
        )
    try:
        again = attend(
            session,
            generation=generation,
            position=position if group.placed else None,
            layer=layer,
            q=q,
            return_lse=return_lse,
            options=options,
        )
    except WindowEvicted as error:
        raise DuplicateTooOld(
            f"the tokens at {position} are stored, but the window of the first is no longer whole: "
            f"{error.message}",
            **error.facts,
        ) from error
    return Stepped(*again, session.layer_length(layer), True)


def attend(
    session: DecoderSession,
    *,
    generation: int,
    position: int | None,
    layer: int,
    q: Floats,
    return_lse: bool,
    options: AttendOptions | None = None,
) -> tuple[Floats, Floats | None]:
    """Attends from q [N, Hq, Dk]; out [N, Hq, Dv] and, if asked for, lse [N, Hq].

    Raises:
        StaleGeneration, InvalidRequest: the request does not fit the stream.
        InvalidLayer, InvalidShape, ValueRange, SequenceGap, WindowEvicted: the session refused the rest.
    """
    check_generation(session, generation)
    if position is not None:
        check_position("position", position)
    _check_axes("q", q, 3)
    out, lse = session.attend(layer, q, position=position, options=options, return_lse=True)
    return out, lse if return_lse else None


def truncate(entry: Entry, *, generation: int, length: int, request_id: str) -> None:
    """Takes tokens off the end, unless the same request has done so.

    Raises:
        InvalidRequest: the length is impossible, or the request_id was used for another request.
        StaleGeneration, SequenceGap, RollbackTooDeep: the rules, and the session.
    """
    session = entry.session
    check_position("length", length)
    earlier = entry.truncated
    if request_id and earlier is not None and earlier.request_id == request_id:
        if (earlier.generation, earlier.length) != (generation, length):
            raise InvalidRequest(
                f"request_id {request_id!r} has truncated generation {earlier.generation} to "
                f"{earlier.length}, got generation {generation} and {length}",
                field="request_id",
            )
        # Something may have happened since: the answer is only right if this is still what the stream is.
        check_generation(session, earlier.new_generation)
        return
    check_generation(session, generation)
    if length > session.length:
        raise SequenceGap(
            f"the stream has {session.length} tokens, cannot keep {length}", expected=session.length
        )
    session.truncate(length, note=last_cut.note_of_truncate(request_id))
    entry.truncated = Truncated(request_id, generation, length, session.generation) if request_id else None


def attach(entry: Entry, *, generation: int | None, request_id: str) -> None:
    """Takes a stream over, unless the same request has done so: only its committed tokens stay.
    ``generation``: the one that it must be in, but for starts of the server; None = any.

    Raises:
        InvalidRequest: the request_id was used for another request.
        StaleGeneration: the stream is in another generation, and since the server's start somebody has done
            that.
    """
    session, earlier = entry.session, entry.attached
    if request_id and earlier is not None and earlier.request_id == request_id:
        if earlier.generation != generation:
            raise InvalidRequest(
                f"request_id {request_id!r} has attached to generation {earlier.generation}, got "
                f"{generation}",
                field="request_id",
            )
        check_generation(session, earlier.new_generation)
        return
    if generation is not None:
        check_owner(entry, generation)
    if not session.sealed:  # its layers are level, and nobody can have left anything half done
        session.truncate(session.length, note=last_cut.note_of_attach(request_id, generation))
    if request_id:
        entry.attached = Attached(request_id, generation, session.generation)


def _is_new(session: DecoderSession, layers: Sequence[int], position: int, tokens: int) -> bool:
    """Whether the tokens come next in all these layers; False if all have the whole run already."""
    lengths = [session.layer_length(layer) for layer in layers]
    expected, most = min(lengths), max(lengths)
    if expected == most == position:
        return True
    if expected >= position + tokens:
        return False
    held = f"{expected}" if expected == most else f"{expected} to {most}"
    raise SequenceGap(
        f"the layer's length is {held}, so tokens {position} to {position + tokens - 1} neither come next "
        f"nor are all there",
        expected=expected,
    )


def _check_same(session: DecoderSession, layer: int, position: int, k: Floats, v: Floats) -> None:
    if not session.matches(layer, position, k, v):
        raise PositionConflict(
            f"layer {layer} has other tokens at {position} to {position + len(k) - 1}",
            expected=session.layer_length(layer),
        )


def _check_axes(name: str, array: Floats, axes: int) -> None:
    """The rules need the number of layers and tokens; everything else about shapes is the session's."""
    if array.ndim != axes or 0 in array.shape[: axes - 2]:
        expected: Final = "[layers, tokens, heads, dim]" if axes == 4 else "[tokens, heads, dim]"
        raise InvalidShape(
            f"{name} must be {expected} with no empty axis, got {list(array.shape)}",
            field=name,
            got=str(list(array.shape)),
            expected=expected,
        )
