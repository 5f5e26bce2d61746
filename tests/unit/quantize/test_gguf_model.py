"""GGUF files from Hugging Face folders: read back by Penstock and by the `gguf` package, number by number."""

from __future__ import annotations

import json
import random
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor

from helpers import tiny_gguf, tiny_models
from helpers.paged_model import run_alone
from penstock.errors import InvalidSetting, ModelInvalid
from penstock.kernels.arrays import Array
from penstock.model import open_source
from penstock.model.load_dense import load_dense
from penstock.model.weights.dequantize import dequantize
from penstock.quantize.gguf_blocks import ENCODERS, encode
from penstock.quantize.gguf_model import GGUF_TARGETS, write_gguf_model
from penstock.store.files import ModelFiles
from penstock.store.hf_folder import read
from penstock.store.resolve import resolve

PROMPT = random.Random(99).choices(range(2, 40), k=60)
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma3", "phi3")
OVERRIDES = {"gemma3": {"query_pre_attn_scalar": 32}}  # as readers of GGUF take it to be
# Largest error in steps of the code, and steps between the largest numbers of a block.
STEPS = {"Q4_0": 8, "Q4_1": 15, "Q5_0": 16, "Q5_1": 31, "Q8_0": 127}


def write(folder: Path, out: Path, target: str = "q8_0") -> Path:
    size = write_gguf_model(read(folder, "tiny"), out, target, lambda *_: None)
    assert size == out.stat().st_size
    return out


def logits(files: ModelFiles) -> Tensor:
    source = open_source(files.weights, files.format, files.spec.quantization)
    loaded = load_dense(files.spec, source, dtype=torch.float32, device=torch.device("cpu"), context=128)
    return run_alone(loaded, PROMPT, (len(PROMPT),))


def by_penstock(path: Path) -> dict[str, Array]:
    source = open_source([path], "gguf")
    assert source.shapes is not None
    return {name: source.read(name, shape) for name, shape in source.shapes.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_read_back_is_the_same(family: str, tmp_path: Path) -> None:
    folder = tiny_models.make(family, tmp_path / "model", **OVERRIDES.get(family, {}))
    before, after = read(folder, "tiny"), resolve(str(write(folder, tmp_path / "tiny.gguf")))
    exact, found = logits(before), logits(after)
    assert (found - exact).norm() < 0.1 * exact.norm()
    assert before.tokenizer is not None
    assert after.tokenizer is not None
    text = "the tea is <|end|> hot, 123 times\n"
    assert Tokenizer.from_file(str(after.tokenizer)).encode(text).ids == (
        Tokenizer.from_file(str(before.tokenizer)).encode(text).ids
    )
    assert set(before.spec.end_tokens) <= set(after.spec.end_tokens)
    assert after.chat_template == before.chat_template


@pytest.mark.parametrize("target", GGUF_TARGETS)
def test_both_readers_find_the_same_numbers(target: str, tmp_path: Path) -> None:
    folder = tiny_models.make("llama", tmp_path / "model", tie_word_embeddings=False)
    path = write(folder, tmp_path / "tiny.gguf", target)
    theirs, ours = tiny_gguf.dequantized(path), by_penstock(path)
    assert theirs.keys() == ours.keys()
    for name, values in theirs.items():
        np.testing.assert_array_equal(ours[name], values, err_msg=name)
    types = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}
    assert types["blk.0.ffn_gate.weight"] == target.upper()
    assert types["token_embd.weight"] == types["output.weight"] == "Q8_0"
    assert types["output_norm.weight"] == "F32"


@pytest.mark.parametrize("name", ENCODERS)
def test_codes_are_the_nearest(name: str) -> None:
    """No number is further from its block's than half a step; zeros stay zeros; and nothing is worse than llama.cpp's
    rounding, by the `gguf` package."""
    source = np.random.default_rng(0)
    matrix = source.standard_normal((40, 96)).astype(np.float32) * source.uniform(0.01, 3, (40, 1)).astype(np.float32)
    matrix[3] = 0
    matrix[4, :32] = 0.5
    octets = encode(name, matrix)
    found = dequantize(name, octets.reshape(-1, gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]][1]))
    blocks = matrix.reshape(-1, 32)
    reach = blocks.max(1) - blocks.min(1) if name.endswith("_1") else 1.1 * abs(blocks).max(1)
    clipped = 0.3 if name in ("Q4_0", "Q5_0") else 0.0
    step = reach / STEPS[name]
    assert (abs(found - blocks).max(1) <= (0.51 + clipped * STEPS[name]) * step + 2e-3 * abs(blocks).max(1)).all()
    assert (found.reshape(40, 96)[3] == 0).all()
    kind = gguf.GGMLQuantizationType[name]
    theirs = gguf.quants.dequantize(gguf.quants.quantize(matrix, kind), kind)
    assert np.square(found - blocks).sum() <= 1.001 * np.square(theirs.reshape(-1, 32) - blocks).sum()


def test_what_cannot_be_written(tmp_path: Path) -> None:
    folder = tiny_models.make("qwen2", tmp_path / "model", num_hidden_layers=1)
    with pytest.raises(InvalidSetting, match=r"ends in \.gguf") as caught:
        write(folder, tmp_path / "folder")
    assert caught.value.param == "out"
    path = write(folder, tmp_path / "tiny.gguf")
    with pytest.raises(InvalidSetting, match="exists already"):
        write(folder, path)
    with pytest.raises(ModelInvalid, match="only a Hugging Face folder of floats"):
        write_gguf_model(resolve(str(path)), tmp_path / "again.gguf", "q4_0", lambda *_: None)
    yarn = tiny_models.make("qwen3", tmp_path / "yarn")
    config = json.loads((yarn / "config.json").read_text())
    config["rope_scaling"] = config["rope_parameters"] = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0}
    (yarn / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelInvalid, match="rope: yarn"):
        write(yarn, tmp_path / "yarn.gguf")
    assert sorted(one.name for one in tmp_path.glob("*.gguf")) == ["tiny.gguf"]


def test_numbers_as_float32_gives_them(tmp_path: Path) -> None:
    """Configs that were made from a GGUF have 1e-05 as its float32."""
    folder = tiny_models.make("llama", tmp_path / "model", rms_norm_eps=float(np.float32(1e-5)))
    assert read(folder, "tiny").spec.norm_eps != 1e-5
    assert resolve(str(write(folder, tmp_path / "tiny.gguf"))).spec.norm_eps == 1e-5
