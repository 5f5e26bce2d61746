"""The vocabulary of weight maps: which tensors of a checkpoint make up which parameter of ours, as data.

Names contain `{layer}` where there is one per layer. Fused parameters (q, k and v in one matrix) have several parts,
stacked by rows in the order given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from penstock.kernels.arrays import Array, to_float32
from penstock.store.spec import ModelSpec

Extent = Literal["vocab", "hidden", "q", "kv", "qkv", "ffn", "gate_up", "head"]
Format = Literal["hf", "gguf"]
Transform = Callable[[Array, ModelSpec], Array]

# matrix: read by `linear`. head: by `logits`. table: by `embed`. norm: a vector kept in float32. bias: a vector.
Kind = Literal["matrix", "head", "table", "norm", "bias"]

# Extents that are several others one after the other, in checkpoints that have fused them
SECTIONS: dict[Extent, tuple[Extent, ...]] = {"qkv": ("q", "kv", "kv"), "gate_up": ("ffn", "ffn")}


def always(_: ModelSpec) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of a checkpoint, by its name in either format."""

    hf: str
    gguf: str
    rows: Extent
    from_hf: Transform | None = None  # what to do with the tensor of such a checkpoint
    from_gguf: Transform | None = None

    def name(self, form: Format) -> str:
        return self.hf if form == "hf" else self.gguf

    def transform(self, form: Format) -> Transform | None:
        return self.from_hf if form == "hf" else self.from_gguf


@dataclass(frozen=True, slots=True)
class Parameter:
    """One tensor of ours, and what it is put together from."""

    name: str  # as `Weights` has it
    kind: Kind
    parts: tuple[Part, ...]
    columns: Extent | None = None  # None: a vector
    exists: Callable[[ModelSpec], bool] = always  # whether a model of this spec has it


@dataclass(frozen=True, slots=True)
class WeightMap:
    """All tensors of an architecture."""

    parameters: tuple[Parameter, ...]
    ignored: tuple[str, ...] = ()  # patterns of checkpoint names that may be there and are not needed
    renamed: tuple[tuple[str, str], ...] = ()  # prefixes of checkpoint names that stand for another


def extents(spec: ModelSpec) -> dict[Extent, int]:
    q, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    return {
        "vocab": spec.vocab_size,
        "hidden": spec.hidden_size,
        "q": q,
        "kv": kv,
        "qkv": q + 2 * kv,
        "ffn": spec.intermediate_size,
        "gate_up": 2 * spec.intermediate_size,
        "head": spec.head_dim,
    }


def plus_one(tensor: Array, _: ModelSpec) -> Array:
    """For norms that are stored as the difference from one."""
    return to_float32(tensor) + np.float32(1.0)


def halves_from_pairs(tensor: Array, spec: ModelSpec) -> Array:
    """Rows of q or k of a file made for rotation in pairs (x[2i] with x[2i + 1]), in order for rotation in halves."""
    pairs = tensor.reshape(-1, spec.head_dim // 2, 2, *tensor.shape[1:])
    return pairs.swapaxes(1, 2).reshape(tensor.shape)
