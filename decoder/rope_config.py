"""Hugging Face's description of a rotary scaling, read strictly: what is not understood is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, cast

from rondel.decoder.checks import real, whole
from rondel.decoder.errors import InvalidSpec
from rondel.decoder.rope_scaling import (
    MAX_CONTEXT,
    MAX_FACTOR,
    LinearScaling,
    Llama3Scaling,
    Scaling,
    YarnScaling,
)

_BY_LENGTH: Final = ("dynamic", "longrope")
_KNOWN: Final[Mapping[str, tuple[str, ...]]] = {
    "default": (),
    "linear": ("factor",),
    "yarn": (
        "factor",
        "original_max_position_embeddings",
        "beta_fast",
        "beta_slow",
        "attention_factor",
        "mscale",
        "mscale_all_dim",
        "truncate",
    ),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
_HARMLESS: Final = ("rope_type", "type", "finetuned")


def scaling_of(entry: Mapping[str, object], context: int | None) -> Scaling | None:
    """The scaling that an entry names by ``rope_type`` (or ``type``); none at all is no scaling.

    ``context`` is the model's max_position_embeddings.

    Raises:
        InvalidSpec: the type depends on the length or is unknown; a key is missing, unknown or out of range.
    """
    kind = entry.get("rope_type", entry.get("type", "default"))
    if kind in _BY_LENGTH:
        raise InvalidSpec(
            f"rope_type must not depend on the stream's length, which would turn stored keys once more; "
            f"got {kind!r}",
            field="scaling",
        )
    if not isinstance(kind, str) or kind not in _KNOWN:
        raise InvalidSpec(f"rope_type must be one of {', '.join(_KNOWN)}, got {kind!r}", field="scaling")
    # A key that is left out gives fluent nonsense. One that is None is not there.
    given: dict[str, Any] = {key: value for key, value in entry.items() if value is not None}
    if strange := sorted(set(given) - {*_KNOWN[kind], *_HARMLESS}):
        raise InvalidSpec(f"a rope_type of {kind!r} has no key {strange[0]!r}", field=strange[0])
    if kind == "linear":
        return LinearScaling(_need(given, "factor", kind))
    if kind == "llama3":
        return Llama3Scaling(
            factor=_need(given, "factor", kind),
            low_freq_factor=_need(given, "low_freq_factor", kind),
            high_freq_factor=_need(given, "high_freq_factor", kind),
            original_context=_need(given, "original_max_position_embeddings", kind),
        )
    return _yarn(given, context) if kind == "yarn" else None


def _yarn(given: Mapping[str, Any], context: int | None) -> YarnScaling:
    original = given.get("original_max_position_embeddings", context)
    if original is None:
        raise InvalidSpec(
            "a rope_type of 'yarn' needs original_max_position_embeddings or the context, got neither",
            field="original_context",
        )
    whole("original_context", original, 1, MAX_CONTEXT)
    factor = given.get("factor")
    if factor is None and context is not None:
        factor = whole("context", context, 1, MAX_CONTEXT) / original
    return YarnScaling(
        factor=_need({"factor": factor}, "factor", "yarn"),
        original_context=original,
        # 0 means the default there.
        beta_fast=given.get("beta_fast") or 32.0,
        beta_slow=given.get("beta_slow") or 1.0,
        attention_factor=_attention_factor(given, cast(float, factor)),
        truncate=given.get("truncate", True),
    )


def _attention_factor(given: Mapping[str, Any], factor: float) -> float | None:
    """The entry's own; else from DeepSeek's two mscales; else None, the paper's."""
    if "attention_factor" in given:
        return cast(float, given["attention_factor"])
    if not (given.get("mscale") and given.get("mscale_all_dim")):
        return None
    stretch = math.log(real("factor", factor, 1.0, MAX_FACTOR))
    over, under = (
        0.1 * real(name, given[name], 0.0, MAX_FACTOR) * stretch + 1.0
        for name in ("mscale", "mscale_all_dim")
    )
    return over / under


def _need(given: Mapping[str, Any], key: str, kind: str) -> Any:
    if given.get(key) is None:
        raise InvalidSpec(f"a rope_type of {kind!r} needs the key {key!r}", field=key)
    return given[key]
