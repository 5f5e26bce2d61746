"""Runs a model over pages without a scheduler: batches are made by hand from rows of (tokens, start, count, blocks).

Pages start full of NaN, blocks are handed out in random order, and block ids that a window has left behind are put to
0: an out-of-bounds read shows in the result.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from penstock.kernels.interface import Batch, BlockMap, Operations, Pages
from penstock.kernels.reference.low_rank import Parts, adapted_tokens
from penstock.kernels.torch_ops import TorchOperations
from penstock.model import Decoder
from penstock.store.spec import ModelSpec

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Row:
    """Compute positions start .. start + count - 1 of `tokens`."""

    tokens: Sequence[int]
    start: int
    count: int
    blocks: Sequence[Sequence[int]]  # [cache groups][blocks]


def make_batch(rows: Sequence[Row], block_size: int, device: torch.device = CPU) -> Batch:
    """Rows of one token must come first."""
    counts = [row.count for row in rows]
    num_single = sum(count == 1 for count in counts)
    assert all(count == 1 for count in counts[:num_single])
    host_starts = [sum(counts[:index]) for index in range(len(rows) + 1)]
    host_lengths = [row.start + row.count for row in rows]
    positions = [position for row in rows for position in range(row.start, row.start + row.count)]

    def block_map(group: int) -> BlockMap:
        width = max(len(row.blocks[group]) for row in rows)
        tables = torch.zeros(len(rows), width, dtype=torch.int32)
        targets = []
        for index, row in enumerate(rows):
            blocks = row.blocks[group]
            tables[index, : len(blocks)] = torch.tensor(blocks, dtype=torch.int32)
            targets += [
                blocks[position // block_size] * block_size + position % block_size
                for position in range(row.start, row.start + row.count)
            ]
        return BlockMap(tables.to(device), torch.tensor(targets, device=device))

    return Batch(
        tokens=torch.tensor([row.tokens[p] for row in rows for p in range(row.start, row.start + row.count)]).to(
            device
        ),
        positions=torch.tensor(positions, device=device),
        starts=torch.tensor(host_starts, dtype=torch.int32, device=device),
        lengths=torch.tensor(host_lengths, dtype=torch.int32, device=device),
        maps=tuple(block_map(group) for group in range(len(rows[0].blocks))),
        num_rows=len(rows),
        num_single=num_single,
        host_starts=host_starts,
        host_lengths=host_lengths,
    )


def make_pages(
    spec: ModelSpec, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device = CPU
) -> list[Pages]:
    shape = (num_blocks, block_size, spec.num_kv_heads, spec.head_dim)

    def full() -> Tensor:
        return torch.full(shape, torch.nan, dtype=dtype, device=device)

    return [Pages(full(), full()) for _ in range(spec.num_layers)]


@dataclass
class PagedSequence:
    tokens: list[int]
    computed: int = 0
    blocks: list[list[int]] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)  # one [count, vocab] per step
    adapter: Any = None


class PagedModel:
    """A model with its pages. `add` sequences, then `step` through them in any order and in any portions."""

    def __init__(
        self,
        model: Decoder,
        *,
        block_size: int = 4,
        num_blocks: int = 512,
        ops: Operations | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device = CPU,
        seed: int = 0,
        adapt: Callable[[list[Any]], None] | None = None,
        pages: list[Pages] | None = None,
    ) -> None:
        """`adapt` is told the adapter of each token before a step; None: what `TorchOperations` needs. `pages`: others
        than of floats."""
        self.model = model
        self.ops = ops or TorchOperations()
        self.adapt = adapt or self._adapt
        self.block_size = block_size
        self.device = device
        self.pages = pages or make_pages(model.spec, num_blocks, block_size, dtype, device)
        self.groups = model.spec.cache_groups
        self.free = [
            random.Random(seed + group).sample(range(1, num_blocks), num_blocks - 1)
            for group in range(len(self.groups))
        ]
        self.sequences: list[PagedSequence] = []

    def add(self, tokens: Sequence[int], adapter: Any = None) -> int:
        self.sequences.append(PagedSequence(list(tokens), blocks=[[] for _ in self.groups], adapter=adapter))
        return len(self.sequences) - 1

    def step(self, portions: dict[int, int]) -> None:
        """Compute so many of the next tokens of each sequence, together."""
        order = sorted(portions, key=lambda index: portions[index] != 1)
        rows = [self._row(self.sequences[index], portions[index]) for index in order]
        batch = make_batch(rows, self.block_size, self.device)
        self.adapt([self.sequences[index].adapter for index in order for _ in range(portions[index])])
        with torch.inference_mode():
            hidden = self.model.forward(self.ops, batch, self.pages)
            logits = self.ops.logits(hidden, self.model.head, self.model.spec.logit_softcap)
        for place, index in enumerate(order):
            sequence = self.sequences[index]
            sequence.computed += portions[index]
            sequence.logits.append(logits[batch.host_starts[place] : batch.host_starts[place + 1]])

    def _adapt(self, owners: list[Parts | None]) -> None:
        if isinstance(self.ops, TorchOperations):
            self.ops.adapters = adapted_tokens(owners)

    def logits(self, index: int) -> Tensor:
        """Of all positions computed so far, [positions, vocab]."""
        return torch.cat(self.sequences[index].logits)

    def _row(self, sequence: PagedSequence, count: int) -> Row:
        end = sequence.computed + count
        for group, blocks, free in zip(self.groups, sequence.blocks, self.free, strict=True):
            while len(blocks) * self.block_size < end:
                blocks.append(free.pop())
            if group.window:
                left_behind = max(0, sequence.computed - group.window + 1) // self.block_size
                blocks[:left_behind] = [0] * left_behind
        return Row(sequence.tokens, sequence.computed, count, [list(blocks) for blocks in sequence.blocks])


def run_alone(model: Decoder, tokens: Sequence[int], portions: Sequence[int] = (), **options: object) -> Tensor:
    """Logits at all positions of one sequence, computed in the given portions and then all the rest."""
    paged = PagedModel(model, **options)  # type: ignore[arg-type]
    index = paged.add(tokens)
    for count in portions:
        paged.step({index: count})
    if rest := len(tokens) - sum(portions):
        paged.step({index: rest})
    return paged.logits(index)
