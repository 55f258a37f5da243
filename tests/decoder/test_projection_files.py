"""Projections from safetensors files: both layouts, all types, other names, and files that do not serve."""

from pathlib import Path

import numpy as np
import pytest
import tinysafetensors
from comparators import assert_same_bits

from rondel.decoder.cache.arena import Arena
from rondel.decoder.errors import CorruptModel, InvalidSpec, ModelNotFound, UnsupportedModel
from rondel.decoder.projection import Projections
from rondel.decoder.session import DecoderSession
from rondel.decoder.spec import StreamSpec

SPEC = StreamSpec.uniform(layers=11, query_heads=4, kv_heads=2, head_dim=8, value_dim=6, max_length=100)
NAME = "model.layers.0.self_attn.{}_proj.{}"


def good() -> dict[str, np.ndarray]:
    """Tensors of one layer: d_model 3, two query heads of 4, one kv head."""
    sizes = {"q": 8, "k": 4, "v": 4}
    return {NAME.format(part, "weight"): np.ones((n, 3), np.float32) for part, n in sizes.items()}


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("biases", [False, True])
def test_a_float32_file_gives_the_same_bits(tmp_path: Path, transposed: bool, biases: bool) -> None:
    made = tinysafetensors.draw(SPEC, 9, biases=biases)
    path = tinysafetensors.save(tmp_path / "p.safetensors", made, transposed=transposed)
    read = Projections.load(path, transposed=transposed)
    assert list(read.layers) == list(range(11))
    x = np.random.default_rng(1).standard_normal((20, 9), np.float32)
    for layer in (0, 10):
        assert_same_bits(read.layers[layer].w_v, made.layers[layer].w_v, "w_v")
        outs = [
            DecoderSession(SPEC, Arena(budget=64 << 20), projections=projections).step_embeddings(layer, x)
            for projections in (made, read)
        ]
        assert_same_bits(outs[0], outs[1], f"layer {layer}")


@pytest.mark.parametrize(("dtype", "step"), [("F16", 2.0**-11), ("BF16", 2.0**-8)])
def test_half_precision_is_widened(tmp_path: Path, dtype: str, step: float) -> None:
    made = tinysafetensors.draw(SPEC, 9, biases=True)
    read = Projections.load(tinysafetensors.save(tmp_path / "p", made, dtype))
    for part in ("w_q", "w_k", "w_v", "b_q", "b_k", "b_v"):
        got, want = getattr(read.layers[3], part), getattr(made.layers[3], part)
        assert got.dtype == np.float32
        assert not np.array_equal(got, want)
        np.testing.assert_allclose(got, want, rtol=step, atol=1e-7)


def test_names_can_be_others(tmp_path: Path) -> None:
    arrays = {f"blk.7.attn_{part}.weight": np.ones((4, 3), np.float32) for part in "qkv"}
    arrays["blk.7.attn_qkv.weight"] = arrays["xblk.7.attn_q.weight"] = np.ones((1, 1), np.float32)
    path = tinysafetensors.write(tmp_path / "p", arrays)
    assert list(Projections.load(path, names="blk.{layer}.attn_{part}.{kind}").layers) == [7]
    with pytest.raises(UnsupportedModel, match="named like"):
        Projections.load(path)


@pytest.mark.parametrize("names", ["", "{layer}.{part}", "{layer}{layer}{part}{kind}", 3])
def test_names_need_their_three_parts(tmp_path: Path, names: str) -> None:
    with pytest.raises(InvalidSpec, match="once each") as caught:
        Projections.load(tmp_path / "p", names=names)
    assert caught.value.field == "names"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({NAME.format("k", "weight"): None}, "needs w_q, w_k and w_v, got w_q, w_v"),
        ({NAME.format("q", "weight"): np.ones(8, np.float32)}, "layer 0: w_q must be"),
        ({NAME.format("v", "weight"): np.ones((4, 2), np.float32)}, r"w_v must be float32 \[3, n\]"),
        ({NAME.format("v", "bias"): np.ones(3, np.float32)}, r"b_v must be float32 \[4\]"),
        ({NAME.format("q", "weight"): np.full((8, 3), np.nan, np.float32)}, "w_q must hold finite"),
        ({NAME.format("q", "bias"): np.full(8, np.inf, np.float32)}, "b_q must hold finite"),
        ({NAME.format("q", "bias").replace(".0.", ".5."): np.ones(8, np.float32)}, "layer 5 needs"),
    ],
)
def test_a_file_that_makes_no_projection_is_refused(
    tmp_path: Path, changes: dict[str, np.ndarray | None], text: str
) -> None:
    arrays = {name: array for name, array in {**good(), **changes}.items() if array is not None}
    path = tinysafetensors.write(tmp_path / "odd", arrays)
    with pytest.raises(CorruptModel, match=text) as caught:
        Projections.load(path)
    assert str(path) in caught.value.message


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        Projections.load(tmp_path / "none")
