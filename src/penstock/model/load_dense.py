"""Load a model as torch tensors, for torch and CUDA."""

from __future__ import annotations

import torch

from penstock.errors import OutOfMemory
from penstock.kernels.arrays import Dtype
from penstock.kernels.reference import linear
from penstock.model.layers.decoder import Decoder
from penstock.model.load import load, parameter_bytes
from penstock.model.weights.dense_form import Allocate, DenseForm
from penstock.model.weights.place import WHOLE, Shard
from penstock.model.weights.source import Source
from penstock.store.spec import ModelSpec

TORCH_DTYPES: dict[Dtype, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
}
NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


def load_dense(
    spec: ModelSpec,
    source: Source,
    *,
    dtype: torch.dtype,
    device: torch.device,
    context: int,
    threads: int = 1,
    allocate: Allocate | None = None,
    shard: Shard = WHOLE,
) -> Decoder:
    """`load` with tensors of `dtype`."""
    form = DenseForm(dtype, device, allocate)
    try:
        return load(spec, source, form, context=context, threads=threads, shard=shard)
    except torch.OutOfMemoryError:
        needed = weight_bytes(spec, dtype=dtype, device=device, shard=shard) / 2**30
        raise OutOfMemory(
            f"weights of {spec.name} take {needed:.1f} GiB as {NAMES[dtype]}, more than is free on {device}",
            param="model",
        ) from None


def weight_bytes(spec: ModelSpec, *, dtype: torch.dtype, device: torch.device, shard: Shard = WHOLE) -> int:
    """Bytes of the loaded weights, from the spec alone."""
    size = parameter_bytes(spec, NAMES[dtype], shard)
    if spec.tied and linear.prefers_onednn(dtype, device):  # the head is a copy of the table, in another layout
        begin, end = shard.tokens(spec.vocab_size)
        size += (end - begin) * spec.hidden_size * dtype.itemsize
    return size
