"""Quantized checkpoints in the formats people publish: the model computes with the codes that were stored."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from helpers import quantized_checkpoints, tiny_models
from helpers.native_paged_model import needs_library
from helpers.paged_model import run_alone
from penstock import LLM, SamplingParams
from penstock.errors import ModelInvalid, WeightsMismatch
from penstock.model import PackedForm, Source, load, open_source, packed_bytes
from penstock.model.architectures.qwen2 import Qwen2
from penstock.model.load_dense import load_dense
from penstock.model.weights import loader
from penstock.model.weights.source import Region, Span
from penstock.store.files import ModelFiles
from penstock.store.hf_folder import read
from penstock.store.hf_quantization import quantization_from_config
from penstock.store.values import Values

PROMPT = list(range(2, 50))
# format and options -> the type that the codes keep in memory
CASES: list[tuple[str, dict[str, Any], str]] = [
    ("awq", {}, "Q4_1"),
    ("awq", {"group": 16}, "F16"),
    ("gptq", {}, "Q4_0"),
    ("gptq", {"symmetric": False}, "Q4_1"),
    ("gptq", {"symmetric": False, "v2": True}, "Q4_1"),
    ("gptq", {"desc_act": True}, "F16"),
    ("gptq", {"bits": 8}, "Q8_0"),
    ("gptq", {"bits": 8, "symmetric": False}, "F16"),
    ("packed", {}, "Q4_0"),
    ("packed", {"symmetric": False}, "Q4_1"),
    ("packed", {"symmetric": False, "plain_zeros": True}, "Q4_1"),
    ("packed", {"bits": 8}, "Q8_0"),
    ("packed", {"bits": 8, "symmetric": False, "plain_zeros": True}, "F16"),
    ("int8", {}, "Q8_0"),
    ("int8", {"by_row": False}, "Q8_0"),
    ("fp8", {"scale": "row"}, "F16"),
    ("fp8", {"scale": "tensor"}, "F16"),
    ("fp8", {"scale": "block"}, "F16"),
    ("nvfp4", {}, "NVFP4"),
    ("nvfp4", {"modelopt": True}, "NVFP4"),
]
IDS = ["-".join([name, *(f"{key}={value}" for key, value in options.items())]) for name, options, _ in CASES]
GATE = "model.layers.0.mlp.gate_proj"


@pytest.fixture(scope="module")
def floats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One layer, so that writing the codes number by number takes no time."""
    return tiny_models.make("qwen2", tmp_path_factory.mktemp("model"), num_hidden_layers=1)


def open_files(files: ModelFiles) -> Source:
    return open_source(files.weights, files.format, files.spec.quantization)


def changed(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> Source:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    return open_files(read(folder, "tiny"))


def set_config(folder: Path, **changes: Any) -> None:
    """Of its `quantization_config`."""
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] |= changes
    (folder / "config.json").write_text(json.dumps(config))


@needs_library
@pytest.mark.parametrize(("name", "options", "kind"), CASES, ids=IDS)
def test_codes_keep_their_values(floats: Path, tmp_path: Path, name: str, options: dict[str, Any], kind: str) -> None:
    folder, weights = quantized_checkpoints.write(floats, tmp_path / "model", name, **options)
    files = read(folder, "tiny")
    source = open_files(files)
    expected = weights[f"{GATE}.weight"].numpy()
    assert source.stored_type(f"{GATE}.weight") == kind
    whole = source.read(f"{GATE}.weight", expected.shape)
    assert np.allclose(whole, expected, rtol=1e-6, atol=0)
    odd = Region((Span(5, 21), Span(40, 57)), Span(3, 61))  # across words, groups and blocks
    np.testing.assert_array_equal(source.read(f"{GATE}.weight", expected.shape, odd), odd.of(whole))
    # float16 rounds products of codes and scales, and the offsets of zero points, by 1 part in 2048
    bound = np.abs(expected).max() / 2048
    packed = loader.load(Qwen2.weight_map, source, files.spec, PackedForm())
    rows = expected.shape[0]
    assert np.abs(packed.matrices["layers.0.gate_up"].packed.unpack()[:rows] - expected).max() <= bound


