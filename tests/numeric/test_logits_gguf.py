"""Models from GGUF files, as llama.cpp's converter makes them, against transformers on the same weights."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf.constants import GGMLQuantizationType

from helpers import tiny_gguf, tiny_models
from helpers.paged_model import run_alone
from penstock.model import Decoder, open_source
from penstock.model.load_dense import load_dense
from penstock.store.gguf import read_header
from penstock.store.gguf_spec import spec_from_header

PROMPT = random.Random(0).choices(range(2, tiny_models.VOCAB), k=90)


def load_gguf(path: Path) -> Decoder:
    spec = spec_from_header(read_header(path), path, path.stem)
    return load_dense(spec, open_source([path], "gguf"), dtype=torch.float32, device=torch.device("cpu"), context=512)


@pytest.mark.parametrize(
    ("family", "overrides"),
    [
        ("llama", {}),
        ("llama", {"attention_bias": True}),
        ("llama3", {}),
        ("mistral", {}),
        ("qwen2", {}),
        ("qwen3", {}),
        ("gemma3", {"query_pre_attn_scalar": 32}),  # the metadata has no other value than the head's dimensions
        ("phi3", {}),
    ],
)
def test_float32(tmp_path: Path, family: str, overrides: dict[str, Any]) -> None:
    folder = tiny_models.make(family, tmp_path / "model", **overrides)
    path = tiny_gguf.convert(folder, tmp_path / "model.gguf")
    with torch.inference_mode():
        theirs = tiny_models.oracle(folder)(torch.tensor([PROMPT])).logits[0]
    assert (run_alone(load_gguf(path), PROMPT, (50, 1)) - theirs).abs().max() < 1e-4


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_quantized(tmp_path: Path, kind: str) -> None:
    """transformers gets the weights as the `gguf` package dequantizes them. Qwen2 because its rows keep their order."""
    folder = tiny_models.make("qwen2", tmp_path / "model")
    exact = tiny_gguf.convert(folder, tmp_path / "exact.gguf")
    path = tiny_gguf.convert(folder, tmp_path / "model.gguf", GGMLQuantizationType[kind])
    oracle = tiny_models.oracle(folder)
    weights = tiny_gguf.dequantized(path)
    names = {weight.tobytes(): name for name, weight in tiny_gguf.dequantized(exact).items()}
    with torch.inference_mode():
        for parameter in oracle.parameters():
            parameter.copy_(torch.from_numpy(weights[names[parameter.numpy().tobytes()]].copy()))
        theirs = oracle(torch.tensor([PROMPT])).logits[0]
    assert (run_alone(load_gguf(path), PROMPT, (50, 1)) - theirs).abs().max() < 1e-4
