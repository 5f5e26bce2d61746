"""Small files for the tests of `store`: GGUF models, wheels, and pip pointed at them."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import save_file

CONTROL, NORMAL = 3, 1
VOCAB = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *"abcdefgh", "ab", "cd"]

LLAMA: dict[str, Any] = {
    "llama.block_count": 2,
    "llama.context_length": 128,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 100_000.0,
    "llama.rope.dimension_count": 16,
}

# config.json of a tiny Llama
HF_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 2,
}

TOKENIZER: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": VOCAB,
    "tokenizer.ggml.token_type": [CONTROL] * 3 + [NORMAL] * (len(VOCAB) - 3),
    "tokenizer.ggml.merges": ["a b", "c d"],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.ggml.padding_token_id": 2,
    "tokenizer.chat_template": "{% for message in messages %}{{ message.content }}{% endfor %}",
    "general.license": "mit",
}


def as_architecture(name: str, **changes: Any) -> dict[str, Any]:
    """LLAMA's metadata under another architecture's name. A change to None takes a key out; dots are `__`."""
    renamed = {key.replace("llama.", f"{name}."): value for key, value in LLAMA.items()}
    renamed |= {f"{name}.{key.replace('__', '.')}": value for key, value in changes.items()}
    return {key: value for key, value in renamed.items() if value is not None}


def write_gguf(
    path: Path,
    architecture: str = "llama",
    metadata: dict[str, Any] | None = None,
    tensors: dict[str, np.ndarray] | None = None,
) -> Path:
    """A GGUF file as the reference writer makes it; by default a tiny Llama with its tokenizer."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (LLAMA | TOKENIZER if metadata is None else metadata).items():
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case str():
                writer.add_string(key, value)
            case _:
                writer.add_array(key, value)
    table = {"token_embd.weight": np.zeros((len(VOCAB), 64), np.float16)}
    for name, tensor in (table if tensors is None else tensors).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_hf_folder(folder: Path) -> Path:
    """The least a Hugging Face folder can have; its one tensor is no model's."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(HF_CONFIG))
    save_file({"a": np.zeros(50_000, np.float32)}, folder / "model.safetensors")
    return folder


def write_wheel(folder: Path, package: str, version: str, files: dict[str, bytes]) -> Path:
    """A wheel that pip accepts."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{package.replace('-', '_')}-{version}"
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr(f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        archive.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{stem}.dist-info/RECORD", "")
    return path


def pip_environment(wheels: Path) -> dict[str, str]:
    """What makes pip know these wheels and nothing else."""
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": os.devnull}
