"""Every Triton kernel against its plain-torch reference, over odd shapes."""

from __future__ import annotations

import random

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from helpers.attention_case import Case, close, numbers
from helpers.packed_samples import random_matrix
from helpers.paged_model import Row, make_batch
from helpers.triton_device import DEVICE, DTYPES, MARKS
from penstock.kernels.cpu.packed import Kind
from penstock.kernels.cuda import prefill_cudnn
from penstock.kernels.cuda.decode_inputs import gather_decode_inputs
from penstock.kernels.cuda_ops import CudaOperations
from penstock.kernels.interface import Activation, BlockMap, Linear, Norm, Pages, Rotary
from penstock.kernels.reference import embed, norm, rotate_store
from penstock.kernels.torch_ops import TorchOperations
from penstock.kernels.weight import UnsupportedForm, Weight

pytestmark = MARKS


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1.0, 33.9])
@pytest.mark.parametrize(("rows", "width"), [(1, 64), (3, 100), (129, 1024), (5, 5376)])
def test_embed(rows: int, width: int, scale: float, dtype: torch.dtype) -> None:
    table = numbers(200, width, dtype=dtype)
    tokens = torch.randint(200, (rows,), device=DEVICE)
    found = CudaOperations().embed(tokens, Weight.from_dense(table), scale)
    assert torch.equal(found, embed.reference(tokens, table, scale))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(1, 64), (3, 100), (7, 4096), (129, 1024), (2, 5376)])
def test_norms(rows: int, width: int, dtype: torch.dtype) -> None:
    x, residual = numbers(rows, width, dtype=dtype), numbers(rows, width, dtype=dtype, seed=1)
    ops, one = CudaOperations(), Norm(numbers(width), 1e-5)
    close(ops.norm(x, one), norm.reference(x, one))
    expected = residual + norm.reference(x, one)
    assert ops.norm(x, one, onto=residual) is residual
    close(residual, expected)


SIZES = [(1, 128), (77, 128), (1024, 1024), (1023, 1040), (4096, 14336), (300, 20480), (17000, 384)]
COUNTS = [1, 2, 8, 17, 32, 33, 100, 200]


@pytest.mark.parametrize(("size", "width"), SIZES)
@pytest.mark.parametrize("rows", COUNTS)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("added", [False, True])
def test_linear(rows: int, size: int, width: int, biased: bool, normed: bool, added: bool) -> None:
    """Against float64, over and over: a product may leave nothing behind that the next one trips over."""
    dtype = torch.bfloat16
    x, weight = numbers(rows, width, dtype=dtype), numbers(size, width, dtype=dtype, seed=1)
    bias = numbers(size, dtype=dtype, seed=2) * width**0.5 if biased else None
    one = Norm(numbers(width, seed=3), 1e-5) if normed else None
    expected = (norm.reference(x.double(), one).double() if one else x.double()) @ weight.double().T
    if bias is not None:
        expected += bias.double()
    for _ in range(3):
        onto = numbers(rows, size, dtype=dtype, seed=4) * width**0.5 if added else None
        total = expected if onto is None else expected + onto.double()
        close(CudaOperations().linear(x, Linear(Weight.from_dense(weight), bias, one), onto), total.to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize(("size", "width"), [(1, 256), (100, 256), (100, 1024), (1536, 256), (8500, 256)])
@pytest.mark.parametrize("rows", COUNTS)
@pytest.mark.parametrize("biased", [False, True])
def test_gated(rows: int, size: int, width: int, biased: bool, activation: Activation, dtype: torch.dtype) -> None:
    x, weight = numbers(rows, width, dtype=dtype) / 16, numbers(2 * size, width, dtype=dtype, seed=1)
    bias = numbers(2 * size, dtype=dtype, seed=2) if biased else None
    one = Norm(numbers(width, seed=3) / 16, 1e-5)
    product = Linear(Weight.from_dense(weight), bias, gate=activation)
    exact = Linear(Weight.from_dense(weight.double()), None if bias is None else bias.double(), gate=activation)
    for each in (None, one):
        expected = TorchOperations().linear(x.double(), exact._replace(norm=each))
        close(CudaOperations().linear(x, product._replace(norm=each)), expected.to(dtype))
    onto = numbers(rows, size, dtype=dtype, seed=4)
    expected = TorchOperations().linear(x.double(), exact, onto.double())
    close(CudaOperations().linear(x, product, onto), expected.to(dtype))


def test_other_forms_are_rejected() -> None:
    packed = random_matrix((Kind.U8,), (32,), 64)
    with pytest.raises(UnsupportedForm, match="reads dense weights, and was given a packed one"):
        CudaOperations().linear(numbers(1, 64), Linear(Weight.from_packed(packed)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("softcap", [0.0, 30.0])
@pytest.mark.parametrize(("size", "width"), [(300, 100), (1000, 256), (17000, 128)])
@pytest.mark.parametrize("rows", COUNTS)
def test_logits(rows: int, size: int, width: int, softcap: float, dtype: torch.dtype) -> None:
    """Always float32, not rounded to what the weights are in between."""
    x, weight = numbers(rows, width, dtype=dtype), numbers(size, width, dtype=dtype, seed=1)
    full = x.double() @ weight.double().T
    expected = (softcap * torch.tanh(full / softcap) if softcap else full).float()
    close(CudaOperations().logits(x, Weight.from_dense(weight), softcap), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "rotated"), [(4, 2, 16, 16), (3, 1, 24, 24), (32, 8, 128, 128), (5, 5, 80, 32)]
)
def test_rotate_store(heads: int, kv_heads: int, head_dim: int, rotated: int, normed: bool, dtype: torch.dtype) -> None:
    tokens, blocks = 13, 9
    qkv = numbers(tokens, (heads + 2 * kv_heads) * head_dim, dtype=dtype)
    rotary = Rotary(numbers(50, 2, rotated // 2), rotated)
    norms = (numbers(head_dim), numbers(head_dim, seed=1), 1e-6) if normed else None
    positions = torch.tensor(random.Random(0).sample(range(50), tokens), device=DEVICE)
    targets = torch.tensor(random.Random(1).sample(range(4, blocks * 4), tokens), device=DEVICE)
    block_map = BlockMap(torch.zeros(1, 1, dtype=torch.int32, device=DEVICE), targets)
    shape = (blocks, 4, kv_heads, head_dim)
    mine, theirs = (
        Pages(torch.zeros(shape, dtype=dtype, device=DEVICE), torch.zeros(shape, dtype=dtype, device=DEVICE))
        for _ in "ab"
    )
    batch = make_batch([Row([0] * 2, 0, 2, [[1]])], 4, DEVICE)
    batch = type(batch)(*[positions if name == "positions" else getattr(batch, name) for name in batch.__slots__])
    q = CudaOperations().rotate_store(qkv, mine, block_map, batch, rotary, norms)
    expected = rotate_store.reference(qkv, theirs, block_map, rotate_store.angles(rotary, positions), norms)
    close(q, expected)
    close(mine.keys, theirs.keys)
    assert torch.equal(mine.values, theirs.values)


ROWS = [(0, 1), (30, 1), (700, 1), (129, 1), (0, 9), (0, 200), (130, 6), (64, 65), (300, 2), (900, 64), (45, 33)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("softcap", [0.0, 1.5])
@pytest.mark.parametrize("window", [0, 1, 24, 100])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "block_size"), [(4, 2, 16, 8), (6, 2, 24, 4), (32, 8, 128, 16), (3, 3, 64, 32)]
)
def test_attention(
    heads: int, kv_heads: int, head_dim: int, block_size: int, window: int, softcap: float, dtype: torch.dtype
) -> None:
    shape = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "block_size": block_size}
    Case(ROWS, **shape, dtype=dtype, window=window).check(softcap)


@pytest.mark.parametrize("longest", [1, 64, 1500, 9000])
@pytest.mark.parametrize("rows", [1, 5, 40, 150])
def test_attention_of_many_rows(rows: int, longest: int) -> None:
    """Rows of one piece and of many, and one that is longer than all others together."""
    lengths = random.Random(rows).choices(range(min(longest, 1500)), k=rows)
    lengths[rows // 2] = longest - 1
    Case(
        [(length, 1) for length in lengths], heads=8, kv_heads=4, head_dim=128, block_size=16, dtype=torch.bfloat16
    ).check()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [0, 24, 100])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "block_size"), [(4, 2, 16, 8), (6, 2, 24, 4), (32, 8, 128, 16), (16, 1, 64, 32)]
)
@pytest.mark.parametrize("rows", [[(0, 16)], [(8000, 16)], [(0, 1), (31, 1), (30, 5), (700, 16), (129, 2), (45, 133)]])
def test_attention_of_tokens_as_rows(
    rows: list[tuple[int, int]],
    heads: int,
    kv_heads: int,
    head_dim: int,
    block_size: int,
    window: int,
    dtype: torch.dtype,
) -> None:
    shape = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "block_size": block_size}
    Case(rows, **shape, dtype=dtype, window=window).check(token_rows=True)


