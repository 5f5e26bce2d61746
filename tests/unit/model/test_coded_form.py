"""Quantized checkpoints as matrices of codes, for CUDA: the codes that are stored, and the weights they stand for. Here
on the CPU, where torch's operations read them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from msgspec.structs import replace
from safetensors.torch import load_file, save_file
from torch import Tensor

from helpers import quantized_checkpoints, tiny_gguf, tiny_models
from helpers.gguf_blocks import BLOCKS
from helpers.paged_model import run_alone
from penstock.errors import InvalidSetting, ModelInvalid
from penstock.kernels.coded import Code, CodedMatrix, codes_of, encode
from penstock.kernels.reference.coded import dequantize
from penstock.kernels.reference.dense import to_dense
from penstock.kernels.weight import Form
from penstock.model import Source, open_source, registry
from penstock.model.load_coded import blank_layers, coded_bytes, load_coded
from penstock.model.weights import loader
from penstock.model.weights.coded_form import CodedForm
from penstock.model.weights.dense_form import DenseForm
from penstock.model.weights.dummy import DummySource
from penstock.model.weights.dummy_tensors import BlankSource
from penstock.model.weights.loaded import Weights
from penstock.model.weights.place import WHOLE, Shard
from penstock.model.weights.rounding import round_rows, rounded_coding
from penstock.store.files import ModelFiles
from penstock.store.gguf import read_header
from penstock.store.gguf_spec import spec_from_header
from penstock.store.hf_folder import read
from penstock.store.spec import ModelSpec

CPU = torch.device("cpu")
PROMPT = list(range(2, 50))
GATE = "model.layers.0.mlp.gate_proj"
# format and options -> code and group in memory, and what is stored beside the scale
CASES: list[tuple[str, dict[str, Any], tuple[str, int, str | None]]] = [
    ("awq", {}, ("u4", 32, "zeros")),
    ("awq", {"group": 16}, ("u4", 16, "zeros")),
    ("gptq", {}, ("u4", 32, None)),
    ("gptq", {"symmetric": False}, ("u4", 32, "zeros")),
    ("gptq", {"symmetric": False, "v2": True}, ("u4", 32, "zeros")),
    ("gptq", {"desc_act": True}, ("u4", 32, None)),
    ("gptq", {"desc_act": True, "symmetric": False}, ("u4", 32, "zeros")),
    ("gptq", {"bits": 8}, ("s8", 32, None)),
    ("gptq", {"bits": 8, "symmetric": False}, ("s8", 32, "offsets")),
    ("packed", {}, ("u4", 32, None)),
    ("packed", {"symmetric": False}, ("u4", 32, "zeros")),
    ("packed", {"bits": 8}, ("s8", 32, None)),
    ("int8", {}, ("s8", 0, None)),
    ("int8", {"by_row": False}, ("s8", 0, None)),
    ("fp8", {"scale": "row"}, ("e4m3", 0, None)),
    ("fp8", {"scale": "tensor"}, ("e4m3", 0, None)),
    ("fp8", {"scale": "block"}, ("e4m3", 32, None)),
    ("nvfp4", {}, ("e2m1", 16, None)),
    ("nvfp4", {"modelopt": True}, ("e2m1", 16, None)),
]
IDS = ["-".join([name, *(f"{key}={value}" for key, value in options.items())]) for name, options, _ in CASES]


@pytest.fixture(scope="module")
def floats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One layer, so that writing the codes number by number takes no time."""
    return tiny_models.make("qwen2", tmp_path_factory.mktemp("model"), num_hidden_layers=1)


def form(quantize: Any = None, *, dtype: torch.dtype = torch.float32, has_fp8: bool = True) -> CodedForm:
    return CodedForm(DenseForm(dtype, CPU), quantize, has_fp8)


def open_files(files: ModelFiles) -> Source:
    return open_source(files.weights, files.format, files.spec.quantization)


