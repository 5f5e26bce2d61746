"""What the inputs of a model's products look like on a text: needed to tell which rounding errors matter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.kernels.interface import Batch, BlockMap, Linear, Pages
from penstock.kernels.torch_ops import TorchOperations
from penstock.kernels.weight import Weight
from penstock.model import Decoder
from penstock.store.spec import ModelSpec


@dataclass(slots=True)
class Inputs:
    """Of one product, summed over all tokens."""

    hessian: Tensor  # [in, in]: x xᵀ
    absolute: Tensor  # [in]
    tokens: int = 0

    @property
    def mean(self) -> Tensor:
        return self.absolute / self.tokens


def hessian_bytes(spec: ModelSpec) -> int:
    """Of all products of the decoder: q, k and v have the same inputs, and so have gate and up."""
    attention = spec.num_heads * spec.head_dim
    return 4 * spec.num_layers * (2 * spec.hidden_size**2 + attention**2 + spec.intermediate_size**2)


class ObservingOperations(TorchOperations):
    """Keeps statistics of the inputs of each product, by its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs: dict[int, Inputs] = {}

    def linear(self, x: Tensor, linear: Linear, onto: Tensor | None = None) -> Tensor:
        y = x if linear.norm is None else self.norm(x, linear.norm)
        found = self.inputs.get(id(linear.weight))
        if found is None:
            size = y.shape[1]
            found = self.inputs[id(linear.weight)] = Inputs(torch.zeros(size, size), torch.zeros(size))
        found.hessian += y.T @ y
        found.absolute += y.abs().sum(dim=0)
        found.tokens += len(y)
        return super().linear(y, linear._replace(norm=None), onto)

    def of(self, weight: Weight) -> Inputs:
        return self.inputs[id(weight)]


def observe(
    model: Decoder, chunks: Sequence[Sequence[int]], progress: Callable[[int, int], None]
) -> ObservingOperations:
    """Run the model, in float32, over token ids. `progress` is told the chunks done and all."""
    ops, spec = ObservingOperations(), model.spec
    for number, tokens in enumerate(chunks):
        shape = (2, len(tokens), spec.num_kv_heads, spec.head_dim)  # one block of all tokens, and block 0
        pages = [Pages(torch.empty(shape), torch.empty(shape)) for _ in range(spec.num_layers)]
        with torch.inference_mode():
            model.forward(ops, _batch(tokens, len(spec.cache_groups)), pages)
        progress(number + 1, len(chunks))
    return ops


def _batch(tokens: Sequence[int], groups: int) -> Batch:
    count = len(tokens)
    positions = torch.arange(count)
    block_map = BlockMap(torch.tensor([[1]], dtype=torch.int32), positions + count)
    return Batch(
        tokens=torch.tensor(tokens),
        positions=positions,
        starts=torch.tensor([0, count], dtype=torch.int32),
        lengths=torch.tensor([count], dtype=torch.int32),
        maps=(block_map,) * groups,
        num_rows=1,
        num_single=0,
        host_starts=[0, count],
        host_lengths=[count],
    )