@pytest.mark.parametrize(
    "rows", [[(0, 1024)], [(2048, 1024)], [(0, 1), (40, 1), (0, 1500), (1024, 1100), (3, 1100), (7, 5)]]
)
def test_attention_of_long_chunks(rows: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone and beside others, padded and not, with prefixes that do and do not suit."""
    monkeypatch.setattr(prefill_cudnn, "WORTHWHILE", 6 * 1024)  # so that small ones take the long way, too
    Case(rows, heads=6, kv_heads=2, head_dim=64, block_size=16, dtype=torch.bfloat16).check()


def test_lay_out() -> None:
    slots, block_size, width = 6, 4, 300
    slot_tokens = torch.arange(slots * 1201, dtype=torch.int32, device=DEVICE).view(slots, 1201)
    slot_tables = torch.arange(slots * width, dtype=torch.int32, device=DEVICE).view(slots, width)
    rows = torch.tensor(
        [[4, 0, 0, 0, 5, 2, *[1] * 20, 3, 3], [1199, 0, 1, 2, 3, 1024, *range(40, 60), 0, 0]], device=DEVICE
    )
    count = rows.shape[1]
    tokens, positions, targets = (torch.zeros(count, dtype=torch.int64, device=DEVICE) for _ in range(3))
    lengths, runs = (torch.zeros(count, dtype=torch.int32, device=DEVICE) for _ in range(2))
    tables = torch.full((count, width), -1, dtype=torch.int32, device=DEVICE)
    written = {"tokens": tokens, "positions": positions, "lengths": lengths, "runs": runs, "tables": tables}
    gather_decode_inputs(rows, slot_tokens, slot_tables, block_size, **written, targets=targets)
    assert runs.tolist() == [1, 3, 2, 1, 1, 1, *[16] * 5, *range(15, 0, -1), 1, 1]
    assert torch.equal(tokens, slot_tokens[rows[0], rows[1]].to(torch.int64))
    assert torch.equal(positions, rows[1])
    assert torch.equal(lengths.to(torch.int64), rows[1] + 1)
    assert torch.equal(targets, slot_tables[rows[0], rows[1] // 4].to(torch.int64) * 4 + rows[1] % 4)
    for row, (slot, position) in enumerate(rows.T.tolist()):
        blocks = position // block_size + 1
        assert torch.equal(tables[row, :blocks], slot_tables[slot, :blocks])
        assert (tables[row, blocks:] == -1).all()