def loaded(spec: ModelSpec, source: Source, to: CodedForm, shard: Shard = WHOLE) -> Weights:
    return loader.load(registry.architecture(spec.architecture).weight_map, source, spec, to, shard)


def stacked(weights: dict[str, Tensor], *names: str) -> Tensor:
    return torch.cat([weights[f"model.layers.0.{name}.weight"] for name in names])


def coded(weights: Weights, name: str) -> CodedMatrix:
    return weights.matrices[f"layers.0.{name}"].coded


@pytest.mark.parametrize(("name", "options", "expected"), CASES, ids=IDS)
def test_codes_are_those_of_the_checkpoint(
    floats: Path, tmp_path: Path, name: str, options: dict[str, Any], expected: tuple[str, int, str | None]
) -> None:
    """A weight divided by its scale is the code less its zero: exactly that of the checkpoint."""
    folder, exact = quantized_checkpoints.write(floats, tmp_path / "model", name, **options)
    files = read(folder, "tiny")
    to = form(dtype=torch.float16)
    weights = loaded(files.spec, open_files(files), to)
    matrix = coded(weights, "gate_up")
    (part,) = matrix.parts  # gate and up are coded alike
    assert (part.coding.code, part.coding.group, part.coding.shift) == expected
    gate_up = stacked(exact, "mlp.gate_proj", "mlp.up_proj")
    # float16 rounds the scales of NVFP4 and the offsets of 8 bits with zero points
    rounded = part.coding.shift == "offsets" or part.coding.code is Code.E2M1
    tolerance = float(gate_up.abs().max()) / 2048 if rounded else 1e-6
    assert (dequantize(matrix) - gate_up).abs().max() <= tolerance
    assert (matrix.order is not None) == bool(options.get("desc_act"))
    assert weights.num_bytes == coded_bytes(files.spec, open_files(files), to)


@pytest.mark.parametrize(("name", "options", "_"), CASES, ids=IDS)
def test_logits_are_those_of_transformers(
    floats: Path, tmp_path: Path, name: str, options: dict[str, Any], _: object
) -> None:
    folder, exact = quantized_checkpoints.write(floats, tmp_path / "model", name, **options)
    oracle = tiny_models.oracle(floats)
    oracle.load_state_dict(exact, strict=False)
    files = read(folder, "tiny")
    model = load_coded(files.spec, open_files(files), form(), context=64)
    with torch.inference_mode():
        theirs = oracle(torch.tensor([PROMPT])).logits[0]
    tolerance = 2e-3 if name == "nvfp4" else 1e-3  # float16 rounds its scales, which are products
    assert (run_alone(model, PROMPT, (len(PROMPT),)) - theirs).abs().max() < tolerance * theirs.abs().max()


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("name", "options", "_"), CASES, ids=IDS)
def test_ranks_have_rows_and_columns_of_the_codes(
    floats: Path, tmp_path: Path, name: str, options: dict[str, Any], _: object, rank: int
) -> None:
    """Groups that are cut, orders that would be, are no obstacle: smaller groups, or floats."""
    folder, exact = quantized_checkpoints.write(floats, tmp_path / "model", name, **options)
    files = read(folder, "tiny")
    weights = loaded(files.spec, open_files(files), form(), Shard(rank, 2))
    for mine, names, rows in (
        ("qkv", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), True),
        ("gate_up", ("mlp.gate_proj", "mlp.up_proj"), True),
        ("output", ("self_attn.o_proj",), False),
        ("down", ("mlp.down_proj",), False),
    ):
        whole = [stacked(exact, name) for name in names]
        expected = torch.cat([one.chunk(2, 0 if rows else 1)[rank] for one in whole])
        weight = weights.matrices[f"layers.0.{mine}"]
        assert (to_dense(weight) - expected).abs().max() <= expected.abs().max() / 2048


