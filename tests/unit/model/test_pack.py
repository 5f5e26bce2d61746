"""Checkpoints as packed matrices: the same weights that are read as floats, and quantization as they are loaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from safetensors.torch import load_file, save_file

from helpers import tiny_gguf, tiny_models
from penstock import settings
from penstock.composition import engine_loop
from penstock.errors import InvalidSetting, ModelInvalid
from penstock.kernels.cpu.arena import Arena
from penstock.kernels.cpu.packed import Kind, PackedMatrix, quantize
from penstock.kernels.reference.dense import to_dense
from penstock.model import DummySource, PackedForm, load, open_source, packed_bytes
from penstock.model.architectures.llama import Llama
from penstock.model.weights import loader
from penstock.model.weights.dense_form import DenseForm
from penstock.model.weights.form import DeviceForm
from penstock.model.weights.loaded import Weights
from penstock.model.weights.pack import GGUF_FORMATS, pack_blocks, pack_floats, pack_quantized
from penstock.store.gguf import TENSOR_TYPES
from penstock.store.hf_config import spec_from_config
from penstock.store.spec import ModelSpec

CPU = torch.device("cpu")
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q5_K": [0, 2]}
HALVES["Q6_K"] = [208]


def host(weight: torch.Tensor) -> np.ndarray:
    return (weight.view(torch.uint16) if weight.dtype == torch.bfloat16 else weight).numpy()


def random_rows(kind: str, rows: int, cols: int) -> np.ndarray:
    """[rows, bytes of a row]: any bytes, but sane float16 numbers where the format has some."""
    elements, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    draw = np.random.default_rng(1)
    blocks = draw.integers(0, 256, (rows * cols // elements, size), dtype=np.uint8)
    for at in HALVES[kind]:
        blocks[:, at : at + 2] = draw.standard_normal((len(blocks), 1)).astype(np.float16).view(np.uint8)
    return blocks.reshape(rows, -1)


@pytest.mark.parametrize("kind", GGUF_FORMATS)
def test_block_formats(kind: str) -> None:
    """Against the `gguf` package. The K formats' scales are rounded to float16."""
    rows = random_rows(kind, 37, 512)
    expected = torch.from_numpy(gguf.quants.dequantize(rows, GGMLQuantizationType[kind]))
    found = PackedMatrix([pack_blocks(kind, rows, 512, Arena())], 512).unpack()
    found = torch.from_numpy(found)
    if "K" not in kind:
        assert found.equal(expected)
        return
    codes = {"Q4_K": 15, "Q5_K": 31, "Q6_K": 32}[kind]
    groups = expected.view(37, -1, 16 if kind == "Q6_K" else 32)
    spread = groups.amax(2, keepdim=True) - groups.amin(2, keepdim=True) + groups.abs().amax(2, keepdim=True)
    assert ((found.view_as(groups) - groups).abs() <= 2**-11 * spread * 2 + 6e-8 * codes).all()
    assert not found.equal(expected)


def test_every_quantized_type_is_packed() -> None:
    assert {kind.name for kind in TENSOR_TYPES.values() if kind.block_elements > 1} == {*GGUF_FORMATS}


def test_scales_beyond_float16() -> None:
    rows = random_rows("Q4_K", 16, 256)
    rows[3, :2] = np.array([60000.0], dtype=np.float16).view(np.uint8)
    rows[3, 4:8] = 63
    with pytest.raises(ModelInvalid, match="Q4_K has scales that float16 cannot hold"):
        pack_blocks("Q4_K", rows, 256, Arena())


@pytest.mark.parametrize(
    ("dtype", "stored"), [(torch.float32, "F32"), (torch.float16, "F16"), (torch.bfloat16, "BF16")]
)
def test_floats_keep_their_bits(dtype: torch.dtype, stored: str) -> None:
    weight = torch.randn(37, 33).to(dtype)
    segment = pack_floats(host(weight), stored, Arena())
    assert segment.codes.dtype == host(weight).dtype
    assert torch.from_numpy(PackedMatrix([segment], 33).unpack()).equal(weight.float())


