"""Choosing an architecture and a dtype, and models without a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
import pytest
import torch

from helpers.paged_model import run_alone
from penstock.errors import ArchitectureUnsupported, ModelNotFound, OutOfMemory
from penstock.model import (
    DummySource,
    Packing,
    choose_dtype,
    load,
    open_source,
    packed_bytes,
    registry,
    weight_bytes,
)
from penstock.model.weights.dummy import BlankSource
from penstock.model.weights.pack import FORMATS, Quantization, kind_of
from penstock.store.gguf import TENSOR_TYPES
from penstock.store.spec import ModelSpec, Rope

CPU = torch.device("cpu")
SPEC = ModelSpec(
    architecture="llama",
    name="tiny",
    vocab_size=100,
    hidden_size=64,
    intermediate_size=96,
    num_layers=30,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    context=128,
    norm_eps=1e-6,
    rope=Rope(dim=16),
    attention_scale=0.25,
)


def test_unknown_architecture_lists_the_known_ones() -> None:
    spec = msgspec.structs.replace(SPEC, architecture="mamba")
    with pytest.raises(ArchitectureUnsupported, match="'mamba' is not supported; supported are llama, mistral, qwen2"):
        load(spec, DummySource(CPU), dtype=torch.float32, device=CPU, context=64)


@pytest.mark.parametrize("name", registry.ARCHITECTURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_dummy_weights_run_without_overflow(name: str, dtype: torch.dtype) -> None:
    spec = msgspec.structs.replace(SPEC, architecture=name, embedding_scale=8.0 if name == "gemma3" else 1.0)
    model = load(spec, DummySource(CPU), dtype=dtype, device=CPU, context=64)
    logits = run_alone(model, range(20), (10, 1), dtype=dtype)
    assert logits.isfinite().all()
    assert logits.std() > 0.1


@pytest.mark.parametrize("name", registry.ARCHITECTURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tied", [False, True])
def test_bytes_are_known_beforehand(name: str, dtype: torch.dtype, tied: bool) -> None:
    spec = msgspec.structs.replace(SPEC, architecture=name, tied=tied, num_layers=2)
    model = load(spec, DummySource(CPU), dtype=dtype, device=CPU, context=64)
    assert weight_bytes(spec, dtype=dtype, device=CPU) == model.num_bytes


def test_weights_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError

    source = DummySource(CPU)
    monkeypatch.setattr(source, "read", full)
    with pytest.raises(OutOfMemory, match=r"weights of tiny take 0\.0 GiB as float32, more than is free on cpu"):
        load(SPEC, source, dtype=torch.float32, device=CPU, context=64)


def test_dummy_weights_follow_the_seed() -> None:
    def head(seed: int) -> torch.Tensor:
        return load(SPEC, DummySource(CPU, seed), dtype=torch.float16, device=CPU, context=64).head.dense

    assert head(1).equal(head(1))
    assert not head(1).equal(head(2))
    assert not head(1)[0].equal(head(1)[1])


def test_dummy_tensor_larger_than_the_pool() -> None:
    tensor = DummySource(CPU).read("embedding", (3000, 2000))
    assert tensor.shape == (3000, 2000)
    assert len(tensor.unique(dim=0)) == 3000


def test_blank_weights_have_the_shapes_and_nothing_in_them() -> None:
    blank = load(SPEC, BlankSource(CPU), dtype=torch.float16, device=CPU, context=64)
    random = load(SPEC, DummySource(CPU), dtype=torch.float16, device=CPU, context=64)
    assert blank.head.shape == random.head.shape
    assert blank.num_bytes == random.num_bytes
    assert not blank.head.dense.any()
    assert BlankSource(CPU).read("embedding", (3000, 2000)).untyped_storage().nbytes() == 4


@pytest.mark.parametrize("quantize", [None, "int8", "int4"])
@pytest.mark.parametrize("stored", sorted(kind.name for kind in TENSOR_TYPES.values()))
def test_blank_weights_in_every_packed_form(stored: str, quantize: Quantization | None) -> None:
    spec = msgspec.structs.replace(SPEC, hidden_size=256, intermediate_size=512, num_layers=1, num_heads=16)
    packing = Packing(quantize)
    source = BlankSource(CPU, stored)
    model = load(spec, source, dtype=torch.float32, device=CPU, context=64, packing=packing)
    norms = 4 * spec.hidden_size * 3
    blocks = stored in FORMATS
    if not (blocks and quantize):  # which a start refuses
        assert model.num_bytes == packed_bytes(spec, source, packing) + norms
    kinds = {segment.kind for segment in model.head.packed.segments}
    assert kinds == {kind_of(stored, quantize)}
    assert not model.head.to_dense().any()


@pytest.mark.parametrize("form", ["safetensors", "gguf"])
def test_missing_file(form: Literal["safetensors", "gguf"], tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no such file"):
        open_source([tmp_path / "none"], form)


@pytest.mark.parametrize(
    ("name", "made_in", "device", "chosen"),
    [
        ("auto", "bfloat16", "cpu", torch.float32),
        ("auto", "bfloat16", "cuda", torch.bfloat16),
        ("auto", "float16", "cuda", torch.float16),
        ("auto", "float32", "cuda", torch.bfloat16),
        ("float32", "bfloat16", "cuda", torch.float32),
        ("bfloat16", "float32", "cpu", torch.bfloat16),
    ],
)
def test_dtype(name: str, made_in: str, device: str, chosen: torch.dtype) -> None:
    spec = msgspec.structs.replace(SPEC, dtype=made_in)
    assert choose_dtype(name, spec, torch.device(device)) == chosen  # type: ignore[arg-type]
