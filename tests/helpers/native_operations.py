"""Operations on their own, run by the native kernels and by their plain-torch references.

A "model" of one or two operations: its embedding table holds the operands, and the tokens of a step pick them. So what
runs is the recorder, the arena, the shares of two threads, and the kernels.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from helpers.model_specs import small_spec
from helpers.native_paged_model import NativePagedModel
from helpers.paged_model import Row, make_batch, make_pages
from penstock.kernels.cpu.arena import Arena
from penstock.kernels.cpu.packed import PackedMatrix
from penstock.kernels.cpu.program import Pool
from penstock.kernels.interface import Batch, Operations, Pages, Rotary
from penstock.kernels.torch_ops import TorchOperations
from penstock.kernels.weight import Weight
from penstock.model.weights.pack import pack_floats
from penstock.store.spec import ModelSpec


def operands(rows: int, width: int, seed: int, scale: float = 1.0) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * scale


def packed(weight: Tensor) -> Weight:
    return Weight.from_packed(PackedMatrix([pack_floats(weight.numpy(), "F32", Arena())], weight.shape[1]))


Forward = Callable[[Operations, Tensor, Batch, Sequence[Pages]], Tensor]


class OneOperation:
    """Stands for a Decoder. `forward` is given the operands that the tokens pick from `table`."""

    def __init__(self, table: Tensor, width: int, forward: Forward, spec: ModelSpec, scale: float = 1.0) -> None:
        self.spec, self._scale = spec, scale
        self.embedding = packed(table)
        self.head = packed(torch.zeros(1, width))
        self._forward = forward

    def forward(self, ops: Operations, batch: Batch, pages: Sequence[Pages]) -> Tensor:
        return self._forward(ops, ops.embed(batch.tokens, self.embedding, self._scale), batch, pages)


def spec_of(table: Tensor, *, heads: int = 1, kv_heads: int = 1, head_dim: int = 16, window: int = 0) -> ModelSpec:
    return small_spec(
        name="one operation",
        vocab_size=len(table),
        hidden_size=table.shape[1],
        intermediate_size=1,
        num_layers=1,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        context=512,
        norm_eps=1e-5,
        windows=(window,) if window else (),
        attention_scale=1.0,
    )


class Attention:
    """Random sequences through rotate_store and attention, both ways."""

    def __init__(
        self,
        pool: Pool,
        *,
        heads: int,
        kv_heads: int,
        head_dim: int,
        block_size: int,
        window: int = 0,
        softcap: float = 0.0,
        rotated: int | None = None,
        norms: bool = False,
        scale: float = 0.3,
        dtype: str = "float32",
        spread: float = 1.0,
    ) -> None:
        table = operands(200, (heads + 2 * kv_heads) * head_dim, 8, spread)
        rotary = _rotary(head_dim if rotated is None else rotated)
        q_norm, k_norm = operands(2, head_dim, 9) + 1.0
        weights = (q_norm, k_norm, 1e-5) if norms else None

        def forward(ops: Operations, qkv: Tensor, batch: Batch, pages: Sequence[Pages]) -> Tensor:
            q = ops.rotate_store(qkv, pages[0], batch.maps[0], batch, rotary, weights)
            if isinstance(ops, TorchOperations):
                self.stored(pages[0])
            return ops.attention(q, pages[0], batch.maps[0], batch, scale=scale, window=window, softcap=softcap)

        spec = spec_of(table, heads=heads, kv_heads=kv_heads, head_dim=head_dim, window=window)
        self.model = OneOperation(table, heads * head_dim, forward, spec)
        options = {"block_size": block_size, "num_blocks": 1000, "dtype": dtype}
        self.paged = NativePagedModel(self.model, pool, **options)  # type: ignore[arg-type]
        self.pages = make_pages(spec, 1000, block_size, torch.float32)
        self.block_size = block_size

    def stored(self, pages: Pages) -> None:
        """Called when the reference has written keys and values, and before it reads them."""

    def step(self, **portions: int) -> tuple[Tensor, Tensor]:
        """(ours, the reference's) of a step; a sequence is made when it is first named."""
        by_slot = {self._slot(name): count for name, count in portions.items()}
        rows = self.paged.rows(by_slot)
        self.paged.model.run(rows, None, show=True)
        ours = torch.tensor(self.paged.model.hidden(sum(row.count for row in rows)))
        sequences = self.paged.sequences
        made = [Row(sequences[row.slot].tokens, row.start, row.count, sequences[row.slot].blocks) for row in rows]
        return ours, self.model.forward(TorchOperations(), make_batch(made, self.block_size), self.pages)

    def _slot(self, name: str) -> int:
        slot = int(name.removeprefix("s"))
        while len(self.paged.sequences) <= slot:
            source = random.Random(len(self.paged.sequences))
            self.paged.add(source.choices(range(200), k=400))
        return slot


def _rotary(dim: int) -> Rotary:
    turns = torch.outer(torch.arange(512.0), 1.0 / 100.0 ** (torch.arange(0, dim, 2) / dim))
    return Rotary(torch.stack((turns.cos(), turns.sin()), dim=1), dim)


SHAPES = [
    {"heads": 4, "kv_heads": 4, "head_dim": 16, "block_size": 16},
    {"heads": 9, "kv_heads": 3, "head_dim": 64, "block_size": 16, "norms": True},
    {"heads": 8, "kv_heads": 1, "head_dim": 24, "block_size": 3, "rotated": 8},
    {"heads": 14, "kv_heads": 2, "head_dim": 80, "block_size": 32, "softcap": 2.0},
    {"heads": 2, "kv_heads": 1, "head_dim": 256, "block_size": 16, "window": 20},
    {"heads": 6, "kv_heads": 2, "head_dim": 40, "block_size": 1, "window": 7, "softcap": 1.5},
    {"heads": 3, "kv_heads": 3, "head_dim": 32, "block_size": 48, "window": 150},
]


def walk(attention: Attention) -> Iterator[tuple[Tensor, Tensor]]:
    """Prompts in chunks, beside single tokens of short and long sequences."""
    yield attention.step(s0=130, s1=1, s2=17)
    yield attention.step(s0=1, s1=1, s2=100, s3=300)
    for _ in range(3):
        yield attention.step(s0=1, s1=1, s2=1, s3=1)
    yield attention.step(s3=1)
    yield attention.step(s1=40, s0=33, s3=64)