@pytest.mark.parametrize(("name", "options", "kind"), CASES, ids=IDS)
def test_logits_are_those_of_transformers(
    floats: Path, tmp_path: Path, name: str, options: dict[str, Any], kind: str
) -> None:
    folder, weights = quantized_checkpoints.write(floats, tmp_path / "model", name, **options)
    oracle = tiny_models.oracle(floats)
    missing = oracle.load_state_dict(weights, strict=False)
    assert not missing.unexpected_keys
    files = read(folder, "tiny")
    ours = load_dense(files.spec, open_files(files), dtype=torch.float32, device=torch.device("cpu"), context=64)
    with torch.inference_mode():
        theirs = oracle(torch.tensor([PROMPT])).logits[0]
    assert (run_alone(ours, PROMPT, (len(PROMPT),)) - theirs).abs().max() < 1e-4


def test_every_tensor_is_released(floats: Path, tmp_path: Path) -> None:
    folder, _ = quantized_checkpoints.write(floats, tmp_path / "model", "gptq")
    source, released = open_files(read(folder, "tiny")), []
    source._source.release = released.append  # type: ignore[attr-defined]
    for name in source.shapes or ():
        source.release(name)
    assert sorted(released) == sorted(load_file(folder / "model.safetensors"))


@needs_library
def test_what_has_no_blocks_can_be_quantized_at_load(floats: Path, tmp_path: Path) -> None:
    folder, _ = quantized_checkpoints.write(floats, tmp_path / "model", "fp8")
    files = read(folder, "tiny")
    assert packed_bytes(files.spec, open_files(files), PackedForm("int8")) < packed_bytes(
        files.spec, open_files(files), PackedForm()
    )


def test_layers_may_be_left_in_floats(floats: Path, tmp_path: Path) -> None:
    """Lists of layers that are not quantized need not be read: the tensors tell."""
    folder, weights = quantized_checkpoints.write(floats, tmp_path / "model", "gptq")

    def change(tensors: dict[str, Tensor]) -> None:
        for what in ("qweight", "qzeros", "scales", "g_idx"):
            del tensors[f"{GATE}.{what}"]
        tensors[f"{GATE}.weight"] = weights[f"{GATE}.weight"].contiguous()

    source = changed(folder, change)
    assert source.stored_type(f"{GATE}.weight") == "F32"
    load_dense(read(folder, "tiny").spec, source, dtype=torch.float32, device=torch.device("cpu"), context=64)


