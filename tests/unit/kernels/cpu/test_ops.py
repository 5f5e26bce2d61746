"""Each native operation against its plain-torch reference.

A "model" of one or two operations is run both ways. Its embedding table holds the operands: the tokens of a step pick
them. So what is tested is what runs: the recorder, the arena, the shares of two threads, and the kernels of every
instruction set this machine has.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from ctypes import CDLL

import pytest
import torch
from torch import Tensor

from helpers.model_specs import small_spec
from helpers.native_paged_model import NativePagedModel, needs_library
from helpers.paged_model import Row, make_batch, make_pages
from penstock.kernels.arrays import Dtype
from penstock.kernels.cpu.arena import Arena
from penstock.kernels.cpu.packed import PackedMatrix
from penstock.kernels.cpu.program import Pool
from penstock.kernels.interface import Activation, Batch, Linear, Norm, Operations, Pages, Rotary
from penstock.kernels.torch_ops import TorchOperations
from penstock.kernels.weight import UnsupportedForm, Weight
from penstock.model.weights.pack import pack_floats, pack_quantized
from penstock.store.spec import ModelSpec

pytestmark = needs_library


@pytest.fixture(scope="module")
def pool() -> Pool:
    return Pool(2)


def packed(weight: Tensor) -> Weight:
    return Weight.from_packed(PackedMatrix([pack_floats(weight.numpy(), "F32", Arena())], weight.shape[1]))


Forward = Callable[[Operations, Tensor, Batch, Sequence[Pages]], Tensor]


class OneOperation:
    """Stands for a Decoder. `forward` is given the operands that the tokens pick from `table`."""

    def __init__(self, table: Tensor, width: int, forward: Forward, spec: ModelSpec) -> None:
        self.spec = spec
        self.embedding = packed(table)
        self.head = packed(torch.zeros(1, width))
        self._forward = forward

    def forward(self, ops: Operations, batch: Batch, pages: Sequence[Pages]) -> Tensor:
        return self._forward(ops, ops.embed(batch.tokens, self.embedding, 1.0), batch, pages)


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


def rowwise(table: Tensor, width: int, pool: Pool, forward: Forward) -> tuple[Tensor, Tensor]:
    """(ours, the reference's) for every row of the table, in a step of one token and in one of all the others."""
    model = OneOperation(table, width, forward, spec_of(table))
    paged = NativePagedModel(model, pool, sequences=2)  # type: ignore[arg-type]
    tokens = list(range(len(table)))
    first, rest = paged.add(tokens[:1]), paged.add(tokens[1:])
    paged.model.run(paged.rows({first: 1}), None, show=True)
    ours = [torch.tensor(paged.model.hidden(1))]
    paged.model.run(paged.rows({rest: len(tokens) - 1}), None, show=True)
    ours.append(torch.tensor(paged.model.hidden(len(tokens) - 1)))
    batch = make_batch([Row(tokens, 0, len(tokens), [[1] * len(tokens)])], 4)
    return torch.cat(ours), model.forward(TorchOperations(), batch, [])


def operands(rows: int, width: int, seed: int, scale: float = 1.0) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * scale


def assert_near(ours: Tensor, theirs: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
@pytest.mark.parametrize("width", [16, 24, 97, 576])
def test_norm(native: CDLL, pool: Pool, width: int, scale: float) -> None:
    table, weight = operands(33, width, 1, scale), operands(1, width, 2)[0]
    assert_near(*rowwise(table, width, pool, lambda ops, x, *_: ops.norm(x, Norm(weight, 1e-5))))


@pytest.mark.parametrize("width", [24, 64])
def test_norms_and_products_are_added(native: CDLL, pool: Pool, width: int) -> None:
    table, norm = operands(20, width, 3), Norm(operands(1, width, 4)[0], 1e-5)

    def forward(ops: Operations, x: Tensor, *_: object) -> Tensor:
        total = ops.norm(x, norm, onto=x)
        total = ops.linear(total, Linear(matrix, norm=norm), onto=total)
        return ops.norm(ops.norm(ops.linear(total, Linear(matrix)), norm, onto=total), norm)

    def read_without_norm(ops: Operations, x: Tensor, *_: object) -> Tensor:
        total = ops.norm(ops.norm(x, norm, onto=x), norm, onto=x)
        total = ops.linear(ops.linear(total, Linear(matrix)), Linear(matrix), onto=total)
        return ops.norm(ops.norm(total, norm, onto=total), norm)

    matrix = packed(operands(width, width, 5))
    assert_near(*rowwise(table, width, pool, forward))
    assert_near(*rowwise(table, width, pool, read_without_norm))


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("width", [8, 40, 96, 333])
def test_gate(native: CDLL, pool: Pool, width: int, activation: Activation) -> None:
    table, product = operands(21, 2 * width, 5, 4.0), Linear(packed(torch.eye(2 * width)), gate=activation)
    table[0], table[1, :width], table[2, :width] = 0.0, 300.0, -300.0
    assert_near(*rowwise(table, width, pool, lambda ops, x, *_: ops.linear(x, product)))


@pytest.mark.parametrize("width", [32, 70])
def test_products_read_what_norm_and_gate_left_quantized(native: CDLL, pool: Pool, width: int) -> None:
    """Within the error of int8: half a step of 1/127 of the largest of 32."""
    table, weight = operands(19, width, 6), torch.ones(width)
    matrix = PackedMatrix([pack_quantized(operands(48, width, 7).numpy(), "int8", Arena())], width)
    product = Linear(Weight.from_packed(matrix), norm=Norm(weight, 1e-5))

    def forward(ops: Operations, x: Tensor, *_: object) -> Tensor:
        return ops.linear(x, product)

    ours, theirs = rowwise(table, 48, pool, forward)
    assert (ours - theirs).abs().max() < 0.02 * theirs.abs().max()
    assert not ours.equal(theirs)


@pytest.mark.parametrize("kind", ["int4", "float"])
@pytest.mark.parametrize("width", [64, 48])
def test_gated_products_of_many_rows_are_those_of_few(native: CDLL, pool: Pool, width: int, kind: str) -> None:
    """To the last bit. Of many rows, product and gate are computed together, where blocks are whole: not 48."""

    def matrix(rows: int, cols: int, seed: int) -> Weight:
        weight = operands(rows, cols, seed).numpy()
        part = pack_floats(weight, "F32", Arena()) if kind == "float" else pack_quantized(weight, "int4", Arena())
        return Weight.from_packed(PackedMatrix([part], cols))

    def forward(ops: Operations, x: Tensor, *_: object) -> Tensor:
        return ops.linear(ops.linear(x, gated), down, onto=x)

    table, norm = operands(301, 96, 8), Norm(operands(1, 96, 9)[0], 1e-5)
    gated, down = Linear(matrix(2 * width, 96, 10), norm=norm, gate="silu"), Linear(matrix(96, width, 11))
    model = OneOperation(table, 96, forward, spec_of(table))
    paged = NativePagedModel(model, pool, sequences=2)  # type: ignore[arg-type]
    many, few = paged.add(list(range(301))), paged.add(list(range(301)))
    paged.model.run(paged.rows({many: 301}), None, show=True)
    together = torch.tensor(paged.model.hidden(301))
    for first in range(0, 301, 7):
        paged.model.run(paged.rows({few: 7}), None, show=True)
        assert torch.tensor(paged.model.hidden(7)).equal(together[first : first + 7])


def test_what_the_program_has_no_operation_for_is_rejected(pool: Pool) -> None:
    table, gated = operands(2, 16, 1), Linear(packed(torch.eye(16)), gate="silu")
    with pytest.raises(NotImplementedError, match="adds a gated product"):
        rowwise(table, 8, pool, lambda ops, x, *_: ops.linear(x, gated, onto=x))
    dense = Linear(Weight.from_dense(torch.eye(16)))
    with pytest.raises(UnsupportedForm, match="reads packed weights, and was given a dense one"):
        rowwise(table, 16, pool, lambda ops, x, *_: ops.linear(x, dense))


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
        dtype: Dtype = "float32",
        spread: float = 1.0,
    ) -> None:
        table = operands(200, (heads + 2 * kv_heads) * head_dim, 8, spread)
        rotary = _rotary(head_dim if rotated is None else rotated)
        q_norm, k_norm = operands(2, head_dim, 9) + 1.0
        weights = (q_norm, k_norm, 1e-5) if norms else None

        def forward(ops: Operations, qkv: Tensor, batch: Batch, pages: Sequence[Pages]) -> Tensor:
            q = ops.rotate_store(qkv, pages[0], batch.maps[0], batch, rotary, weights)
            return ops.attention(q, pages[0], batch.maps[0], batch, scale=scale, window=window, softcap=softcap)

        spec = spec_of(table, heads=heads, kv_heads=kv_heads, head_dim=head_dim, window=window)
        self.model = OneOperation(table, heads * head_dim, forward, spec)
        options = {"block_size": block_size, "num_blocks": 1000, "dtype": dtype}
        self.paged = NativePagedModel(self.model, pool, **options)  # type: ignore[arg-type]
        self.pages = make_pages(spec, 1000, block_size, torch.float32)
        self.block_size = block_size

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


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention(native: CDLL, pool: Pool, shape: dict[str, int]) -> None:
    attention = Attention(pool, **shape)  # type: ignore[arg-type]
    for ours, theirs in walk(attention):
        assert_near(ours, theirs, 2e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 2e-3), ("int8", 6e-2)])
@pytest.mark.parametrize("shape", SHAPES[1:4], ids=str)
def test_attention_over_smaller_pages(
    native: CDLL, pool: Pool, shape: dict[str, int], dtype: Dtype, tolerance: float
) -> None:
    attention = Attention(pool, dtype=dtype, **shape)  # type: ignore[arg-type]
    for ours, theirs in walk(attention):
        assert (ours - theirs).abs().max() < tolerance * theirs.abs().max()


@pytest.mark.parametrize("spread", [1e-4, 30.0])
def test_attention_that_is_flat_or_sharp(native: CDLL, pool: Pool, spread: float) -> None:
    """Scores up to thousands: nearly all weights vanish, none may become NaN."""
    attention = Attention(pool, heads=4, kv_heads=2, head_dim=32, block_size=16, spread=spread)
    for ours, theirs in walk(attention):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3 * spread)


def test_keys_that_float16_cannot_hold_are_bounded(native: CDLL, pool: Pool) -> None:
    attention = Attention(
        pool, heads=2, kv_heads=1, head_dim=16, block_size=16, dtype="float16", spread=1e5, scale=1e-12
    )
    ours, _ = attention.step(s0=20)
    assert ours.isfinite().all()
    assert ours.abs().max() <= 65504.0
