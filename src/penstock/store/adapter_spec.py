"""AdapterSpec: everything there is to know about a LoRA adapter except its numbers. `store.adapter` makes it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

MAX_RANK = 256
MAX_CONFIG_BYTES = 1 << 20
MAX_HEADER_BYTES = 16 << 20  # of the file with the tensors; those of large models have some thousand entries

# Modules of a layer, and the two beside the layers. Phi-3 has q, k and v in one, and gate and up.
LAYER_MODULES = ("q", "k", "v", "o", "gate", "up", "down", "qkv", "gate_up")
MODEL_MODULES = ("head", "embed")
DTYPE_BYTES = {"F32": 4, "F16": 2, "BF16": 2}


class StoredTensor(msgspec.Struct, frozen=True):
    """Where a tensor lies in the file of the adapter."""

    shape: tuple[int, int]
    dtype: str  # a key of DTYPE_BYTES
    begin: int  # bytes from the start of the file
    end: int


class LowRank(msgspec.Struct, frozen=True, kw_only=True):
    """What an adapter adds to one module of the base: x ↦ scale · B·A·x."""

    layer: int | None  # None: the head, the embedding
    module: str  # one of LAYER_MODULES or MODEL_MODULES
    rank: int
    scale: float  # alpha / rank, or alpha / √rank with rsLoRA
    a: StoredTensor  # [rank, inputs]; of a GGUF's embedding [inputs, rank]
    b: StoredTensor  # [outputs, rank]
    transposed_a: bool = False

    @property
    def inputs(self) -> int:
        return self.a.shape[0 if self.transposed_a else 1]

    @property
    def outputs(self) -> int:
        return self.b.shape[0]

    @property
    def label(self) -> str:
        """For messages."""
        return self.module if self.layer is None else f"{self.module} of layer {self.layer}"


class SavedTable(msgspec.Struct, frozen=True):
    """A copy of the base's embedding or head that PEFT keeps beside its matrices: `store.saved_tables`."""

    name: str  # of the tensor
    module: str  # one of MODEL_MODULES
    shape: tuple[int, int]
    dtype: str  # a key of DTYPE_BYTES
    begin: int  # bytes from the start of the file
    end: int


class AdapterSpec(msgspec.Struct, frozen=True, kw_only=True):
    name: str  # the folder's or the file's; what it is served as may differ
    format: Literal["peft", "gguf"]
    version: str  # hash of the content
    rank: int  # the largest of all modules
    alpha: float
    rslora: bool = False
    base: str = ""  # the model that its files name; nothing depends on it
    architecture: str = ""  # of the base, where a GGUF names it
    modules: tuple[str, ...]  # which kinds it changes, in the order of LAYER_MODULES and MODEL_MODULES
    num_bytes: int  # of all tensors
    low_ranks: tuple[LowRank, ...]  # layer by layer, head and embedding last
    saved_tables: tuple[SavedTable, ...] = ()

    @property
    def tables(self) -> tuple[str, ...]:
        """Which of MODEL_MODULES it changes."""
        return tuple(module for module in self.modules if module in MODEL_MODULES)


class AdapterFiles(msgspec.Struct, frozen=True):
    """An adapter on this machine. Its tensors have been found, not read."""

    path: Path  # the folder, or the GGUF file
    weights: Path  # the file with the tensors
    spec: AdapterSpec