@needs_library
@pytest.mark.parametrize("weights", ["fp8", None])
def test_static_scales_of_a_kv_cache_are_left_out_and_said(
    floats: Path, tmp_path: Path, weights: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Here each token has its own. With quantized weights, and where the KV cache alone has a scheme."""
    folder = tmp_path / "model"
    if weights is None:
        shutil.copytree(floats, folder)
    else:
        quantized_checkpoints.write(floats, folder, weights)
    prompt = {"temperature": 0.0, "max_tokens": 4, "ignore_eos": True}
    with LLM(str(folder), context=64, threads=1, device="cpu") as llm:
        expected = llm.generate(PROMPT[:20], SamplingParams(**prompt)).tokens
    tensors = load_file(folder / "model.safetensors")
    for what in ("self_attn.k_scale", "self_attn.v_scale", "self_attn.k_proj.k_scale"):
        tensors[f"model.layers.0.{what}"] = torch.tensor(0.02)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
    config.setdefault("quantization_config", {"quant_method": "compressed-tensors"})["kv_cache_scheme"] = scheme
    (folder / "config.json").write_text(json.dumps(config))
    with caplog.at_level("INFO", "penstock"), LLM(str(folder), context=64, threads=1, device="cpu") as llm:
        assert llm.generate(PROMPT[:20], SamplingParams(**prompt)).tokens == expected
    said = [record.message for record in caplog.records if "k_scale" in record.message]
    assert len(said) == 1
    assert "KV cache of fp8 (k_scale, v_scale) are not used: the KV cache is float16" in said[0]


@pytest.mark.parametrize("name", ["kv_scale", "k_scale", "k_proj.output_scale"])
def test_scales_of_a_kv_cache_are_no_surplus(floats: Path, tmp_path: Path, name: str) -> None:
    folder, _ = quantized_checkpoints.write(floats, tmp_path / "model", "fp8")
    scale = {f"model.layers.0.self_attn.{name}": torch.tensor(0.02)}
    source = changed(folder, lambda tensors: tensors.update(scale))
    load_dense(read(folder, "tiny").spec, source, dtype=torch.float32, device=torch.device("cpu"), context=64)


def test_numbers_beyond_float16_are_refused(floats: Path, tmp_path: Path) -> None:
    folder, _ = quantized_checkpoints.write(floats, tmp_path / "model", "fp8")
    source = changed(folder, lambda tensors: tensors[f"{GATE}.weight_scale"].fill_(1e4))
    with pytest.raises(ModelInvalid, match=rf"weights of {GATE}.weight are not finite"):
        source.read(f"{GATE}.weight", (96, 64))


def test_another_bit_width_than_the_config_says(floats: Path, tmp_path: Path) -> None:
    folder, _ = quantized_checkpoints.write(floats, tmp_path / "model", "gptq")
    set_config(folder, bits=8)
    files = read(folder, "tiny")
    with pytest.raises((ModelInvalid, WeightsMismatch), match=r"shape"):
        load(files.spec, open_files(files), PackedForm(), context=64)


def test_gptq_layers_may_differ_in_bits(floats: Path, tmp_path: Path) -> None:
    """`dynamic` of GPTQModel: the zero points of a layer tell."""
    folder, weights = quantized_checkpoints.write(floats, tmp_path / "model", "gptq", symmetric=False)
    with_8 = quantized_checkpoints.write(floats, tmp_path / "other", "gptq", bits=8, symmetric=False)
    tensors = load_file(with_8[0] / "model.safetensors")
    set_config(folder, dynamic={r"+:.*\.gate_proj": {"bits": 8}})
    source = changed(folder, lambda found: found.update({name: tensors[name] for name in found if GATE in name}))
    np.testing.assert_array_equal(source.read(f"{GATE}.weight", (96, 64)), with_8[1][f"{GATE}.weight"].numpy())
    up = "model.layers.0.mlp.up_proj.weight"
    np.testing.assert_array_equal(source.read(up, (96, 64)), weights[up].numpy())
    assert read(folder, "tiny").spec.weights == "gptq mixed"


def test_modelopt_blocks(tmp_path: Path) -> None:
    """FP8_PB_WO: blocks of 128 x 128, with scales in four dimensions."""
    codes = torch.randn(200, 384).to(torch.float8_e4m3fn)
    scales = torch.rand(2, 1, 3, 1)
    save_file({"x.weight": codes, "x.weight_scale": scales}, tmp_path / "model.safetensors")
    quantization = quantization_from_config(
        Values({"quantization_config": {"quant_method": "modelopt", "quant_algo": "fp8_pb_wo"}}, "config")
    )
    source = open_source([tmp_path / "model.safetensors"], "safetensors", quantization)
    by_weight = scales[:, 0, :, 0].repeat_interleave(128, 0).repeat_interleave(128, 1)[:200]
    np.testing.assert_array_equal(source.read("x.weight", (200, 384)), (codes.float() * by_weight).numpy())


def test_transformers_reads_the_same_blocks(floats: Path, tmp_path: Path) -> None:
    """Its blocks must divide the sizes of all matrices."""
    folder, _ = quantized_checkpoints.write(floats, tmp_path / "model", "fp8", scale="block", block_rows=16)
    how = transformers.FineGrainedFP8Config(weight_block_size=(16, 32), dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, quantization_config=how)
    source, compared = open_files(read(folder, "tiny")), 0
    for name, theirs in model.state_dict().items():
        if name.endswith("_proj.weight"):
            np.testing.assert_array_equal(source.read(name, tuple(theirs.shape)), theirs.numpy())
            compared += 1
    assert compared == 7
