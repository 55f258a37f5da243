"""What a snapshot says about its stream before the pages come: the specification, and how far it reaches.

Canonical JSON in ASCII: keys sorted, no spaces, floats as Python's repr (which reads back to the same bits).
A header that is not to the byte what it would be written as is refused, so nothing in it goes unread: no key
twice, none unknown, no other spelling of a number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, NoReturn, Self, get_args

from rondel.decoder.checks import whole
from rondel.decoder.errors import CorruptSnapshot, InvalidSpec, UnsupportedSnapshot
from rondel.decoder.rope import Rope
from rondel.decoder.rope_scaling import Scaling
from rondel.decoder.spec import MAX_LAYERS, MAX_LENGTH, LayerGroup, StreamSpec

MAX_HEADER_BYTES: Final = 1 << 20
"""Above what 1024 layer groups need. Only some seventy groups with 512 rope divisors each need more."""

_SCALINGS: Final[Mapping[str, Any]] = {kind.__name__: kind for kind in get_args(Scaling)}
_MAX_GENERATION: Final = (1 << 48) - 2
"""The next one, which a start on an arena's file begins, has room in a word there."""
_MOST: Final = 1 << 47
"""Tokens, and generations, of what comes from elsewhere. No stream gets so far by itself; and whoever says
that it did leaves room for what comes after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotHeader:
    """A stream without its pages. ``lengths`` and ``claimed`` have one number per layer.

    Raises:
        InvalidSpec: no stream can be so.
    """

    spec: StreamSpec
    page_format: int
    lengths: tuple[int, ...]
    claimed: tuple[int, ...]
    high_water: int
    generation: int
    sealed: bool

    def __post_init__(self) -> None:
        for name in ("lengths", "claimed"):
            numbers = getattr(self, name)
            if not isinstance(numbers, tuple | list) or len(numbers) != self.spec.layers:
                raise InvalidSpec(
                    f"{name} must be {self.spec.layers} integers, got {_clip(numbers)}", field=name
                )
            object.__setattr__(self, name, tuple(whole(name, n, 0, self.spec.length_limit) for n in numbers))
        whole("generation", self.generation, 0, _MAX_GENERATION)
        if whole("high_water", self.high_water, 0, MAX_LENGTH) != max(self.claimed):
            raise InvalidSpec(
                f"high_water must be {max(self.claimed)}, got {self.high_water}", field="high_water"
            )
        if not isinstance(self.sealed, bool):
            raise InvalidSpec(f"sealed must be true or false, got {_clip(self.sealed)}", field="sealed")
        if self.sealed and len(set(self.lengths)) != 1:
            raise InvalidSpec(
                "the layers of a sealed stream must be equally long, got several lengths", field="sealed"
            )
        for layer, (length, claimed) in enumerate(zip(self.lengths, self.claimed, strict=True)):
            self._check_reach(layer, length, claimed)

    @property
    def length(self) -> int:
        """Tokens that every layer has."""
        return min(self.lengths)

    def _check_reach(self, layer: int, length: int, claimed: int) -> None:
        if length > claimed:
            raise InvalidSpec(
                f"layer {layer} has {length} tokens but claimed {claimed} positions only", field="claimed"
            )
        group = self.spec.group(layer)
        # What appends and truncates keep to (StreamExtent): a wrapped ring holds the window of the next
        # token.
        wrapped = group.capacity is not None and claimed - group.sinks > group.capacity
        if wrapped and claimed > self.length + group.reserve + 1:
            raise InvalidSpec(
                f"layer {layer} claimed {claimed} positions and has wrapped, so it may be at most "
                f"{group.reserve + 1} ahead of the stream's {self.length}",
                field="claimed",
            )

    def encode(self) -> bytes:
        """The header as it is stored. Raises InvalidSpec above MAX_HEADER_BYTES."""
        plain = {
            "claimed": self.claimed,
            "generation": self.generation,
            "groups": [_group_to_plain(group) for group in self.spec.groups],
            "high_water": self.high_water,
            "lengths": self.lengths,
            "max_length": self.spec.max_length,
            "page_format": self.page_format,
            "sealed": self.sealed,
        }
        text = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
        if len(text) > MAX_HEADER_BYTES:
            raise InvalidSpec(
                f"a snapshot's header has at most {MAX_HEADER_BYTES} bytes, this stream needs {len(text)}",
                field="spec",
            )
        return text.encode("ascii")

    @classmethod
    def decode(cls, raw: bytes, *, page_format: int) -> Self:
        """The header that was stored so, for pages of this format.

        Raises:
            CorruptSnapshot: it is no such header, or no stream can be so.
            UnsupportedSnapshot: its pages are of a newer format.
        """
        try:
            header = cls._read(raw, page_format)
            if header.encode() != raw:
                raise InvalidSpec("the text must be canonical, got another spelling of it", field="header")
            for name in ("generation", "high_water"):
                whole(name, getattr(header, name), 0, _MOST)
        except UnsupportedSnapshot:
            raise
        except (ValueError, RecursionError) as error:  # InvalidSpec is a ValueError, as what json raises
            raise CorruptSnapshot(f"the header of the snapshot is wrong: {error}", part="header") from error
        return header

    @classmethod
    def _read(cls, raw: bytes, page_format: int) -> Self:
        plain = json.loads(raw.decode("ascii"), parse_constant=_refuse_constant)
        names = {field.name for field in fields(cls)} - {"spec"} | {"groups", "max_length"}
        plain = _checked_object("header", plain, names)
        found = whole("page_format", plain["page_format"], 1, 1 << 31)
        if found > page_format:
            raise UnsupportedSnapshot(
                f"the snapshot's pages are of format {found}, this version reads up to {page_format}",
                version=found,
                supported=page_format,
            )
        groups, max_length = plain.pop("groups"), plain.pop("max_length")
        if not isinstance(groups, list) or len(groups) > MAX_LAYERS:
            raise InvalidSpec(
                f"groups must be a list of at most {MAX_LAYERS}, got {_clip(groups)}", field="groups"
            )
        spec = StreamSpec(
            groups=tuple(_group_from_plain(group) for group in groups),
            max_length=max_length,
        )
        return cls(spec=spec, **plain)


def _group_to_plain(group: LayerGroup) -> dict[str, Any]:
    plain = _fields_of(group)
    plain["scale"] = None if group.scale is None else float(group.scale)
    if group.rope is not None:
        rope = plain["rope"] = _fields_of(group.rope)
        if group.rope.scaling is not None:
            name = type(group.rope.scaling).__name__
            rope["scaling"] = {"kind": name, **_fields_of(group.rope.scaling)}
    return plain


def _group_from_plain(plain: object) -> LayerGroup:
    plain = _checked_object("groups", plain, _names(LayerGroup))
    if plain["rope"] is not None:
        rope = _checked_object("rope", plain["rope"], _names(Rope))
        if rope["scaling"] is not None:
            rope["scaling"] = _scaling_from_plain(rope["scaling"])
        plain["rope"] = Rope(**rope)
    return LayerGroup(**plain)


def _scaling_from_plain(plain: object) -> Scaling:
    name = plain.get("kind") if isinstance(plain, dict) else None
    if not isinstance(name, str) or name not in _SCALINGS:
        raise InvalidSpec(
            f"scaling must be one of {', '.join(_SCALINGS)}, got {_clip(name)}", field="scaling"
        )
    kind = _SCALINGS[name]
    plain = _checked_object("scaling", plain, {"kind", *_names(kind)})
    del plain["kind"]
    scaling: Scaling = kind(**plain)
    return scaling


def _names(kind: Any) -> set[str]:
    """Whatever describes a stream is written: a field that is added later is a new version of the format."""
    return {field.name for field in fields(kind) if field.init}


def _fields_of(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in _names(type(value))}


def _checked_object(name: str, plain: object, keys: set[str]) -> dict[str, Any]:
    if not isinstance(plain, dict) or set(plain) != keys:
        raise InvalidSpec(f"{name} must have {', '.join(sorted(keys))}, got {_clip(plain)}", field=name)
    return dict(plain)


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidSpec(f"numbers must be finite, got {name}", field="header")


def _clip(value: object) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of too many digits, lists in lists in lists
        return f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:60]}…"
