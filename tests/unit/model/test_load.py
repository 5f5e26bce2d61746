"""Choosing an architecture and a dtype, and models without a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import pytest
import torch

from helpers.model_specs import small_spec
from helpers.paged_model import run_alone
from penstock.errors import ArchitectureUnsupported, ModelNotFound, OutOfMemory
from penstock.model import (
    DummySource,
    PackedForm,
    load,
    open_source,
    packed_bytes,
    parameter_bytes,
    registry,
)
from penstock.model.load_dense import load_dense, weight_bytes
from penstock.model.weights.dummy_tensors import BlankSource, DeviceDummySource
from penstock.model.weights.pack import FORMATS, Quantization, kind_of
from penstock.model.weights.safetensors import DTYPES
from penstock.model.weights.source import Region
from penstock.store.gguf import TENSOR_TYPES

CPU = torch.device("cpu")
SPEC = small_spec(num_layers=30)


def test_unknown_architecture_lists_the_known_ones() -> None:
    spec = msgspec.structs.replace(SPEC, architecture="mamba")
    with pytest.raises(ArchitectureUnsupported, match="'mamba' is not supported; supported are llama, mistral, qwen2"):
        load_dense(spec, DummySource(), dtype=torch.float32, device=CPU, context=64)


@pytest.mark.parametrize("name", registry.ARCHITECTURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_dummy_weights_run_without_overflow(name: str, dtype: torch.dtype) -> None:
    spec = msgspec.structs.replace(SPEC, architecture=name, embedding_scale=8.0 if name == "gemma3" else 1.0)
    model = load_dense(spec, DummySource(), dtype=dtype, device=CPU, context=64)
    logits = run_alone(model, range(20), (10, 1), dtype=dtype)
    assert logits.isfinite().all()
    assert logits.std() > 0.1


@pytest.mark.parametrize("name", registry.ARCHITECTURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tied", [False, True])
def test_bytes_are_known_beforehand(name: str, dtype: torch.dtype, tied: bool) -> None:
    spec = msgspec.structs.replace(SPEC, architecture=name, tied=tied, num_layers=2)
    model = load_dense(spec, DummySource(), dtype=dtype, device=CPU, context=64)
    assert weight_bytes(spec, dtype=dtype, device=CPU) == model.num_bytes
    if dtype != torch.float32:  # of which the CPU has a second table
        assert parameter_bytes(spec, "bfloat16") == model.num_bytes


def test_weights_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError

    source = DummySource()
    monkeypatch.setattr(source, "read", full)
    with pytest.raises(OutOfMemory, match=r"weights of tiny take 0\.0 GiB as float32, more than is free on cpu"):
        load_dense(SPEC, source, dtype=torch.float32, device=CPU, context=64)


def test_dummy_weights_follow_the_seed() -> None:
    def head(seed: int) -> torch.Tensor:
        return load_dense(SPEC, DummySource(seed), dtype=torch.float16, device=CPU, context=64).head.dense

    assert head(1).equal(head(1))
    assert not head(1).equal(head(2))
    assert not head(1)[0].equal(head(1)[1])


@pytest.mark.parametrize("source", [DummySource(), DeviceDummySource(CPU)], ids=["host", "device"])
def test_dummy_weights_of_the_device(source: DummySource | DeviceDummySource) -> None:
    matrix, vector = torch.as_tensor(source.read("some", (300, 200))), source.read("norm", (200,))
    assert float(matrix.std()) == pytest.approx(200**-0.5, rel=0.02)
    assert (vector == np.ones(200)).all()


def test_dummy_tensor_larger_than_the_pool() -> None:
    tensor = DummySource().read("embedding", (3000, 2000))
    assert tensor.shape == (3000, 2000)
    assert len(np.unique(tensor, axis=0)) == 3000


def test_blank_weights_have_the_shapes_and_nothing_in_them() -> None:
    blank = load_dense(SPEC, BlankSource(CPU), dtype=torch.float16, device=CPU, context=64)
    random = load_dense(SPEC, DummySource(), dtype=torch.float16, device=CPU, context=64)
    assert blank.head.shape == random.head.shape
    assert blank.num_bytes == random.num_bytes
    assert not blank.head.dense.any()
    assert BlankSource(CPU).read("embedding", (3000, 2000)).untyped_storage().nbytes() == 4


class StoredAs:
    """A source of zeros, of any type that checkpoints have."""

    format = "hf"
    shapes = None

    def __init__(self, stored: str) -> None:
        self.kind = next(kind for kind in TENSOR_TYPES.values() if kind.name == stored)

    def read(self, name: str, shape: tuple[int, ...], region: Region | None = None) -> np.ndarray:
        return np.zeros(shape, DTYPES.get(self.kind.name, np.float32))

    def stored_type(self, name: str) -> str:
        return self.kind.name

    def read_blocks(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        return np.zeros((shape[0], shape[1] // self.kind.block_elements * self.kind.block_bytes), np.uint8)

    def codes(self, name: str) -> None:
        return None

    def release(self, name: str) -> None: ...


@pytest.mark.parametrize("quantize", [None, "int8", "int4"])
@pytest.mark.parametrize("stored", sorted(kind.name for kind in TENSOR_TYPES.values()))
def test_blank_weights_in_every_packed_form(stored: str, quantize: Quantization | None) -> None:
    spec = msgspec.structs.replace(SPEC, hidden_size=256, intermediate_size=512, num_layers=1, num_heads=16)
    form, source = PackedForm(quantize), StoredAs(stored)
    model = load(spec, source, form, context=64)
    norms = 4 * spec.hidden_size * 3
    blocks = stored in FORMATS
    if not (blocks and quantize):  # which a start refuses
        assert model.num_bytes == packed_bytes(spec, source, form) + norms
    kinds = {segment.kind for segment in model.head.packed.segments}
    assert kinds == {kind_of(stored, quantize)}
    assert not model.head.packed.unpack().any()


@pytest.mark.parametrize("form", ["safetensors", "gguf"])
def test_missing_file(form: Literal["safetensors", "gguf"], tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no such file"):
        open_source([tmp_path / "none"], form)