def test_orders_that_differ_are_kept_by_no_product(floats: Path, tmp_path: Path) -> None:
    folder, exact = quantized_checkpoints.write(floats, tmp_path / "model", "gptq", desc_act=True)
    tensors = load_file(folder / "model.safetensors")
    up = "model.layers.0.mlp.up_proj"
    for what in ("qweight", "qzeros", "scales", "g_idx"):  # another order of groups: the same inputs backwards
        flipped = tensors[f"{up}.{what}"].flip(0)
        tensors[f"{up}.{what}"] = 1 - flipped if what == "g_idx" else flipped.contiguous()
    words = tensors[f"{up}.qweight"]
    tensors[f"{up}.qweight"] = sum(((words >> 4 * i) & 15) << 4 * (7 - i) for i in range(8)).to(torch.int32)
    save_file(tensors, folder / "model.safetensors")
    weights = loaded((files := read(folder, "tiny")).spec, open_files(files), form())
    expected = torch.cat((exact[f"{GATE}.weight"], exact[f"{up}.weight"].flip(1)))
    assert (to_dense(weights.matrices["layers.0.gate_up"]) - expected).abs().max() < 1e-6
    assert weights.matrices["layers.0.down"].form is Form.CODED


@pytest.mark.parametrize(
    ("name", "options", "change"),
    [("awq", {"group": 8}, {}), ("fp8", {}, {"has_fp8": False}), ("int8", {"by_row": True}, None)],
    ids=["odd groups", "no FP8", "one layer in floats"],
)
def test_what_no_product_reads_becomes_floats(
    floats: Path,
    tmp_path: Path,
    name: str,
    options: dict[str, Any],
    change: dict[str, Any] | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder, exact = quantized_checkpoints.write(floats, tmp_path / "model", name, **options)
    if change is None:
        tensors = load_file(folder / "model.safetensors")
        del tensors[f"{GATE}.weight_scale"]
        tensors[f"{GATE}.weight"] = exact[f"{GATE}.weight"].contiguous()
        save_file(tensors, folder / "model.safetensors")
    files = read(folder, "tiny")
    with caplog.at_level("WARNING", "penstock"):
        load_coded(files.spec, open_files(files), form(**(change or {})), context=64)
    count = 1 if change is None else 4
    assert f"{count} quantized matrices of tiny are dequantized to float32" in caplog.text
    weights = loaded(files.spec, open_files(files), form(**(change or {})))
    gate_up = stacked(exact, "mlp.gate_proj", "mlp.up_proj")
    assert (to_dense(weights.matrices["layers.0.gate_up"]) - gate_up).abs().max() < 1e-6
    assert (weights.matrices["layers.0.down"].form is Form.CODED) == (change is None)


@pytest.mark.parametrize("kind", sorted(BLOCKS))
def test_blocks_of_gguf(tmp_path: Path, kind: str) -> None:
    """Against codes and scales read number by number. Of the K formats random bytes, which are valid blocks."""
    folder = tiny_models.make("llama", tmp_path / "model", hidden_size=256, intermediate_size=256, num_hidden_layers=1)
    path = tiny_gguf.convert(folder, tmp_path / "model.gguf", GGMLQuantizationType[kind])
    spec = spec_from_header(read_header(path), path, "tiny")
    to = form(dtype=torch.float16)
    weights = loaded(spec, open_source([path], "gguf"), to)
    (part,) = coded(weights, "down").parts
    size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]][1]
    blocks = tiny_gguf.raw(path)["blk.0.ffn_down.weight"].reshape(-1, size)
    numbers = [BLOCKS[kind](bytes(block)) for block in blocks]
    codes = torch.tensor([code for block in numbers for code in block.codes]).view(256, -1)
    assert codes_of(part).int().equal(codes.int())
    scales = torch.tensor([scale for block in numbers for scale in block.scales]).view(256, -1)
    assert torch.allclose(part.scales[:, : scales.shape[1]].float(), scales, rtol=2**-11, atol=2**-25)
    if part.shifts is not None:
        offsets = torch.tensor([offset for block in numbers for offset in block.offsets]).view(256, -1)
        assert torch.allclose(part.shifts[:, : offsets.shape[1]].float(), offsets, rtol=2**-11, atol=2**-25)
    else:
        assert not any(block.offsets for block in numbers)
    expected = tiny_gguf.dequantized(path)["blk.0.ffn_down.weight"]
    assert np.abs(dequantize(coded(weights, "down")).numpy() - expected).max() <= np.abs(expected).max() / 1024
    assert weights.num_bytes == coded_bytes(spec, open_source([path], "gguf"), to)
    assert weights.matrices["embedding"].form is Form.DENSE


