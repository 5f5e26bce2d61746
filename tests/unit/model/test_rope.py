"""Frequencies and tables against transformers' own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, Phi3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from penstock.model.layers.rope import frequencies, rotary_table
from penstock.store.hf_config import spec_from_config
from penstock.store.spec import Rope

CPU = torch.device("cpu")
SHAPE = {
    "hidden_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "pad_token_id": None,
}

SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0, "rope_theta": 10_000.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
        "rope_theta": 500_000.0,
    },
    "yarn": {"factor": 8.0, "original_max_position_embeddings": 512, "rope_theta": 1_000_000.0},
    "longrope": {
        "original_max_position_embeddings": 512,
        "short_factor": [1.0 + 0.1 * i for i in range(32)],
        "long_factor": [1.0 + 2.0 * i for i in range(32)],
        "rope_theta": 10_000.0,
    },
}


def ours(config: Any) -> Rope:
    written = config.to_dict() | {"architectures": ["LlamaForCausalLM"]}
    return spec_from_config(written, None, "model").rope


@pytest.mark.parametrize("kind", SCALINGS)
@pytest.mark.parametrize("context", [512, 4096])
def test_frequencies(kind: str, context: int) -> None:
    config = (Phi3Config if kind == "longrope" else LlamaConfig)(
        **SHAPE, rope_parameters={"rope_type": kind} | SCALINGS[kind]
    )
    rope = ours(config)
    expected, factor = ROPE_INIT_FUNCTIONS[kind](config, device=CPU, seq_len=context)
    assert rope.kind == kind
    assert rope.attention_factor == pytest.approx(factor)
    torch.testing.assert_close(torch.from_numpy(frequencies(rope, context)), expected, rtol=1e-6, atol=0)


def test_yarn_whose_ramp_has_no_width() -> None:
    rope = Rope(theta=10.0, dim=8, kind="yarn", factor=4.0, original_context=512, beta_fast=2.0, beta_slow=1.0)
    found = frequencies(rope, 512)
    assert np.isfinite(found).all()
    assert found[0] == 1.0


def test_llama3_factors_of_a_gguf_file() -> None:
    plain = frequencies(Rope(dim=8), 64)
    stretched = frequencies(Rope(dim=8, kind="llama3", long_factors=(1.0, 1.0, 2.0, 8.0)), 64)
    assert stretched.tolist() == (plain / np.float32([1.0, 1.0, 2.0, 8.0])).tolist()


def test_table() -> None:
    config = LlamaConfig(**SHAPE, rope_parameters={"rope_type": "yarn"} | SCALINGS["yarn"])
    table = torch.from_numpy(rotary_table(ours(config), 1000))
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(1000)[None])
    assert table.shape == (1000, 2, 32)
    torch.testing.assert_close(table[:, 0], cos[0, :, :32], atol=1e-5, rtol=0)
    torch.testing.assert_close(table[:, 1], sin[0, :, :32], atol=1e-5, rtol=0)
