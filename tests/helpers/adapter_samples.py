"""LoRA adapters with random numbers for tests: PEFT folders and GGUF files, and PEFT's own model as the oracle."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file, save_file

from penstock.store.spec import ModelSpec

LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PHI3_LINEAR = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")


def linear_modules(spec: ModelSpec) -> tuple[str, ...]:
    return PHI3_LINEAR if spec.architecture == "phi3" else LINEAR


def write_adapter(
    folder: Path,
    spec: ModelSpec,
    *,
    rank: int = 4,
    alpha: float = 8.0,
    modules: Sequence[str] | None = None,
    layers: Sequence[int] | None = None,
    seed: int = 0,
    size: float = 0.1,
    dtype: str = "float32",
    **config: Any,
) -> Path:
    """A folder as PEFT saves it. `config` has further fields of adapter_config.json; `size` is that of the deltas
    beside weights of about 1 / √inputs."""
    modules = linear_modules(spec) if modules is None else modules
    random = np.random.default_rng(seed)
    tensors: dict[str, np.ndarray] = {}
    for name, inputs, outputs in _modules(spec, modules, range(spec.num_layers) if layers is None else layers):
        r = config.get("rank_pattern", {}).get(name.rsplit(".", 1)[-1], rank)
        a = random.standard_normal((r, inputs)) / (1.0 if name.endswith("embed_tokens") else inputs**0.5)
        b = random.standard_normal((outputs, r)) * size * r**-0.5
        kind = "lora_embedding_{}" if name.endswith("embed_tokens") else "lora_{}.weight"
        for side, values in (("A", a), ("B", b)):
            tensors[f"base_model.model.{name}.{kind.format(side)}"] = values.astype(dtype)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    fields = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": spec.name,
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": list(modules),
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(fields | config))
    return folder


def convert_adapter(folder: Path, path: Path, spec: ModelSpec) -> Path:
    """A GGUF file from a folder, the way llama.cpp's converter makes it: B of q and k of the llama family is ordered
    for rotation in pairs, A of the embedding is transposed."""
    config = json.loads((folder / "adapter_config.json").read_text())
    family = "llama" if spec.architecture == "mistral" else spec.architecture
    names = gguf.get_tensor_name_map(
        next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == family), spec.num_layers
    )
    writer = gguf.GGUFWriter(path, family)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(config["lora_alpha"]))
    for name, tensor in load_file(folder / "adapter_model.safetensors").items():
        module, side = name.removeprefix("base_model.model.").rsplit(".lora_", 1)
        side = side.removesuffix(".weight").removeprefix("embedding_").lower()
        if module.endswith("embed_tokens") and side == "a":
            tensor = np.ascontiguousarray(tensor.T)
        if family == "llama" and module.endswith(("q_proj", "k_proj")) and side == "b":
            halves = tensor.reshape(-1, 2, spec.head_dim // 2, tensor.shape[1])
            tensor = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(tensor.shape)
        writer.add_tensor(f"{names.get_name(module)}.weight.lora_{side}", tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def peft_model(base: Path, adapter: Path) -> Any:
    """transformers' model from `base` with the adapter on it, in float32, by PEFT."""
    import peft

    from helpers.tiny_models import oracle

    return peft.PeftModel.from_pretrained(oracle(base), str(adapter)).eval()


def _modules(spec: ModelSpec, modules: Sequence[str], layers: Sequence[int]) -> list[tuple[str, int, int]]:
    """Name, inputs, outputs."""
    hidden, ffn = spec.hidden_size, spec.intermediate_size
    q, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    sizes = {
        "q_proj": (hidden, q),
        "k_proj": (hidden, kv),
        "v_proj": (hidden, kv),
        "qkv_proj": (hidden, q + 2 * kv),
        "o_proj": (q, hidden),
        "gate_proj": (hidden, ffn),
        "up_proj": (hidden, ffn),
        "gate_up_proj": (hidden, 2 * ffn),
        "down_proj": (ffn, hidden),
        "lm_head": (hidden, spec.vocab_size),
        "embed_tokens": (spec.vocab_size, hidden),
    }
    found = []
    for module in modules:
        if module == "lm_head":
            found.append((module, *sizes[module]))
        elif module == "embed_tokens":
            found.append((f"model.{module}", *sizes[module]))
        else:
            part = "self_attn" if module in ("q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj") else "mlp"
            found += [(f"model.layers.{layer}.{part}.{module}", *sizes[module]) for layer in layers]
    return found
