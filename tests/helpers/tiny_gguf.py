"""Turns a folder of `tiny_models` into a GGUF file the way llama.cpp's converter does.

Names come from the `gguf` package's own tables, q and k of the llama family are re-ordered for rotation in pairs, and
Gemma's norms have one added.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
from gguf.constants import GGMLQuantizationType
from safetensors.numpy import load_file

from helpers import gguf_blocks

ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "phi3": gguf.MODEL_ARCH.PHI3,
}


def convert(
    folder: Path,
    path: Path,
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    kinds: Mapping[str, GGMLQuantizationType] = MappingProxyType({}),
) -> Path:
    """Matrices are stored as `kind`, or by their names as `kinds` says, vectors as F32. The K formats, which the `gguf`
    package cannot write, get random codes."""
    config = json.loads((folder / "config.json").read_text())
    architecture = ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    _add_metadata(writer, config)
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    for file in sorted(folder.glob("*.safetensors")):
        for name, tensor in load_file(file).items():
            stored, renamed = _transformed(name, tensor, config), _renamed(names, name)
            to = kinds.get(renamed, kind)
            if stored.ndim == 2 and to != GGMLQuantizationType.F32:
                blocks = gguf_blocks.random_rows if to.name in gguf_blocks.K_FORMATS else gguf.quants.quantize
                writer.add_tensor(renamed, blocks(stored, to), raw_dtype=to)
            else:
                writer.add_tensor(renamed, stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def dequantized(path: Path) -> dict[str, np.ndarray]:
    """What the `gguf` package reads: by GGUF name, float32."""
    reader = gguf.GGUFReader(path)
    return {tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors}


def raw(path: Path) -> dict[str, np.ndarray]:
    """By GGUF name: the bytes of each row."""
    return {tensor.name: np.asarray(tensor.data) for tensor in gguf.GGUFReader(path).tensors}


def original_names(folder: Path) -> dict[str, str]:
    """GGUF's name -> the one in the folder."""
    config = json.loads((folder / "config.json").read_text())
    names = gguf.get_tensor_name_map(ARCHITECTURES[config["model_type"]], config["num_hidden_layers"])
    return {_renamed(names, name): name for file in folder.glob("*.safetensors") for name in load_file(file)}


def _add_metadata(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    rope = config["rope_parameters"].get("full_attention", config["rope_parameters"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope["rope_theta"])
    if "head_dim" in config:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
    if config["model_type"] == "gemma3_text":
        writer.add_sliding_window_pattern(config["layer_types"].index("full_attention") + 1)
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_factors(config, rope))


def _llama3_factors(config: dict[str, Any], rope: dict[str, Any]) -> np.ndarray:
    """By how much each dimension is slowed down."""
    dim = config["head_dim"]
    waves = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, dim, 2, dtype=np.float32) / dim)
    low, high, original = rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"]
    smooth = (original / waves - low) / (high - low)
    between = 1 / ((1 - smooth) / rope["factor"] + smooth)
    return np.where(waves < original / high, 1.0, np.where(waves > original / low, rope["factor"], between)).astype(
        "f4"
    )


def _transformed(name: str, tensor: np.ndarray, config: dict[str, Any]) -> np.ndarray:
    if config["model_type"] in ("llama", "mistral") and ("q_proj" in name or "k_proj" in name):
        heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
        halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
        return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(tensor.shape))
    return tensor + 1 if config["model_type"] == "gemma3_text" and "norm" in name else tensor


def _renamed(names: gguf.TensorNameMap, name: str) -> str:
    renamed = names.get_name(name, (".weight", ".bias"))
    assert renamed is not None, name
    return renamed
