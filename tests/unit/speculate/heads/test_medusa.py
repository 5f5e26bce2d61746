"""Medusa checkpoints: what is read of them, what the heads compute, and what is rejected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

from helpers import draft_heads
from helpers.draft_heads import HIDDEN, VOCAB, Drawn, target_spec
from penstock.errors import ModelInvalid, PenstockError, WeightsMismatch
from penstock.speculate.heads.medusa import read_medusa
from penstock.speculate.heads.medusa_heads import MedusaHeads

HEAD = Drawn(9).matrix(VOCAB, HIDDEN)
STATE = Drawn(11).matrix(1, HIDDEN)[0] * 3


def oracle(folder: Path, head: int) -> np.ndarray[Any, Any]:
    """Logits by torch's own modules."""
    tensors = {name: torch.from_numpy(tensor) for name, tensor in load_file(folder / "model.safetensors").items()}
    x = torch.from_numpy(STATE)
    for block in range(2):
        linear = nn.Linear(HIDDEN, HIDDEN)
        linear.load_state_dict({name: tensors[f"{head}.{block}.linear.{name}"] for name in ("weight", "bias")})
        x = x + nn.SiLU()(linear(x))
    return (tensors[f"{head}.2.weight"] @ x).detach().numpy()


def test_heads_compute_what_torch_does(tmp_path: Path) -> None:
    folder = draft_heads.medusa(tmp_path)
    spec, weights = read_medusa(folder, target_spec())
    assert (spec.num_heads, spec.num_blocks, spec.draft_vocab_size) == (3, 2, VOCAB)
    heads = MedusaHeads(spec, weights, HEAD)
    expected = [oracle(folder, head) for head in range(3)]
    for head in range(3):
        np.testing.assert_allclose(heads.logits(STATE, head), expected[head], atol=1e-5)
    assert heads.draft(STATE, 2) == [int(logits.argmax()) for logits in expected[:2]]
    assert len(heads.draft(STATE, 9)) == 3


def test_vllm_layout_with_the_targets_output_head(tmp_path: Path) -> None:
    folder = draft_heads.medusa(tmp_path / "as-published")
    tensors = {
        f"blocks.{head}.layers.{block}.weight": load_file(folder / "model.safetensors")[f"{head}.{block}.linear.weight"]
        for head in range(3)
        for block in range(2)
    }
    tensors["token_map"] = np.arange(5, 25)
    config = {
        "num_heads": 3,
        "num_hidden_layers": 2,
        "hidden_size": HIDDEN,
        "vocab_size": VOCAB,
        "truncated_vocab_size": 20,
        "original_lm_head": True,
    }
    spec, weights = read_medusa(draft_heads.write(tmp_path / "vllm", config, tensors), target_spec())
    heads = MedusaHeads(spec, weights, HEAD)
    logits = heads.logits(STATE, 0)
    assert logits.shape == (20,)
    assert heads.draft(STATE, 1) == [5 + int(logits.argmax())]
    x = STATE
    for block in range(2):
        y = tensors[f"blocks.0.layers.{block}.weight"] @ x
        x = x + y / (1 + np.exp(-y))
    np.testing.assert_allclose(logits, HEAD[5:25] @ x, atol=1e-5)


WRONG: dict[str, tuple[dict[str, Any], type[PenstockError], str]] = {
    "another target": ({"hidden_size": 64}, ModelInvalid, "made for another model"),
    "no heads": ({"medusa_num_heads": 0}, ModelInvalid, "medusa_num_heads must be an integer in"),
    "more heads": ({"medusa_num_heads": 4}, WeightsMismatch, "lacks the tensor 3.0.linear.weight"),
    "fewer heads": ({"medusa_num_heads": 2}, WeightsMismatch, "Medusa does not use: 2.0.linear.bias"),
    "map": ({"truncated_vocab_size": 7}, ModelInvalid, "truncated_vocab_size needs the tensor token_map"),
    "ids": (
        {"truncated_vocab_size": 1, "change": {"token_map": np.array([-1])}},
        ModelInvalid,
        "token_map has ids outside",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_named(tmp_path: Path, case: str) -> None:
    changes, error, words = WRONG[case]
    with pytest.raises(error, match=words):
        read_medusa(draft_heads.medusa(tmp_path, **changes), target_spec())
