"""Adapters in a device's memory, here the CPU's: where matrices lie, what is taken and given back, and the copies on
the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="triton is not installed")

import torch
from msgspec.structs import replace
from torch import Tensor

from helpers import tiny_models
from helpers.adapter_engine import named
from helpers.adapter_samples import write_adapter
from penstock.errors import AdapterLoadFailed
from penstock.flow import Adapter
from penstock.flow.ranks import AdapterPlace
from penstock.forward import host_adapters
from penstock.forward.adapter_blobs import UNIT, most_numbers, pack
from penstock.forward.adapter_loading import read_deltas
from penstock.forward.device_adapters import DeviceAdapter, DeviceAdapters, device_adapters, device_copier
from penstock.forward.host_adapters import HostAdapters
from penstock.kernels.cuda.low_rank import DeltaMemory
from penstock.kernels.low_rank import MOST_PARTS, DeltaMatrices
from penstock.model.weights.place import Shard
from penstock.store.resolve import resolve
from penstock.store.spec import ModelSpec

CPU = torch.device("cpu")
KINDS: tuple[dict[str, Any], ...] = (
    {"rank": 4},
    {"rank": 33, "alpha": 20.0, "layers": (0, 2), "layers_to_transform": [0, 2]},
    {"rank": 17, "modules": ("lm_head", "q_proj", "embed_tokens")},
    {"rank": 16, "modules": ("o_proj", "up_proj")},
)


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    return resolve(str(tiny_models.make("qwen3", tmp_path_factory.mktemp("base") / "model"))).spec


@pytest.fixture(scope="module")
def adapters(spec: ModelSpec, tmp_path_factory: pytest.TempPathFactory) -> list[Adapter]:
    folder = tmp_path_factory.mktemp("adapters")
    return [
        named(write_adapter(folder / f"a{seed}", spec, seed=seed, dtype="float16", **kind))
        for seed, kind in enumerate(KINDS)
    ]


def bytes_of(adapter: Adapter, spec: ModelSpec) -> int:
    return 4 * sum(most_numbers(adapter, spec).values())


def load(cache: DeviceAdapters, adapter: Adapter) -> AdapterLoadFailed | None:
    assert cache.start(adapter)
    [(_, error)] = cache.take_finished(wait_s=60.0)
    assert error is None or isinstance(error, AdapterLoadFailed)
    return error


def delta_in(memory: DeltaMemory, number: int, one: DeltaMatrices) -> Tensor:
    """scale · B·A, or zeros, as kernels would find it."""
    a, b, units, scale = memory.table[number, one.product.site * MOST_PARTS + one.part].tolist()
    inputs, outputs, ranks = one.a.shape[1], len(one.b), units * UNIT
    stored = memory.numbers[a * UNIT : a * UNIT + ranks * inputs]
    if one.product.product == "embed":
        stored = stored.view(units, inputs, UNIT).transpose(1, 2)
    rows = memory.numbers[b * UNIT : b * UNIT + ranks * outputs].view(units, outputs, UNIT).transpose(0, 1)
    return rows.reshape(outputs, ranks) @ stored.reshape(ranks, inputs) * float(np.int32(scale).view(np.float32))


def check(memory: DeltaMemory, number: int, adapter: Adapter, spec: ModelSpec) -> None:
    found = {}
    for one in read_deltas(adapter, spec):
        expected = torch.from_numpy(one.b @ one.a) * one.scale
        assert torch.allclose(delta_in(memory, number, one), expected, atol=1e-5)
        found[one.product.site * MOST_PARTS + one.part] = True
    units = memory.table[number, :, 2]
    assert {int(place) for place in units.nonzero()} == set(found)


def made(spec: ModelSpec, capacity: int) -> tuple[DeviceAdapters, DeltaMemory]:
    copier = device_copier(spec, torch.float32, CPU, capacity)
    return device_adapters(copier, capacity), copier.memory


def test_matrices_lie_where_the_table_says(spec: ModelSpec, adapters: list[Adapter]) -> None:
    cache, memory = made(spec, 16 << 20)
    assert [load(cache, one) for one in adapters] == [None] * len(adapters)
    loaded = [cache.get(one) for one in adapters]
    assert len({one.number for one in loaded} | {0}) == len(adapters) + 1
    for one, adapter in zip(loaded, adapters, strict=True):
        check(memory, one.number, adapter, spec)
    assert not memory.table[0].any()
    assert [sorted(one.tables) for one in loaded] == [[], [], ["embed", "head"], []]
    few, large = loaded[0].num_bytes, loaded[1].num_bytes
    assert few == bytes_of(adapters[0], spec)
    assert large == bytes_of(adapters[1], spec) * 2 // spec.num_layers  # of two layers, three units each
    assert loaded[3].num_bytes < few  # of some projections


def test_memory_is_given_back(spec: ModelSpec, adapters: list[Adapter]) -> None:
    """Whatever came and went, those that are there have their numbers, and in the end all is free."""
    capacity = 2 * bytes_of(adapters[1], spec)
    cache, memory = made(spec, capacity)
    for turn in range(30):
        adapter = adapters[(turn * 7 + turn // 3) % len(adapters)]
        assert load(cache, adapter) is None if not cache.is_resident(adapter) else True
        for one in adapters:
            if cache.is_resident(one):
                check(memory, cache.get(one).number, one, spec)
        cache.check_integrity({})
    assert sum(one["loads"] for one in cache.describe()) > len(adapters)
    cache.clear()
    assert cache.num_bytes == 0
    assert cache._loader._extents.free == len(memory.numbers) // UNIT
    assert len(cache._loader._numbers) == len(memory.table) - 1


def test_in_pieces_memory_is_freed_until_one_fits(spec: ModelSpec, adapters: list[Adapter], tmp_path: Path) -> None:
    """Bytes would suffice, but they lie apart."""
    small = [named(write_adapter(tmp_path / f"s{one}", spec, rank=1, seed=one)) for one in range(6)]
    large = named(write_adapter(tmp_path / "large", spec, rank=64))
    each = bytes_of(small[0], spec)
    cache, memory = made(spec, 6 * each)
    for one in small:
        assert load(cache, one) is None
    kept = small[1:4:2]
    for one in kept:
        cache.pin(one)
    assert not cache.start(large)  # a layer of it takes more than all layers of the one between those in use
    for one in kept:
        check(memory, cache.get(one).number, one, spec)
        cache.unpin(one)
    assert load(cache, large) is None
    check(memory, cache.get(large).number, large, spec)


def test_what_does_not_fit_or_has_changed_is_refused(spec: ModelSpec, adapters: list[Adapter], tmp_path: Path) -> None:
    cache, memory = made(spec, bytes_of(adapters[0], spec))
    error = load(cache, adapters[1])
    assert error is not None
    assert "adapter_memory" in error.message
    gone = named(write_adapter(tmp_path / "gone", spec, rank=2))
    (Path(gone.path) / "adapter_model.safetensors").unlink()
    assert load(cache, gone) is not None
    assert load(cache, adapters[0]) is None  # nothing is left of them
    check(memory, cache.get(adapters[0]).number, adapters[0], spec)


def test_what_can_never_fit_makes_nobody_wait(spec: ModelSpec, adapters: list[Adapter]) -> None:
    """It fails at once: no other adapter goes for it, and it waits for none in use."""
    cache, memory = made(spec, 2 * bytes_of(adapters[0], spec))
    for adapter in (adapters[0], adapters[3]):
        assert load(cache, adapter) is None
    cache.pin(adapters[0])
    error = load(cache, adapters[1])
    assert error is not None
    assert "adapter_memory" in error.message
    for adapter in (adapters[0], adapters[3]):
        check(memory, cache.get(adapter).number, adapter, spec)
    cache.check_integrity({adapters[0].key: 1})


def test_copies_on_the_host_are_bounded(
    spec: ModelSpec, adapters: list[Adapter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_adapters, "SLAB", 1 << 12)
    sizes = {one.key: pack(read_deltas(one, spec), spec.num_layers, torch.empty).num_bytes for one in adapters}
    read: list[str] = []

    def reading(adapter: Adapter) -> Any:
        read.append(adapter.name)
        return read_deltas(adapter, spec)

    capacity = sum(sorted(sizes.values())[-2:]) + (1 << 16)
    host = HostAdapters(
        reading, spec.num_layers, torch.float32, capacity, lambda size: torch.empty(size, dtype=torch.uint8)
    )
    for turn in range(20):
        adapter = adapters[(turn * 5 + turn // 4) % len(adapters)]
        packed = host.get(adapter)
        exact = pack(read_deltas(adapter, spec), spec.num_layers, torch.empty)
        assert [blob.number for blob in packed.blobs] == [blob.number for blob in exact.blobs]
        for one, other in zip(packed.blobs, exact.blobs, strict=True):
            assert torch.equal(one.numbers, other.numbers)
        assert host.num_bytes <= capacity
    assert len(adapters) < len(read) < 20


def test_ranks_take_the_same_memory_for_unequal_parts_of_a_vocabulary(spec: ModelSpec, tmp_path: Path) -> None:
    """Rank 0 chooses the places of all."""
    odd = replace(spec, vocab_size=spec.vocab_size + 2)
    modules = ("q_proj", "down_proj", "lm_head", "embed_tokens")
    adapter = named(write_adapter(tmp_path / "a", odd, rank=18, modules=modules))
    extents = []
    for rank in range(4):
        shard = Shard(rank, 4)
        copier = device_copier(odd, torch.float32, CPU, 16 << 20, shard=shard)
        place = AdapterPlace(1, {blob: (7 * blob * 1000, size) for blob, size in copier.most_units(adapter).items()})
        copier.start(adapter, place)
        [(_, made)] = copier.take_finished(wait_s=60.0)
        assert isinstance(made, DeviceAdapter)
        extents.append(made.extents)
        own = list(read_deltas(adapter, odd, shard=shard))
        assert {one.a.shape[1] for one in own if one.product.product == "embed"} == {80 if rank % 2 == 0 else 81}
        for one in own:
            assert torch.allclose(
                delta_in(copier.memory, 1, one), torch.from_numpy(one.b @ one.a) * one.scale, atol=1e-5
            )
    assert extents[1:] == extents[:1] * 3
