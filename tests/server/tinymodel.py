"""A language model of a few kilobytes: random weights, a token for every byte, a chat template."""

from pathlib import Path

import gguf
import numpy as np

CONTEXT = 300
END = 257
LAYERS, D_MODEL, HEADS, KV_HEADS, DIM, FFN = 2, 32, 4, 2, 8, 48

_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)


def _byte_alphabet() -> list[str]:
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def write(path: Path, *, seed: int = 1, context: int = CONTEXT) -> Path:
    """Writes the GGUF file."""
    rng = np.random.default_rng(seed)
    tokens = [*_byte_alphabet(), "<|im_start|>", "<|im_end|>", "th"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(context)
    writer.add_embedding_length(D_MODEL)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(
        [gguf.TokenType.NORMAL] * 256 + [gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.NORMAL]
    )
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(END)
    writer.add_add_bos_token(False)
    writer.add_chat_template(_TEMPLATE)

    def add(name: str, *shape: int) -> None:
        writer.add_tensor(name, rng.normal(0.0, 0.4, shape).astype(np.float32))

    add("token_embd.weight", len(tokens), D_MODEL)
    add("output_norm.weight", D_MODEL)
    add("output.weight", len(tokens), D_MODEL)
    for n in range(LAYERS):
        add(f"blk.{n}.attn_norm.weight", D_MODEL)
        add(f"blk.{n}.attn_q.weight", HEADS * DIM, D_MODEL)
        add(f"blk.{n}.attn_k.weight", KV_HEADS * DIM, D_MODEL)
        add(f"blk.{n}.attn_v.weight", KV_HEADS * DIM, D_MODEL)
        add(f"blk.{n}.attn_output.weight", D_MODEL, HEADS * DIM)
        add(f"blk.{n}.ffn_norm.weight", D_MODEL)
        add(f"blk.{n}.ffn_gate.weight", FFN, D_MODEL)
        add(f"blk.{n}.ffn_up.weight", FFN, D_MODEL)
        add(f"blk.{n}.ffn_down.weight", D_MODEL, FFN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
