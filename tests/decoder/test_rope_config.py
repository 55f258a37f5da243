"""Hugging Face's rope entries: those of known models, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rondel.decoder.errors import InvalidSpec
from rondel.decoder.rope import Rope
from rondel.decoder.rope_scaling import LinearScaling, Llama3Scaling, Scaling, YarnScaling

LLAMA: dict[str, Any] = {
    "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192, "rope_type": "llama3",
}  # fmt: skip
DEEPSEEK: dict[str, Any] = {
    "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096, "type": "yarn",
}  # fmt: skip
GPT_OSS: dict[str, Any] = {
    "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
    "rope_type": "yarn", "truncate": False,
}  # fmt: skip


@pytest.mark.parametrize(
    ("entry", "scaling"),
    [
        (None, None),
        ({}, None),
        ({"rope_type": "default"}, None),
        ({"type": "linear", "factor": 4}, LinearScaling(4.0)),
        (LLAMA, Llama3Scaling(8.0, 1.0, 4.0, 8192)),
        (DEEPSEEK, YarnScaling(40.0, 4096, attention_factor=1.0)),
        (GPT_OSS, YarnScaling(32.0, 4096, truncate=False)),
        (
            {"type": "yarn", "factor": 4.0, "attention_factor": None, "finetuned": True},
            YarnScaling(4.0, 32768),
        ),
        ({"type": "yarn", "original_max_position_embeddings": 8192}, YarnScaling(4.0, 8192)),
        (
            {**DEEPSEEK, "mscale": 0.707},
            YarnScaling(40.0, 4096, attention_factor=(0.0707 * math.log(40) + 1) / (0.1 * math.log(40) + 1)),
        ),
        ({**DEEPSEEK, "attention_factor": 1.5}, YarnScaling(40.0, 4096, attention_factor=1.5)),
        ({**DEEPSEEK, "mscale": 0, "beta_fast": 0, "beta_slow": None}, YarnScaling(40.0, 4096)),
    ],
    ids=repr,
)
def test_known_entries(entry: dict[str, Any] | None, scaling: Scaling | None) -> None:
    before = dict(entry or {})
    assert Rope.from_config(entry, theta=5e5, dim=64, context=32768) == Rope(
        theta=5e5, dim=64, scaling=scaling
    )
    assert (entry or {}) == before


def test_theta_and_layout() -> None:
    entry = {"rope_type": "default", "rope_theta": 1_000_000.0}
    assert Rope.from_config(entry) == Rope(theta=1e6)
    assert Rope.from_config(entry, theta=1e6, interleaved=True) == Rope(theta=1e6, interleaved=True)
    assert Rope.from_config({}) == Rope()
    with pytest.raises(InvalidSpec, match=r"must be 10000\.0, got 1000000\.0") as caught:
        Rope.from_config(entry, theta=10_000.0)
    assert caught.value.field == "theta"


def test_partial_rotation_needs_its_dim() -> None:
    entry = {"rope_type": "default", "partial_rotary_factor": 0.25}
    assert Rope.from_config(entry, dim=16) == Rope(dim=16)
    assert Rope.from_config({**entry, "partial_rotary_factor": 1.0}) == Rope()
    with pytest.raises(InvalidSpec, match="needs the dim") as caught:
        Rope.from_config(entry)
    assert caught.value.field == "dim"


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_scaling_by_the_length_is_refused(kind: str, key: str) -> None:
    with pytest.raises(InvalidSpec, match=f"must not depend on the stream's length.*got '{kind}'") as caught:
        Rope.from_config({key: kind, "factor": 2.0})
    assert caught.value.field == "scaling"


@pytest.mark.parametrize(
    ("entry", "field", "words"),
    [
        ({"rope_type": "mrope"}, "scaling", "one of default, linear, yarn, llama3, got 'mrope'"),
        ({"rope_type": None}, "scaling", "got None"),
        ({"rope_type": ["yarn"]}, "scaling", "one of"),
        ({"rope_type": "linear"}, "factor", "needs the key 'factor'"),
        ({"rope_type": "linear", "factor": "4"}, "factor", "got '4'"),
        ({"rope_type": "linear", "factor": 4.0, "low_freq_factor": 1.0}, "low_freq_factor", "has no key"),
        ({"full_attention": {"rope_type": "default"}}, "full_attention", "has no key 'full_attention'"),
        ({**LLAMA, "high_freq_factor": 1.0}, "high_freq_factor", "got 1.0"),
        ({**LLAMA, "low_freq_factor": None}, "low_freq_factor", "needs the key"),
        ({**DEEPSEEK, "mscale": "1"}, "mscale", "got '1'"),
        ({**DEEPSEEK, "original_max_position_embeddings": 0}, "original_context", "got 0"),
        ({"rope_type": "yarn", "factor": 4.0}, "original_context", "got neither"),
        ({"rope_type": "yarn", "original_max_position_embeddings": 4096}, "factor", "needs the key 'factor'"),
        ({"rope_type": "default", "rope_theta": "1e6"}, "theta", "got '1e6'"),
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_not_understood_is_refused(entry: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(InvalidSpec, match=words) as caught:
        Rope.from_config(entry)
    assert caught.value.field == field
