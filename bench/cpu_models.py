"""Files that bench/cpu.py uses: SmolLM2 as published and as Q8_0, and Llama-3.2-1B's shape with random weights."""

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

import llama_cpp
from penstock.settings import load
from penstock.store.disk import cache_root
from penstock.store.resolve import resolve

FOLDER = cache_root() / "bench"
LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD, FFN, VOCAB = 16, 2048, 32, 8, 64, 8192, 128256


def smollm2() -> Path:
    (weights,) = resolve(load({}).model.model).weights
    return weights


def smollm2_q8() -> Path:
    return llama_cpp.requantized(smollm2(), "Q8_0", FOLDER / "smollm2-q8_0.gguf")


def llama_1b(kind: GGMLQuantizationType) -> Path:
    """Random weights: the same bytes and the same work as real ones."""
    path = FOLDER / f"llama-1b-{kind.name.lower()}.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        _write(part, kind)
        part.rename(path)
    return path


MODELS: dict[str, Callable[[], Path]] = {
    "SmolLM2-135M Q4_1": smollm2,
    "SmolLM2-135M Q8_0": smollm2_q8,
    "Llama-3.2-1B shape Q4_0": lambda: llama_1b(GGMLQuantizationType.Q4_0),
    "Llama-3.2-1B shape Q8_0": lambda: llama_1b(GGMLQuantizationType.Q8_0),
}


def _write(path: Path, kind: GGMLQuantizationType) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(131072)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500000.0)
    writer.add_vocab_size(VOCAB)
    writer.add_file_type(getattr(gguf.LlamaFileType, f"MOSTLY_{kind.name}"))  # OpenVINO requires it
    _add_vocabulary(writer)
    drawn = np.random.default_rng(0)

    def matrix(name: str, rows: int, columns: int) -> None:
        writer.add_tensor(f"{name}.weight", _random(drawn, rows, columns, kind), raw_dtype=kind)

    def norm(name: str) -> None:
        writer.add_tensor(f"{name}.weight", np.ones(HIDDEN, np.float32))

    matrix("token_embd", VOCAB, HIDDEN)
    norm("output_norm")
    for layer in range(LAYERS):
        norm(f"blk.{layer}.attn_norm")
        norm(f"blk.{layer}.ffn_norm")
        matrix(f"blk.{layer}.attn_q", HEADS * HEAD, HIDDEN)
        matrix(f"blk.{layer}.attn_k", KV_HEADS * HEAD, HIDDEN)
        matrix(f"blk.{layer}.attn_v", KV_HEADS * HEAD, HIDDEN)
        matrix(f"blk.{layer}.attn_output", HIDDEN, HEADS * HEAD)
        matrix(f"blk.{layer}.ffn_gate", FFN, HIDDEN)
        matrix(f"blk.{layer}.ffn_up", FFN, HIDDEN)
        matrix(f"blk.{layer}.ffn_down", HIDDEN, FFN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _random(drawn: np.random.Generator, rows: int, columns: int, kind: GGMLQuantizationType) -> np.ndarray:
    """Blocks of random codes behind one small scale (fp16, the first two bytes of a block in both formats)."""
    size, width = GGML_QUANT_SIZES[kind]
    blocks = drawn.integers(0, 256, (rows * columns // size, width), dtype=np.uint8)
    levels = 4.6 if kind is GGMLQuantizationType.Q4_0 else 74.0  # standard deviation of the codes
    blocks[:, :2] = np.frombuffer(np.float16(1 / (levels * columns**0.5)).tobytes(), np.uint8)
    return blocks.reshape(rows, columns // size * width)


def _add_vocabulary(writer: gguf.GGUFWriter) -> None:
    """A placeholder vocabulary of the right size, which both readers require."""
    letters = [chr(code) for code in [*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324)]]
    tokens = [*letters, "ab", *(f"<{number}>" for number in range(len(letters) + 1, VOCAB))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * (VOCAB - 2) + [gguf.TokenType.CONTROL] * 2)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(VOCAB - 2)
    writer.add_eos_token_id(VOCAB - 1)
    writer.add_add_bos_token(False)
