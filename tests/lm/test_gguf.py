"""Whatever a file holds, loading it works or raises one of the model errors."""

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
import tinygguf

from rondel.decoder.errors import BudgetExceeded, CorruptModel, ModelError, ModelNotFound, UnsupportedModel
from rondel.decoder.lm.forward import LanguageModel
from rondel.decoder.lm.gguf_file import GgufFile
from rondel.decoder.lm.gguf_header import MAX_ITEMS

Write = Callable[..., Path]

YARN: dict[str, object] = {
    "llama.rope.scaling.type": "yarn",
    "llama.rope.scaling.factor": 4.0,
    "llama.rope.scaling.original_context_length": 64,
}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    return lambda **options: tinygguf.write(tmp_path / "model.gguf", **options)


def test_agrees_with_the_packages_own_reader(tiny_file: Path) -> None:
    ours, theirs = GgufFile(tiny_file), gguf.GGUFReader(tiny_file)
    assert ours.tensor_names == {tensor.name for tensor in theirs.tensors}
    for tensor in theirs.tensors:
        got = ours.tensor(tensor.name, tuple(reversed(tensor.shape.tolist())))
        np.testing.assert_array_equal(got, tensor.data)
    assert ours.keys == {key for key in theirs.fields if not key.startswith("GGUF.")}
    assert ours.values("tokenizer.ggml.tokens", str) == theirs.fields["tokenizer.ggml.tokens"].contents()
    assert ours.value("llama.rope.freq_base", float) == 10_000.0
    assert ours.value("tokenizer.ggml.add_bos_token", bool) is False


@pytest.mark.parametrize("stored", ["F16", "BF16", "Q8_0", "Q4_1", "Q5_0"])
def test_dequantises(write: Write, stored: str) -> None:
    weights = tinygguf.tensors()
    file = GgufFile(write(stored=stored))
    kind = gguf.GGMLQuantizationType[stored]
    name = "blk.0.ffn_down.weight"
    got = file.tensor(name, weights[name].shape)
    np.testing.assert_array_equal(got, gguf.dequantize(gguf.quantize(weights[name], kind), kind))
    assert got.dtype == np.float32
    assert got.flags.writeable


def test_a_file_cut_anywhere_is_corrupt(tiny_file: Path, tmp_path: Path) -> None:
    whole = tiny_file.read_bytes()
    cut = tmp_path / "cut.gguf"
    rng = np.random.default_rng(5)
    places = {*range(600), *rng.integers(0, len(whole), 300).tolist(), len(whole) - 1}
    for length in sorted(places):
        cut.write_bytes(whole[:length])
        with pytest.raises(CorruptModel, match=r"truncated: got \d+ bytes|not a GGUF file"):
            GgufFile(cut)


def test_damage_anywhere_in_the_header_is_a_model_error_or_harmless(tiny_file: Path, tmp_path: Path) -> None:
    whole = tiny_file.read_bytes()
    end = whole.rindex(b"blk.1.ffn_down.weight") + 60
    damaged = tmp_path / "damaged.gguf"
    rng = np.random.default_rng(6)
    refused = named = 0
    for place in rng.integers(4, end, 400).tolist():
        data = bytearray(whole)
        data[place] ^= int(rng.integers(1, 256))
        damaged.write_bytes(data)
        try:
            LanguageModel.load(damaged)
        except ModelError as error:
            named += str(damaged) in error.message
            refused += 1
    assert named == refused > 40


@pytest.mark.parametrize(
    ("content", "error", "match"),
    [
        (b"", CorruptModel, "begins with b''"),
        (b"GG", CorruptModel, "begins with b'GG'"),
        (b"PK\x03\x04" + bytes(100), CorruptModel, "expected b'GGUF'"),
        (b"GGUF", CorruptModel, "got 4 bytes, expected at least 8"),
        (b"GGUF\x01\0\0\0" + bytes(100), UnsupportedModel, "version 1"),
        (b"GGUF\x09\0\0\0" + bytes(100), UnsupportedModel, "version 9"),
        (b"GGUF\0\0\0\x03" + bytes(100), UnsupportedModel, "the other byte order"),
        (b"GGUF\x03\0\0\0" + b"\xff" * 100, CorruptModel, f"at most {MAX_ITEMS}"),
        (b"GGUF\x03\0\0\0" + bytes(100), CorruptModel, "'general.architecture' is missing"),
    ],
)
def test_foreign_files(tmp_path: Path, content: bytes, error: type[Exception], match: str) -> None:
    path = tmp_path / "foreign.gguf"
    path.write_bytes(content)
    with pytest.raises(error, match=match):
        LanguageModel.load(path)