def test_a_file_that_mixes_formats(tmp_path: Path) -> None:
    """As Q4_K_M does: v and down have more bits in some layers. Blank layers stand for each kind."""
    sizes = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 6, "tie_word_embeddings": False}
    folder = tiny_models.make("llama", tmp_path / "model", **sizes)
    names = [f"blk.{layer}.{what}.weight" for layer in (1, 4) for what in ("attn_v", "ffn_down")]
    kinds = dict.fromkeys(names, GGMLQuantizationType.Q6_K)
    path = tiny_gguf.convert(folder, tmp_path / "model.gguf", GGMLQuantizationType.Q4_K, kinds)
    spec, source = spec_from_header(read_header(path), path, "tiny"), open_source([path], "gguf")
    weights = loaded(spec, source, form())
    codes = [[part.coding.code for part in weights.matrices[f"layers.{n}.qkv"].coded.parts] for n in (0, 1)]
    assert codes == [[Code.U4], [Code.U4, Code.U6]]
    assert weights.matrices["head"].form is Form.CODED
    like = blank_layers(spec, source, 2)
    assert like.num_layers == 3
    small = load_coded(replace(spec, num_layers=like.num_layers), BlankSource(CPU, like), form(), context=64)
    blank = [[part.coding for part in layer.qkv.weight.coded.parts] for layer in small.layers]  # type: ignore[attr-defined]
    real = [[part.coding for part in weights.matrices[f"layers.{n}.qkv"].coded.parts] for n in (0, 1)]
    assert blank == [real[0], real[1], real[0]]
    assert small.head.coded.parts[0].coding == weights.matrices["head"].coded.parts[0].coding


@pytest.mark.parametrize(("quantize", "worst"), [("fp8", 0.04), ("int8", 0.006), ("int4", 0.12)])
def test_floats_are_rounded_at_load(floats: Path, quantize: str, worst: float) -> None:
    files = read(floats, "tiny")
    to = form(quantize, dtype=torch.float16)
    weights = loaded(files.spec, open_files(files), to)
    exact = {name: tensor.float() for name, tensor in load_file(floats / "model.safetensors").items()}
    for mine, names in (("gate_up", ("mlp.gate_proj", "mlp.up_proj")), ("down", ("mlp.down_proj",))):
        expected = stacked(exact, *names)
        error = (dequantize(coded(weights, mine)) - expected).norm() / expected.norm()
        assert 0 < error < worst
    assert weights.num_bytes == coded_bytes(files.spec, open_files(files), to)
    assert weights.matrices["head"].form is Form.DENSE


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("quantize", "worst"), [("fp8", 0.04), ("int8", 0.006), ("int4", 0.12)])
def test_ranks_round_their_own_part_at_load(floats: Path, quantize: str, worst: float, rank: int) -> None:
    """Rows as they are rounded in the whole matrix, columns in groups of their own."""
    files, to = read(floats, "tiny"), form(quantize, dtype=torch.float16)
    shard = Shard(rank, 2)
    weights, whole = (loaded(files.spec, open_files(files), to, one) for one in (shard, WHOLE))
    assert weights.num_bytes == coded_bytes(files.spec, open_files(files), to, shard)
    halves = [one.chunk(2)[rank] for one in dequantize(coded(whole, "gate_up")).chunk(2)]
    assert torch.equal(dequantize(coded(weights, "gate_up")), torch.cat(halves))
    exact = {name: tensor.float() for name, tensor in load_file(floats / "model.safetensors").items()}
    for mine, name in (("output", "self_attn.o_proj"), ("down", "mlp.down_proj")):
        expected = stacked(exact, name).chunk(2, 1)[rank]
        error = (dequantize(coded(weights, mine)) - expected).norm() / expected.norm()
        assert 0 < error < worst


