"""KV pages of a CUDA backend: their types, and that they take the memory that was counted."""

from __future__ import annotations

from typing import cast

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from helpers.model_specs import small_spec
from penstock.errors import InvalidSetting
from penstock.forward.cuda_pages import CudaPages
from penstock.forward.memory import CacheSize
from penstock.kernels.cuda.kv_codes import head_dim, kinds
from penstock.model.weights.kv_scales import KvScales
from penstock.store.kv_types import KvTypes, kv_types
from penstock.store.spec import ModelSpec

CPU = torch.device("cpu")
WINDOWS = (0, 8, 0)


def spec(head_dim: int = 64) -> ModelSpec:
    return small_spec(intermediate_size=64, num_layers=3, context=4096, windows=WINDOWS, head_dim=head_dim)


@pytest.fixture(autouse=True)
def device_with_fp8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))


@pytest.mark.parametrize("dim", [16, 64, 96, 128, 256])
@pytest.mark.parametrize("name", ["bfloat16", "fp8", "int8", "int4", "int8,int4", "int4,fp8"])
def test_pages_take_the_memory_that_was_counted(name: str, dim: int) -> None:
    model, types = spec(dim), kv_types(name)._replace(on_gpu=True)
    block_bytes = tuple(model.block_bytes(group, 16, types) for group in model.cache_groups)
    pages = CudaPages(types, None, torch.bfloat16, CPU).allocate(model, CacheSize(16, (7, 5), block_bytes))
    parts = [part for one in pages for part in (one.keys, one.values, one.key_scales, one.value_scales)]
    assert sum(part.nbytes for part in parts if part is not None) == 7 * block_bytes[0] + 5 * block_bytes[1]
    names = ["plain" if one == "bfloat16" else one for one in (types.keys, types.values)]
    assert [kinds(one) for one in pages] == [tuple(names)] * 3
    assert [head_dim(one) for one in pages] == [dim] * 3
    assert [len(one.keys) for one in pages] == [7, 5, 7]


def test_static_scales_are_those_of_each_layer() -> None:
    model, types = spec(), KvTypes("fp8", "int8", on_gpu=True, static_scales=True)
    scales = [KvScales(0.5 * layer, 2.0) for layer in range(3)]
    pages = CudaPages(types, scales, torch.bfloat16, CPU).allocate(model, CacheSize(16, (7, 5), (0, 0)))
    assert [kinds(one) for one in pages] == [("static", "int8")] * 3
    assert [cast(torch.Tensor, one.key_scales).tolist() for one in pages] == [[0.0], [0.5], [1.0]]
    group = model.cache_groups[0]
    assert model.block_bytes(group, 16, types) == 2 * 16 * model.num_kv_heads * (64 + 64 + 4)


def test_a_device_without_fp8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    with pytest.raises(InvalidSetting, match=r"fp8 needs a GPU of compute capability 8\.9") as caught:
        CudaPages(kv_types("fp8"), None, torch.bfloat16, CPU)
    assert caught.value.param == "kv_dtype"
    CudaPages(kv_types("int8"), None, torch.bfloat16, CPU)


def test_heads_that_codes_do_not_fill() -> None:
    types = kv_types("int4")._replace(on_gpu=True)
    with pytest.raises(InvalidSetting, match=r"int4 needs heads of a multiple of 4, .* has heads of 18"):
        CudaPages(types, None, torch.bfloat16, CPU).allocate(spec(18), CacheSize(16, (7, 5), (0, 0)))