def test_what_cannot_be_read_is_not_found(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.gguf", tmp_path):
        with pytest.raises(ModelNotFound, match="expected a GGUF file"):
            LanguageModel.load(path)


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"llama.block_count": None}, CorruptModel, "block_count' is missing"),
        ({"llama.block_count": 0}, CorruptModel, "at least 1, got 0"),
        ({"llama.block_count": 3}, CorruptModel, "'blk.2.attn_norm.weight' is missing"),
        ({"llama.block_count": 1}, UnsupportedModel, "'blk.1.attn_k.weight' is not part"),
        ({"llama.block_count": 1.5}, CorruptModel, "got 1.5, expected int"),
        ({"llama.attention.head_count_kv": 3}, CorruptModel, "multiple of head_count_kv, got 4 and 3"),
        ({"llama.attention.head_count": 8}, CorruptModel, r"got shape \(32, 64\), expected \(16, 64\)"),
        ({"llama.attention.head_count": [4, 4]}, CorruptModel, "got an array of 2"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, CorruptModel, "must be positive"),
        ({"llama.vocab_size": 7}, CorruptModel, "vocab_size is 7, but there are 262 tokens"),
        ({"llama.rope.dimension_count": 7}, CorruptModel, "must be even"),
        ({"llama.rope.dimension_count": 18}, UnsupportedModel, "at most 16, got 18"),
        ({"llama.rope.freq_base": 1e20}, UnsupportedModel, "rotary embedding: theta must be"),
        ({"llama.rope.freq_base": -1.0}, CorruptModel, "must be positive"),
        ({"llama.rope.scaling.type": "longrope"}, UnsupportedModel, "rope scaling 'longrope'"),
        ({"llama.rope.scaling.type": "yarn"}, CorruptModel, "factor' is missing"),
        ({"llama.rope.scaling.type": "linear"}, CorruptModel, "factor' is missing"),
        ({**YARN, "llama.rope.scaling.original_context_length": None}, CorruptModel, "length' is missing"),
        ({**YARN, "llama.rope.scaling.original_context_length": 1}, UnsupportedModel, "begin before it ends"),
        ({**YARN, "llama.rope.scaling.factor": 0.5}, UnsupportedModel, "factor must be from 1"),
        ({**YARN, "llama.rope.scaling.yarn_beta_fast": 16.0}, UnsupportedModel, "is not understood"),
        ({"llama.expert_count": 8}, UnsupportedModel, "expert_count is 8, expected 0"),
        ({"llama.attention.sliding_window": 128}, UnsupportedModel, "sliding_window is 128"),
        ({"llama.attention.causal": False}, UnsupportedModel, "causal is False"),
        ({"llama.logit_scale": 2.0}, UnsupportedModel, "'llama.logit_scale' is not understood"),
        ({"general.alignment": 24}, CorruptModel, "power of two, got 24"),
    ],
)
def test_settings_that_are_wrong_or_not_implemented(
    write: Write, changes: dict[str, object], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        LanguageModel.load(write(changes=changes))


def test_harmless_settings_are_accepted(write: Write) -> None:
    LanguageModel.load(
        write(changes={"llama.expert_count": 0, "llama.rope.scaling.type": "none", "llama.vocab_size": 262})
    )


def test_another_architecture(write: Write) -> None:
    with pytest.raises(UnsupportedModel, match="got architecture 'gpt2', expected 'llama'"):
        LanguageModel.load(write(architecture="gpt2"))


@pytest.mark.parametrize("name", sorted(tinygguf.tensors(tied=True)))
def test_every_tensor_is_needed_in_its_shape(write: Write, name: str) -> None:
    weights = tinygguf.tensors()
    missing = {key: weight for key, weight in weights.items() if key != name}
    with pytest.raises(CorruptModel, match=f"'{name}' is missing"):
        LanguageModel.load(write(weights=missing))
    grown = weights | {name: np.concatenate([weights[name]] * 2)}
    with pytest.raises(CorruptModel, match=f"'{name}': got shape"):
        LanguageModel.load(write(weights=grown))


def test_a_tensor_without_a_place_is_refused(write: Write) -> None:
    biased = tinygguf.tensors() | {"blk.0.attn_q.bias": np.zeros(64, np.float32)}
    with pytest.raises(UnsupportedModel, match=r"'blk.0.attn_q.bias' is not part"):
        LanguageModel.load(write(weights=biased))


@pytest.mark.parametrize(
    ("factors", "changes", "error", "match"),
    [
        (np.ones(7), {}, CorruptModel, r"'rope_freqs.weight': got shape \(7,\), expected \(8,\)"),
        (np.full(8, np.nan), {}, CorruptModel, r"'rope_freqs.weight' holds values that are not finite"),
        (np.zeros(8), {}, UnsupportedModel, "divisors must be from"),
        (np.ones(8), YARN, UnsupportedModel, "do not go together"),
    ],
    ids=["shape", "nan", "zero", "yarn"],
)
def test_rotary_factors_that_cannot_be(
    write: Write, factors: np.ndarray, changes: dict[str, object], error: type[Exception], match: str
) -> None:
    weights = tinygguf.tensors() | {"rope_freqs.weight": factors.astype(np.float32)}
    with pytest.raises(error, match=match):
        LanguageModel.load(write(weights=weights, changes=changes))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_corrupt(write: Write, bad: float) -> None:
    weights = tinygguf.tensors()
    weights["blk.1.ffn_up.weight"][3, 5] = bad
    with pytest.raises(CorruptModel, match=r"'blk.1.ffn_up.weight' holds values that are not finite"):
        LanguageModel.load(write(weights=weights))


def test_integer_tensors_are_unsupported(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "int.gguf", "llama")
    writer.add_tensor("x", np.zeros((2, 4), np.int8))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModel, match="'x' is stored as I8"):
        GgufFile(tmp_path / "int.gguf").tensor("x", (2, 4))


def test_weights_larger_than_the_machine_are_refused(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sysconf", lambda name: 1 if name == "SC_PHYS_PAGES" else 4096)
    with pytest.raises(BudgetExceeded, match="this machine has 4096") as caught:
        LanguageModel.load(write())
    assert caught.value.available == 4096
