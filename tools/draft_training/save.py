"""Trained networks as folders in the published formats: `config.json`, `model.safetensors`, and `training.json` with
how they were trained and what they were measured at."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from draft_training.layers import folded_parameters
from draft_training.medusa import Medusa
from penstock.store.spec import ModelSpec

DTYPE = torch.bfloat16


def save_eagle1(folder: Path, head: nn.Module, spec: ModelSpec, vocabulary: Tensor, facts: dict[str, Any]) -> None:
    """Without `embed_tokens.weight`: the target's own embedding is read. `token_map` names the rows of the target's
    output head that the head uses."""
    config = _llama_config(spec, "LlamaForCausalLMEagle") | {"bias": True, "truncated_vocab_size": len(vocabulary)}
    _write(folder, config, _parameters(head) | {"token_map": vocabulary.cpu()}, facts)


def save_eagle3(
    folder: Path, head: nn.Module, spec: ModelSpec, vocabulary: Tensor, taps: list[int], facts: dict[str, Any]
) -> None:
    config = _llama_config(spec, "LlamaForCausalLMEagle3") | {
        "draft_vocab_size": len(vocabulary),
        "eagle_config": {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": taps},
    }
    ids = vocabulary.cpu()
    is_drafted = torch.zeros(spec.vocab_size, dtype=torch.bool)
    is_drafted[ids] = True
    maps = {"d2t": ids - torch.arange(len(ids)), "t2d": is_drafted}
    _write(folder, config, _parameters(head) | maps, facts)


def save_medusa(folder: Path, heads: Medusa, spec: ModelSpec, vocabulary: Tensor, facts: dict[str, Any]) -> None:
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "medusa_num_heads": len(heads.heads),
        "medusa_num_layers": len(heads.heads[0]) - 1,  # type: ignore[arg-type]
        "hidden_size": spec.hidden_size,
        "vocab_size": spec.vocab_size,
        "truncated_vocab_size": len(vocabulary),
        "base_model_name_or_path": spec.name,
    }
    tensors = {name.removeprefix("heads."): tensor for name, tensor in _parameters(heads).items()}
    _write(folder, config, tensors | {"token_map": vocabulary.cpu()}, facts)


def save_small_model(
    folder: Path,
    model: nn.Module,
    spec: ModelSpec,
    embedding: Tensor,
    head: Tensor,
    tokenizer: Path | None,
    facts: dict[str, Any],
) -> None:
    """A model like any other, in the Hugging Face layout, with the target's embedding, output head and tokenizer."""
    tensors = {f"model.{name}": tensor for name, tensor in _parameters(model).items()}
    tensors["model.embed_tokens.weight"] = embedding.to(DTYPE).cpu()
    if not spec.tied:
        tensors["lm_head.weight"] = head.to(DTYPE).cpu()
    _write(folder, _llama_config(spec, "LlamaForCausalLM"), tensors, facts)
    if tokenizer is not None:
        shutil.copyfile(tokenizer, folder / "tokenizer.json")


def _llama_config(spec: ModelSpec, architecture: str) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "model_type": "llama",
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "max_position_embeddings": spec.context,
        "rms_norm_eps": spec.norm_eps,
        "rope_theta": spec.rope.theta,
        "hidden_act": "silu",
        "tie_word_embeddings": spec.tied,
        "eos_token_id": list(spec.end_tokens),
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
    }


def _parameters(network: nn.Module) -> dict[str, Tensor]:
    tensors = folded_parameters(network)
    return {name: tensor.detach().to(DTYPE).cpu().contiguous() for name, tensor in tensors.items()}


def _write(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "training.json").write_text(json.dumps(facts, indent=2) + "\n")
