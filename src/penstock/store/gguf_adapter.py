"""Adapters as GGUF files, as llama.cpp's convert_lora_to_gguf.py writes them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from penstock.errors import ModelInvalid
from penstock.store.adapter_spec import DTYPE_BYTES, MAX_HEADER_BYTES, LowRank, StoredTensor
from penstock.store.gguf import TensorInfo, read_header
from penstock.store.values import Values

LAYER_MODULES = {
    "attn_q": "q",
    "attn_k": "k",
    "attn_v": "v",
    "attn_output": "o",
    "attn_qkv": "qkv",
    "ffn_gate": "gate",
    "ffn_up": "up",
    "ffn_down": "down",
}
MODULES = {"output": "head", "token_embd": "embed"}

_TENSOR = re.compile(r"(?:blk\.(?P<layer>\d{1,5})\.)?(?P<kind>[a-z0-9_]+)\.weight\.lora_(?P<side>[ab])")


class GgufParts(NamedTuple):
    alpha: float
    base: str
    architecture: str
    low_ranks: tuple[LowRank, ...]


def read_gguf(path: Path) -> GgufParts:
    header = read_header(path, max_header_bytes=MAX_HEADER_BYTES)
    values = Values(header.metadata, str(path))
    if (kind := values.text("general.type", "model")) != "adapter":
        raise ModelInvalid(f"{path} is a {kind[:50]}, not an adapter (general.type)", param="adapter")
    if (kind := values.text("adapter.type", "lora")) != "lora":
        raise values.invalid("adapter.type", f"is {kind[:50]!r}: only lora adapters are supported")
    alpha = values.number("adapter.lora.alpha", 0.0)
    base = values.text("general.base_model.0.name", "")
    low_ranks = _low_ranks(header.tensors, header.architecture, alpha, path)
    return GgufParts(alpha, base, header.architecture, low_ranks)


def _low_ranks(tensors: dict[str, TensorInfo], architecture: str, alpha: float, path: Path) -> tuple[LowRank, ...]:
    sides: dict[tuple[int | None, str], dict[str, StoredTensor]] = {}
    for name, info in tensors.items():
        found = _TENSOR.fullmatch(name)
        known = MODULES if found is None or found["layer"] is None else LAYER_MODULES
        if found is None or found["kind"] not in known:
            raise ModelInvalid(
                f"{path}: tensor {name[:200]!r} cannot be part of an adapter here; those of "
                f"{', '.join((*LAYER_MODULES, *MODULES))} can",
                param="adapter",
            )
        module = known[found["kind"]]
        if module == "up" and architecture == "phi3":  # its ffn_up has the gate, too
            module = "gate_up"
        layer = int(found["layer"]) if found["layer"] else None
        sides.setdefault((layer, module), {})[found["side"]] = _stored(name, info, path)
    return tuple(_low_rank(layer, module, both, alpha, path) for (layer, module), both in sides.items())


def _low_rank(layer: int | None, module: str, both: dict[str, StoredTensor], alpha: float, path: Path) -> LowRank:
    where = module if layer is None else f"{module} of layer {layer}"
    if len(both) < 2:
        raise ModelInvalid(f"{path}: {where} has no lora_{'b' if 'a' in both else 'a'}", param="adapter")
    a, b = both["a"], both["b"]
    transposed = module == "embed"  # llama.cpp reads A's rows by token
    rank = b.shape[1]
    if a.shape[1 if transposed else 0] != rank or rank < 1:
        raise ModelInvalid(
            f"{path}: {where} has lora_a of shape {list(a.shape)} and lora_b of shape {list(b.shape)}", param="adapter"
        )
    scale = alpha / rank if alpha else 1.0  # as llama.cpp does
    return LowRank(layer=layer, module=module, rank=rank, scale=scale, a=a, b=b, transposed_a=transposed)


def _stored(name: str, info: TensorInfo, path: Path) -> StoredTensor:
    if len(info.shape) != 2 or info.type.name not in DTYPE_BYTES:
        raise ModelInvalid(
            f"{path}: tensor {name} has shape {list(info.shape)} and type {info.type.name}; an adapter has matrices of "
            f"{', '.join(DTYPE_BYTES)}",
            param="adapter",
        )
    return StoredTensor((info.shape[0], info.shape[1]), info.type.name, info.offset, info.offset + info.num_bytes)
