"""Everything a caller can get wrong: one typed error, and a session as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from comparators import assert_same_bits
from mirror import Mirror, refused, small
from oracle import TIERS, Floats

from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import (
    InvalidLayer,
    InvalidShape,
    RondelError,
    ValueRange,
)
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import MAX_MAGNITUDE, StreamSpec

Arrays = dict[str, Any]
LENGTH = 300  # past the first wrap
ARGUMENTS = {
    "append": "kv",
    "step": "qkv",
    "attend": "q",
    "matches": "kv",
    "append_all": "kv",
    "step_all": "qkv",
}
METHODS = pytest.mark.parametrize("method", ARGUMENTS)
EACH = pytest.mark.parametrize(
    ("method", "argument"), [(method, name) for method, names in ARGUMENTS.items() for name in names]
)


def good(mirror: Mirror, method: str, tokens: int = 2) -> Arrays:
    drawn = mirror.draw_stack(range(2), tokens) if method.endswith("all") else mirror.draw(0, tokens)
    return dict(zip("qkv", drawn, strict=True))


def call(mirror: Mirror, method: str, arrays: Arrays, layer: Any = 0) -> Any:
    values = [arrays[name] for name in ARGUMENTS[method]]
    if method.endswith("all"):
        return getattr(mirror.session, method)(*values, first_layer=layer)
    place = [LENGTH - 2] if method == "matches" else []
    return getattr(mirror.session, method)(layer, *place, *values)


# --- arrays -------------------------------------------------------------------------------------------

MISSHAPEN: dict[str, Callable[[Floats], object]] = {
    "float64": lambda x: x.astype(np.float64),
    "float16": lambda x: x.astype(np.float16),
    "int32": lambda x: x.astype(np.int32),
    "int8": lambda x: x.astype(np.int8),
    "bool": lambda x: x > 0,
    "complex": lambda x: x.astype(np.complex64),
    "object": lambda x: x.astype(object),
    "other byte order": lambda x: x.astype(x.dtype.newbyteorder()),
    "list": lambda x: x.tolist(),
    "None": lambda x: None,
    "number": lambda x: 1.0,
    "text": lambda x: "abc",
    "bytes": lambda x: x.tobytes(),
    "memoryview": lambda x: x.data,
    "scalar array": lambda x: np.array(1.0, np.float32),
    "flat": lambda x: x.reshape(-1),
    "one axis less": lambda x: x[0],
    "one axis more": lambda x: x[None],
    "a head more": lambda x: np.concatenate([x, x[..., :1, :]], axis=-2),
    "a head less": lambda x: x[..., 1:, :],
    "no heads": lambda x: x[..., :0, :],
    "dim + 1": lambda x: np.concatenate([x, x[..., :1]], axis=-1),
    "dim - 1": lambda x: x[..., 1:],
    "no dims": lambda x: x[..., :0],
    "heads and dim exchanged": lambda x: np.swapaxes(x, -1, -2),
}


@pytest.mark.parametrize("kind", MISSHAPEN)
@EACH
def test_arrays_of_another_kind_or_shape(method: str, argument: str, kind: str) -> None:
    mirror = Mirror(small()).grow(LENGTH)
    arrays = good(mirror, method)
    arrays[argument] = MISSHAPEN[kind](arrays[argument])
    with refused(mirror, InvalidShape) as caught:
        call(mirror, method, arrays)
    assert caught.value.got in caught.value.message
    assert caught.value.expected in caught.value.message


@pytest.mark.parametrize("tokens", [0, 1, 3])
@pytest.mark.parametrize("method", ["append", "step", "matches", "append_all", "step_all"])
def test_arrays_that_disagree_on_the_number_of_tokens(method: str, tokens: int) -> None:
    mirror = Mirror(small()).grow(LENGTH)
    for argument in ARGUMENTS[method]:
        arrays = good(mirror, method)
        arrays[argument] = good(mirror, method, tokens)[argument]
        with refused(mirror, InvalidShape):
            call(mirror, method, arrays)


@EACH
def test_numbers_that_are_not_finite_or_too_large(method: str, argument: str) -> None:
    mirror = Mirror(small()).grow(LENGTH)
    beyond = np.nextafter(np.float32(MAX_MAGNITUDE), np.float32(np.inf))
    for bad in (np.nan, -np.nan, np.inf, -np.inf, 1e16, -1e16, beyond, -beyond, np.finfo(np.float32).max):
        for at in (0, 1, 17, -2, -1):
            arrays = good(mirror, method)
            arrays[argument].reshape(-1)[at] = bad
            with refused(mirror, ValueRange):
                call(mirror, method, arrays)


@pytest.mark.parametrize("tier", TIERS)
def test_a_bad_number_is_found_wherever_it_stands(tier: str) -> None:
    mirror = Mirror(small(head_dim=13, value_dim=5), tier).grow(5)
    for tokens in (1, 2, 5):
        q, k, v = mirror.draw(0, tokens)
        for x in (q, k, v):
            flat = x.reshape(-1)
            for at in range(len(flat)):
                kept, flat[at] = flat[at], np.nan if at % 2 else -2e15
                with pytest.raises(ValueRange):
                    mirror.session.step(0, q, k, v)
                flat[at] = kept
    assert mirror.session.length == mirror.session.high_water == 5


@METHODS
def test_the_largest_magnitude_is_accepted(method: str) -> None:
    mirror = Mirror(small()).grow(LENGTH)
    arrays = {name: np.full_like(x, -MAX_MAGNITUDE) for name, x in good(mirror, method).items()}
    call(mirror, method, arrays)


def strided(x: Floats) -> dict[str, Floats]:
    """The same numbers, laid out in every other way."""
    wide = np.zeros((*x.shape[:-1], 2 * x.shape[-1] + 1), np.float32)
    wide[..., 1::2] = x
    raw = np.zeros(x.nbytes + 1, np.uint8)
    unaligned = raw[1:].view(np.float32).reshape(x.shape)
    unaligned[...] = x
    fixed = x.copy()
    fixed.flags.writeable = False
    return {
        "every second": wide[..., 1::2],
        "reversed": x[..., ::-1].copy()[..., ::-1],
        "tokens reversed": x[::-1].copy()[::-1],
        "Fortran order": np.asfortranarray(x),
        "axes exchanged": np.swapaxes(np.swapaxes(x, -1, -2).copy(), -1, -2),
        "not aligned": unaligned,
        "read only": fixed,
        "repeated": np.broadcast_to(x, (2, *x.shape))[1],
    }


@METHODS
def test_any_layout_gives_the_same_result(method: str) -> None:
    arrays = good(Mirror(small()), method)
    layouts = {name: strided(x) for name, x in arrays.items()}
    plain = Mirror(small()).grow(LENGTH)
    want = call(plain, method, arrays)
    for layout in layouts["q"]:
        mirror = Mirror(small()).grow(LENGTH)
        got = call(mirror, method, {name: layouts[name][layout] for name in arrays})
        if isinstance(want, np.ndarray):
            assert_same_bits(got, want, layout)
        else:
            assert got == want
        added = plain.session.layer_length(0) - LENGTH
        for other in (mirror, plain) if added else ():
            assert other.session.layer_length(0) == LENGTH + added
        if added:
            pairs = zip(*(m.session.read(0, LENGTH, LENGTH + added) for m in (mirror, plain)), strict=True)
            for a, b in pairs:
                assert_same_bits(a, b, layout)


@pytest.mark.parametrize("sinks", [0, 3])
@pytest.mark.parametrize("length", [0, 3, 131, LENGTH])
@METHODS
def test_no_tokens_are_accepted_and_change_nothing(method: str, length: int, sinks: int) -> None:
    mirror = Mirror(small(sinks=sinks)).grow(length)
    before = mirror.state()
    arrays = good(mirror, method, 0)
    if method == "matches":
        assert mirror.session.matches(0, length, arrays["k"], arrays["v"]) is True
    else:
        call(mirror, method, arrays)
    for run in (slice(0, 1), slice(1, 2)) if method.endswith("all") else ():
        call(mirror, method, {name: x[run] for name, x in arrays.items()}, layer=run.start)
    k, v = mirror.session.read(0, length, length)
    assert (k.shape, v.shape) == ((0, 2, 16), (0, 2, 24))
    assert mirror.state() == before


# --- layers, positions, lengths -----------------------------------------------------------------------


@pytest.mark.parametrize("layer", [-1, 2, 2**70, 0.0, 1.5, True, "0", None, (0,)], ids=repr)
@METHODS
def test_layers_that_do_not_exist(method: str, layer: object) -> None:
    mirror = Mirror(small()).grow(LENGTH)
    with refused(mirror, InvalidLayer, layers=2):
        call(mirror, method, good(mirror, method), layer)
    with refused(mirror, InvalidLayer, layers=2):
        mirror.session.read(layer, 299, 300)  # type: ignore[arg-type]
    with pytest.raises(InvalidLayer):
        mirror.session.layer_length(layer)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [299.0, 299.5, float("nan"), float("inf"), "299", (299,), 299j], ids=repr)
def test_positions_and_lengths_that_are_not_whole_numbers(number: Any) -> None:
    """None of these is a position: refused, never rounded."""
    mirror = Mirror(small()).grow(LENGTH)
    q, k, v = mirror.draw(0, 1)
    before = mirror.state()
    for attempt in (
        lambda: mirror.session.truncate(number),
        lambda: mirror.session.attend(0, q, position=number),
        lambda: mirror.session.matches(0, number, k, v),
        lambda: mirror.session.read(0, number, 300),
        lambda: mirror.session.read(0, 299, number),
    ):
        with pytest.raises((TypeError, RondelError)):
            attempt()
        assert mirror.state() == before


def test_whole_numbers_of_numpy_never_become_a_length() -> None:
    """Accepted or refused, but what the session says stays a plain int."""
    mirror = Mirror(small()).grow(LENGTH)
    try:
        mirror.session.truncate(np.int64(295))  # type: ignore[arg-type]
    except (TypeError, RondelError):
        assert mirror.session.length == LENGTH
    numbers = (mirror.session.length, mirror.session.layer_length(1), mirror.session.min_length)
    assert [type(number) for number in numbers] == [int, int, int]


@pytest.mark.parametrize(
    ("tokens", "at_most"),
    [(5, 0), (5, -1), (5, 1.5), (5, "1"), (5, None), (2.5, 5), (float("inf"), 5), ("5", 5)],
    ids=repr,
)
def test_chunks_of_nothing_are_refused_not_endless(tokens: Any, at_most: Any) -> None:
    mirror = Mirror(small()).grow(LENGTH)
    with pytest.raises((TypeError, RondelError)):
        next(iter(mirror.session.chunks(tokens, at_most=at_most)))


def test_chunks_cover_the_run_and_keep_to_the_limits() -> None:
    session = Mirror(small()).session
    assert list(session.chunks(0)) == []
    assert list(session.chunks(259)) == [slice(0, 259)]  # all up to the wrap
    assert list(session.chunks(5, at_most=2)) == [slice(0, 2), slice(2, 4), slice(4, 5)]
    wrapped = Mirror(small()).grow(LENGTH).session
    assert [part.stop - part.start for part in wrapped.chunks(25)] == [10, 10, 5]


def test_an_unaligned_array_is_copied_not_misread() -> None:
    session = DecoderSession(
        StreamSpec.uniform(layers=1, query_heads=1, kv_heads=1, head_dim=8, max_length=8, storage="float32"),
        Arena(budget=4 << 20),
    )
    whole = np.arange(8, dtype=np.float32).reshape(1, 1, 8)
    shifted = np.frombuffer(b"x" + whole.tobytes(), dtype=np.float32, offset=1).reshape(1, 1, 8)
    assert not shifted.flags.aligned
    session.append(0, shifted, shifted)
    assert np.array_equal(session.read(0, 0, 1)[0], whole)
