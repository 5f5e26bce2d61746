"""Each native operation against its plain-torch reference.

A "model" of one or two operations is run both ways. Its embedding table holds the operands: the tokens of a step pick
them. So what is tested is what runs: the recorder, the arena, the shares of two threads, and the kernels of every
instruction set this machine has.
"""

from __future__ import annotations

from ctypes import CDLL

import pytest
import torch
from torch import Tensor

from helpers.native_operations import SHAPES, Attention, Forward, OneOperation, operands, packed, spec_of, walk
from helpers.native_paged_model import NativePagedModel, needs_library
from helpers.paged_model import Row, make_batch
from penstock.kernels.cpu.arena import Arena
from penstock.kernels.cpu.packed import PackedMatrix
from penstock.kernels.cpu.program import Pool
from penstock.kernels.interface import Activation, Linear, Norm, Operations
from penstock.kernels.torch_ops import TorchOperations
from penstock.kernels.weight import UnsupportedForm, Weight
from penstock.model.weights.pack import pack_floats, pack_quantized

pytestmark = needs_library


@pytest.fixture(scope="module")
def pool() -> Pool:
    return Pool(2)


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


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention(native: CDLL, pool: Pool, shape: dict[str, int]) -> None:
    attention = Attention(pool, **shape)  # type: ignore[arg-type]
    for ours, theirs in walk(attention):
        assert_near(ours, theirs, 2e-5)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float16", 2e-3), ("int8", 6e-2), ("float16,int8", 6e-2), ("int8,float16", 6e-2)]
)
@pytest.mark.parametrize("shape", SHAPES[1:4], ids=str)
def test_attention_over_smaller_pages(
    native: CDLL, pool: Pool, shape: dict[str, int], dtype: str, tolerance: float
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
