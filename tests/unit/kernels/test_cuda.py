"""Every Triton kernel against its plain-torch reference, over odd shapes."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="triton is not installed")

from helpers.packed_samples import random_matrix
from helpers.paged_model import Row, make_batch
from helpers.triton_device import DEVICE, DTYPES, MARKS
from penstock.kernels.cpu.packed import Kind
from penstock.kernels.cuda import decode_attention, prefill_cudnn, split_kv
from penstock.kernels.cuda.decode_inputs import gather_decode_inputs
from penstock.kernels.cuda_ops import CudaOperations
from penstock.kernels.interface import Activation, BlockMap, Linear, Norm, Pages, Rotary
from penstock.kernels.reference import embed, norm, rotate_store
from penstock.kernels.torch_ops import TorchOperations
from penstock.kernels.weight import UnsupportedForm, Weight

pytestmark = MARKS


def numbers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator(DEVICE).manual_seed(seed)
    return torch.randn(*shape, generator=generator, device=DEVICE).to(dtype)


def close(ours: Tensor, theirs: Tensor) -> None:
    """Relative to the size of the whole: single numbers may cancel to nothing."""
    assert ours.dtype == theirs.dtype
    error = (ours.double() - theirs.double()).norm() / theirs.double().norm()
    assert error < (1e-5 if ours.dtype == torch.float32 else 1e-2)  # NaN never passes


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


LAYERS = 2  # of which the second finds what the first one leaves behind


class Case:
    """Random sequences in random blocks; whatever is not theirs holds NaN."""

    def __init__(
        self,
        rows: list[tuple[int, int]],
        *,
        heads: int,
        kv_heads: int,
        head_dim: int,
        block_size: int,
        dtype: torch.dtype,
        window: int = 0,
    ) -> None:
        """`rows` are (tokens already in the cache, tokens of this step)."""
        blocks_of = [-(-(start + count) // block_size) for start, count in rows]
        total = sum(blocks_of) + 1
        free = random.Random(0).sample(range(1, total), total - 1)
        shape = (total, block_size, kv_heads, head_dim)
        self.pages = Pages(*(torch.full(shape, torch.nan, dtype=dtype, device=DEVICE) for _ in "kv"))
        made = []
        for index, ((start, count), number) in enumerate(zip(rows, blocks_of, strict=True)):
            blocks = [free.pop() for _ in range(number)]
            for seed, pages in enumerate((self.pages.keys, self.pages.values)):
                filled = numbers(number * block_size, kv_heads, head_dim, dtype=dtype, seed=2 * index + seed)
                filled[start + count :] = torch.nan
                pages[blocks] = filled.view(number, *shape[1:])
            left_behind = max(0, start - window + 1) // block_size if window else 0
            blocks[:left_behind] = [0] * left_behind
            made.append(Row([0] * (start + count), start, count, [blocks]))
        self.rows = made
        self.batch = make_batch(made, block_size, DEVICE)
        self.q = numbers(self.batch.host_starts[-1], heads, head_dim, dtype=dtype, seed=99)
        self.window = window

    def check(self, softcap: float = 0.0, *, token_rows: bool = False) -> None:
        """`token_rows`: as graphs have it, where every token is a row of its own."""
        settings = {"scale": 0.3, "window": self.window, "softcap": softcap}
        if token_rows:
            of = torch.tensor([index for index, row in enumerate(self.rows) for _ in range(row.count)], device=DEVICE)
            lengths = [row.start + n for row in self.rows for n in range(1, row.count + 1)]
            left = [min(row.count - n, 16) for row in self.rows for n in range(row.count)]
            ours = torch.full_like(self.q.flatten(1), torch.nan)
            tables = self.batch.maps[0].tables[of]
            for table, length in zip(tables, lengths, strict=True):  # no further than they reach
                table[-(-length // self.pages.keys.shape[1]) :] = -(1 << 20)
            on_device = [torch.tensor(values, dtype=torch.int32, device=DEVICE) for values in (lengths, left)]
            pieces = split_kv.plan_splits(self.q, self.pages.keys.shape[2], *on_device, self.window)
            for _ in range(LAYERS):
                ours.fill_(torch.nan)
                decode_attention.decode_attention(self.q, self.pages, tables, on_device[0], pieces, ours, **settings)
        else:
            ops = CudaOperations()
            for _ in range(LAYERS):
                ours = ops.attention(self.q, self.pages, self.batch.maps[0], self.batch, **settings)
        pages = Pages(self.pages.keys.float().cpu(), self.pages.values.float().cpu())
        batch = make_batch(self.rows, self.pages.keys.shape[1])
        theirs = TorchOperations().attention(self.q.float().cpu(), pages, batch.maps[0], batch, **settings)
        close(ours, theirs.to(DEVICE, ours.dtype))


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
