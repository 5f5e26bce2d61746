"""The other operations, each against its definition written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from helpers.paged_model import Row, make_batch
from penstock.kernels.interface import Linear, Norm, Pages, Rotary
from penstock.kernels.reference import linear
from penstock.kernels.torch_ops import TorchOperations
from penstock.kernels.weight import Weight

OPS = TorchOperations()


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.double().pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def test_embed_scales() -> None:
    table = torch.randn(7, 4)
    tokens, weight = torch.tensor([3, 3, 0]), Weight.from_dense(table)
    assert OPS.embed(tokens, weight, 1.0).equal(table[tokens])
    assert OPS.embed(tokens, weight, 2.5).equal(table[tokens] * 2.5)


@pytest.mark.parametrize("size", [0.001, 1.0, 300.0])  # small: eps counts; large: squares overflow float16
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_norm(dtype: torch.dtype, size: float) -> None:
    x, weight = (torch.randn(5, 16) * size).to(dtype), torch.randn(16)
    normed = OPS.norm(x, Norm(weight, 1e-5))
    assert normed.dtype == dtype
    torch.testing.assert_close(normed, rms(x, weight, 1e-5).to(dtype))


def test_a_norm_is_added() -> None:
    x, residual, weight = torch.randn(5, 16), torch.randn(5, 16), torch.randn(16)
    expected = residual + rms(x, weight, 1e-5).float()
    assert OPS.norm(x, Norm(weight, 1e-5), onto=residual) is residual
    torch.testing.assert_close(residual, expected)


def test_a_product_of_a_norm_is_added() -> None:
    x, residual, gains = torch.randn(5, 16), torch.randn(5, 24), torch.randn(16)
    weight, bias = torch.randn(24, 16), torch.randn(24)
    expected = residual + rms(x, gains, 1e-5).float() @ weight.T + bias
    product = Linear(Weight.from_dense(weight), bias, norm=Norm(gains, 1e-5))
    assert OPS.linear(x, product, onto=residual) is residual
    torch.testing.assert_close(residual, expected)


@pytest.mark.parametrize("tokens", [1, 3, 70])
def test_a_product_in_the_layout_of_onednn(tokens: int) -> None:
    weight, bias, x = torch.randn(48, 32), torch.randn(48), torch.randn(tokens, 32)
    blocked = Weight.from_onednn(linear.to_onednn(weight))
    assert blocked.shape == weight.shape
    dense = Weight.from_dense(weight)
    torch.testing.assert_close(OPS.linear(x, Linear(blocked, bias)), OPS.linear(x, Linear(dense, bias)))
    torch.testing.assert_close(OPS.linear(x, Linear(blocked)), x @ weight.T)


def test_only_float32_takes_the_layout_of_onednn() -> None:
    assert not linear.prefers_onednn(torch.bfloat16, torch.device("cpu"))
    assert not linear.prefers_onednn(torch.float32, torch.device("cuda"))


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gate(activation: str) -> None:
    gate_up = torch.randn(3, 10)
    gate, up = gate_up[:, :5].clone(), gate_up[:, 5:].clone()
    if activation == "silu":
        expected = gate * torch.sigmoid(gate) * up
    else:
        expected = 0.5 * gate * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (gate + 0.044715 * gate**3))) * up
    product = Linear(Weight.from_dense(torch.eye(10)), gate=activation)  # type: ignore[arg-type]
    torch.testing.assert_close(OPS.linear(gate_up, product), expected)
    torch.testing.assert_close(OPS.linear(gate_up, product, onto=torch.ones(3, 5)), expected + 1.0)


def test_logits_are_of_float32_and_capped() -> None:
    x, weight = torch.randn(5, 8, dtype=torch.bfloat16), torch.randn(20, 8, dtype=torch.bfloat16)
    head = Weight.from_dense(weight)
    scores = OPS.logits(x, head, 0.0)
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores, (x @ weight.T).float())
    torch.testing.assert_close(OPS.logits(x, head, 2.0), 2.0 * torch.tanh(scores / 2.0))


@pytest.mark.parametrize("dim", [8, 4])
@pytest.mark.parametrize("normed", [False, True])
def test_rotate_store(dim: int, normed: bool) -> None:
    heads, kv_heads, head_dim, block_size = 4, 2, 8, 4
    blocks = [[3, 1, 5], [2, 4]]
    rows = [Row(range(7), 6, 1, [blocks[1]]), Row(range(12), 2, 8, [blocks[0]])]
    batch = make_batch(rows, block_size)
    table = torch.randn(20, 2, dim // 2)
    qkv = torch.randn(9, (heads + 2 * kv_heads) * head_dim)
    q, k, v = qkv.view(9, -1, head_dim).split((heads, kv_heads, kv_heads), dim=1)
    norms = (torch.randn(head_dim), torch.randn(head_dim), 1e-5) if normed else None
    if norms is not None:
        q, k = rms(q, norms[0], norms[2]).float(), rms(k, norms[1], norms[2]).float()

    def rotated(x: Tensor) -> Tensor:
        out = x.clone()
        for token, position in enumerate(batch.positions.tolist()):
            for low in range(dim // 2):
                high, (cos, sin) = low + dim // 2, table[position, :, low]
                out[token, :, low] = x[token, :, low] * cos - x[token, :, high] * sin
                out[token, :, high] = x[token, :, high] * cos + x[token, :, low] * sin
        return out

    pages = Pages(torch.zeros(6, block_size, kv_heads, head_dim), torch.zeros(6, block_size, kv_heads, head_dim))
    turned = OPS.rotate_store(qkv.clone(), pages, batch.maps[0], batch, Rotary(table, dim), norms)
    torch.testing.assert_close(turned, rotated(q))
    places = [(4, 2)] + [(blocks[0][position // 4], position % 4) for position in range(2, 10)]
    for token, place in enumerate(places):
        torch.testing.assert_close(pages.keys[place], rotated(k)[token])
        assert pages.values[place].equal(v[token])
    assert pages.values.count_nonzero() == 9 * kv_heads * head_dim  # nothing else was written