@pytest.mark.parametrize("cols", [64, 50])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_quantizing(cols: int, dtype: torch.dtype) -> None:
    weight = (torch.randn(40, cols) * torch.logspace(-6, 2, 40)[:, None]).to(dtype)
    weight[5] = 0.0
    largest = torch.nn.functional.pad(weight.float().abs(), (0, -cols % 32)).view(40, -1, 32).amax(2)
    largest = largest.repeat_interleave(32, 1)[:, :cols]

    def error(to: str) -> torch.Tensor:
        found = torch.from_numpy(PackedMatrix([pack_quantized(host(weight), to, Arena())], cols).unpack())
        assert found.shape == weight.shape
        assert not found[5].any()
        return (found - weight.float()).abs()

    assert (error("int8") <= largest * (0.5 / 127 + 2**-11) + 127 * 6e-8).all()
    assert (error("int4") <= largest * 0.2 + 8 * 6e-8).all()
    normal = largest > 1e-3  # below, float16 scales have few bits left
    relative = error("int4")[normal].square().mean() / largest[normal].square().mean()
    assert relative.sqrt() < 0.042  # 0.0443 when the largest weight decides alone


def halved_sum(terms: np.ndarray) -> np.ndarray:
    """[..., 32] -> [...], in the order of native/pack.cpp."""
    while terms.shape[-1] > 1:
        middle = terms.shape[-1] // 2
        terms = terms[..., :middle] + terms[..., middle:]
    return terms[..., 0]


def divisors(scales: np.ndarray) -> np.ndarray:
    return np.where(scales == 0, np.float32(1), scales.astype(np.float32))[..., None]