@pytest.mark.parametrize("quantize", ["fp8", "int8", "int4"])
def test_rounding_is_to_the_nearest_code(quantize: Any) -> None:
    """Among all codes of the matrix, in a search of their own."""
    weight = torch.randn(24, 128, generator=torch.Generator().manual_seed(0))
    weight[3] = 0
    coding = rounded_coding(quantize, 128)
    assert coding is not None
    ((codes, scales),) = round_rows(weight, coding)
    found = dequantize(encode(coding, codes, scales))
    grid = {
        "int4": torch.arange(-8, 8.0),
        "int8": torch.arange(-127, 128.0),
        "fp8": torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().nan_to_num(0),
    }[quantize]
    wide = scales.float().repeat_interleave(coding.group or 128, dim=1)
    nearest = ((weight / wide)[..., None] - grid).abs().amin(dim=-1) * wide.abs()
    assert ((found - weight).abs() - nearest).abs().max() < 1e-6
    assert not found[3].any()


def test_what_is_quantized_already_is_not_rounded(floats: Path, tmp_path: Path) -> None:
    folder, _ = quantized_checkpoints.write(floats, tmp_path / "model", "awq")
    files = read(folder, "tiny")
    with pytest.raises(InvalidSetting, match=r"quantize: the weights of .* are quantized already"):
        coded_bytes(files.spec, open_files(files), form("int8"))


def test_dummy_weights_are_rounded(floats: Path) -> None:
    spec = read(floats, "tiny").spec
    model = load_coded(spec, DummySource(), form("int4"), context=64)
    assert run_alone(model, PROMPT, (len(PROMPT),)).isfinite().all()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("awq", lambda tensors: tensors[f"{GATE}.scales"].fill_(float("inf"))),
        ("int8", lambda tensors: tensors[f"{GATE}.weight_scale"].fill_(float("nan"))),
        ("fp8", lambda tensors: tensors[f"{GATE}.weight"].view(torch.uint8).fill_(127)),
    ],
)
def test_numbers_that_are_not_finite_are_named(
    floats: Path, tmp_path: Path, name: str, change: Callable[[dict[str, Tensor]], None]
) -> None:
    folder, _ = quantized_checkpoints.write(floats, tmp_path / "model", name)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    files = read(folder, "tiny")
    with pytest.raises(ModelInvalid, match=rf"weights of {GATE}.q?weight are not finite"):
        loaded(files.spec, open_files(files), form())


def test_activations_of_the_checkpoint_are_known(floats: Path, tmp_path: Path) -> None:
    folder, _ = quantized_checkpoints.write(floats, tmp_path / "model", "fp8", scale="row")
    config = json.loads((folder / "config.json").read_text())
    group = config["quantization_config"]["config_groups"]["group_0"]

    def inputs(activations: dict[str, Any] | None) -> torch.dtype | None:
        group["input_activations"] = activations
        (folder / "config.json").write_text(json.dumps(config))
        files = read(folder, "tiny")
        found = coded(loaded(files.spec, open_files(files), form()), "down").inputs
        return found and found.dtype

    assert inputs(None) is None
    assert inputs({"num_bits": 8, "type": "float", "dynamic": True}) == torch.float8_e4m3fn
    assert inputs({"num_bits": 8, "type": "int", "dynamic": True}) is None