def int8(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scales = (np.abs(blocks).max(2) / np.float32(127)).astype(np.float16)
    return (np.rint(blocks / divisors(scales)).clip(-127, 127) + 128).astype(np.uint8), scales


def int4(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    lowest, highest = blocks.min(2), blocks.max(2)
    extreme = np.where(highest > -lowest, highest, lowest) / np.float32(-8)
    tried = []
    for share in (1.0, 0.9375, 0.875, 0.8125):
        scale = extreme * np.float32(share)
        codes = np.rint(blocks / divisors(scale)).clip(-8, 7)
        tried.append((halved_sum(np.square(codes * scale[..., None] - blocks)), codes))
    best = np.argmin([error for error, _ in tried], axis=0)
    codes = np.choose(best[..., None], [codes for _, codes in tried])
    scales = halved_sum(blocks * codes) / np.maximum(halved_sum(codes * codes), np.float32(1))
    whole = (codes + 8).astype(np.uint8)
    return whole[..., :16] | whole[..., 16:] << 4, scales.astype(np.float16)


@pytest.mark.parametrize(("bits", "formula"), [(8, int8), (4, int4)])
def test_native_quantization_is_the_formula(bits: Any, formula: Callable[..., tuple[np.ndarray, np.ndarray]]) -> None:
    """To the last bit, with scales from float16's subnormals to its largest."""
    draw = np.random.default_rng(2)
    blocks = draw.standard_normal((400, 8, 32), dtype=np.float32) * np.logspace(-9, 5, 400)[:, None, None]
    blocks = blocks.astype(np.float32)
    blocks[7] = 0.0
    blocks[8, 0, :3] = 0.0
    codes, scales = quantize(blocks, bits)
    with np.errstate(over="ignore"):
        expected_codes, expected_scales = formula(blocks)
    np.testing.assert_array_equal(scales, expected_scales)
    np.testing.assert_array_equal(codes, expected_codes)
    assert (expected_scales == 0).any()
    assert ((abs(expected_scales) > 0) & (abs(expected_scales) < 6e-5)).any()


def test_better_scales_than_the_largest_weight_alone() -> None:
    """Mean squared error of 4-bit blocks of normally distributed weights, against llama.cpp's way."""
    weight = torch.randn(512, 1024)
    found = torch.from_numpy(PackedMatrix([pack_quantized(weight.numpy(), "int4", Arena())], 1024).unpack())
    quantized = gguf.quants.quantize(weight.numpy(), GGMLQuantizationType.Q4_0)
    theirs = torch.from_numpy(gguf.quants.dequantize(quantized, GGMLQuantizationType.Q4_0))
    assert (found - weight).square().mean() < 0.93 * (theirs - weight).square().mean()


def spec_of(folder: Path) -> ModelSpec:
    return spec_from_config(json.loads((folder / "config.json").read_text()), None, "tiny")


def both(path: Path, form: str, spec: ModelSpec) -> tuple[Weights, Weights]:
    """Packed and plain."""

    def weights(device_form: DeviceForm) -> Weights:
        return loader.load(Llama.weight_map, open_source([path], form), spec, device_form)  # type: ignore[arg-type]

    return weights(PackedForm()), weights(DenseForm(torch.bfloat16, CPU))


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_1"])
def test_a_gguf_file_packed_has_the_same_weights(tmp_path: Path, kind: str) -> None:
    """Also q and k, whose rows are put in another order."""
    folder = tiny_models.make("llama", tmp_path)
    path = tiny_gguf.convert(folder, tmp_path / "tiny.gguf", GGMLQuantizationType[kind])
    packed, plain = both(path, "gguf", spec_of(folder))
    assert set(packed.matrices) == set(plain.matrices)
    assert set(packed.vectors) == set(plain.vectors)
    for name, weight in packed.matrices.items():
        assert to_dense(weight).bfloat16().equal(plain.matrices[name].dense), name
        assert all(segment.kind.is_float == (kind in ("F32", "F16", "BF16")) for segment in weight.packed.segments)
    for name, tensor in packed.vectors.items():
        assert torch.as_tensor(tensor).equal(plain.vectors[name])
    assert len(packed.matrices["layers.0.qkv"].packed.segments) == 3


def test_a_folder_packed_has_the_same_weights(tmp_path: Path) -> None:
    folder = tiny_models.make("llama", tmp_path)
    tensors = {name: tensor.bfloat16() for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(tensors, tmp_path / "half.safetensors")
    packed, plain = both(tmp_path / "half.safetensors", "safetensors", spec_of(folder))
    for name, weight in packed.matrices.items():
        assert to_dense(weight).bfloat16().equal(plain.matrices[name].dense), name
        assert {segment.kind for segment in weight.packed.segments} == {Kind.BF16}


@pytest.mark.parametrize("quantize", [None, "int8", "int4"])
def test_bytes_are_known_beforehand(tmp_path: Path, quantize: str | None) -> None:
    spec, form = spec_of(tiny_models.make("llama", tmp_path)), PackedForm(quantize)  # type: ignore[arg-type]
    source = DummySource()
    model = load(spec, source, form, context=64)
    norms = 4 * spec.hidden_size * (2 * spec.num_layers + 1)
    assert model.num_bytes == packed_bytes(spec, source, form) + norms
    assert model.head is model.embedding  # one copy serves both


def test_quantized_already(tmp_path: Path) -> None:
    folder = tiny_models.make("llama", tmp_path)
    path = tiny_gguf.convert(folder, tmp_path / "tiny.gguf", GGMLQuantizationType.Q8_0)
    with pytest.raises(InvalidSetting, match="tiny are quantized already, to Q8_0") as caught:
        packed_bytes(spec_of(folder), open_source([path], "gguf"), PackedForm("int8"))
    assert caught.value.param == "quantize"


@pytest.mark.parametrize("quantize", [None, "int4"])
def test_integers_are_no_weights(tmp_path: Path, quantize: str | None) -> None:
    folder = tiny_models.make("llama", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.embed_tokens.weight"] = torch.zeros(tiny_models.VOCAB, 64, dtype=torch.int8)
    save_file(tensors, tmp_path / "integers.safetensors")
    source = open_source([tmp_path / "integers.safetensors"], "safetensors")
    with pytest.raises(ModelInvalid, match="weights of type I8 are not supported; F32, F64, F16, BF16 are"):
        packed_bytes(spec_of(folder), source, PackedForm(quantize))  # type: ignore[arg-type]


def test_quantize_needs_the_native_kernels(tmp_path: Path) -> None:
    folder = tiny_models.make("llama", tmp_path)
    asked = settings.load({"model": str(folder), "device": "cpu", "dtype": "float32", "quantize": "int8"}, environ={})
    with pytest.raises(InvalidSetting, match="quantize: on a CPU only the native kernels"):
        engine_loop(asked)
