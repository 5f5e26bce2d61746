"""EAGLE checkpoints as published: what is read of them, and what is rejected with which words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import draft_heads
from helpers.draft_heads import HIDDEN, VOCAB, target_spec
from penstock.errors import ModelInvalid, ModelNotFound, PenstockError, WeightsMismatch
from penstock.speculate.heads.eagle import read_eagle


def test_eagle1(tmp_path: Path) -> None:
    spec, weights = read_eagle(draft_heads.eagle1(tmp_path), target_spec())
    assert (spec.kind, spec.taps, spec.draft_vocab_size, spec.layers.num_layers) == ("eagle", (), VOCAB, 1)
    assert weights.fuse.weight.shape == (HIDDEN, 2 * HIDDEN)
    assert weights.fuse.bias is not None
    assert weights.layers[0].input_norm is None
    assert weights.embedding is not None
    assert weights.head is None
    assert weights.output_norm is None


def test_eagle1_shares_the_embedding_and_drafts_a_part_of_the_vocabulary(tmp_path: Path) -> None:
    folder = draft_heads.eagle1(
        tmp_path,
        change={"token_map": np.array([3, 7, 90])},
        without=("embed_tokens.weight", "fc.bias"),
        truncated_vocab_size=3,
    )
    spec, weights = read_eagle(folder, target_spec())
    assert spec.draft_vocab_size == 3
    assert weights.token_ids is not None
    assert weights.token_ids.tolist() == [3, 7, 90]
    assert weights.embedding is None
    assert weights.fuse.bias is None


def test_eagle3(tmp_path: Path) -> None:
    spec, weights = read_eagle(draft_heads.eagle3(tmp_path), target_spec())
    assert (spec.kind, spec.taps, spec.draft_vocab_size) == ("eagle3", (2, 4, 5), VOCAB // 3)
    assert weights.token_ids is not None
    assert weights.token_ids.tolist() == list(range(0, VOCAB, 3))
    assert weights.layers[0].q.weight.shape[1] == 2 * HIDDEN
    assert weights.layers[0].feature_norm is not None
    assert weights.output_norm is not None


def test_eagle3_as_speculators_write_it(tmp_path: Path) -> None:
    """Sizes in `transformer_layer_config`, the layer as layers.0, taps of its own choice."""
    folder = draft_heads.eagle3(tmp_path / "as-published")
    from safetensors.numpy import load_file

    tensors = {
        name.replace("midlayer.", "layers.0."): tensor
        for name, tensor in load_file(folder / "model.safetensors").items()
    }
    config = {
        "speculators_model_type": "eagle3",
        "draft_vocab_size": VOCAB // 3,
        "norm_before_residual": True,
        "eagle_aux_hidden_state_layer_ids": [1, 3, 6],
        "transformer_layer_config": draft_heads.CONFIG,
    }
    spec, _ = read_eagle(draft_heads.write(tmp_path / "speculators", config, tensors), target_spec())
    assert (spec.taps, spec.norm_before_residual, spec.layers.hidden_size) == ((1, 3, 6), True, HIDDEN)


def ones(*shape: int) -> np.ndarray[Any, Any]:
    return np.ones(shape, np.float32)


WRONG: dict[str, tuple[Callable[..., Path], dict[str, Any], type[PenstockError], str]] = {
    "lacks a tensor": (draft_heads.eagle1, {"without": ("fc.weight",)}, WeightsMismatch, "lacks the tensor fc.weight"),
    "has another": (
        draft_heads.eagle1,
        {"change": {"layers.0.mlp.experts.0.weight": ones(2)}},
        WeightsMismatch,
        "EAGLE-1 does not use: layers.0.mlp.experts.0.weight",
    ),
    "shape": (
        draft_heads.eagle1,
        {"change": {"fc.weight": ones(HIDDEN, HIDDEN)}},
        WeightsMismatch,
        r"fc.weight has shape \(32, 32\), its config asks for \(32, 64\)",
    ),
    "dtype": (
        draft_heads.eagle1,
        {"change": {"fc.weight": np.ones((HIDDEN, 2 * HIDDEN), np.int8)}},
        ModelInvalid,
        "fc.weight has dtype I8",
    ),
    "activation": (draft_heads.eagle1, {"hidden_act": "gelu"}, ModelInvalid, "hidden_act 'gelu' is not supported"),
    "map missing": (draft_heads.eagle1, {"truncated_vocab_size": 9}, ModelInvalid, "needs the tensor token_map"),
    "ids": (
        draft_heads.eagle1,
        {"change": {"token_map": np.array([VOCAB])}, "truncated_vocab_size": 1},
        ModelInvalid,
        "token_map leads to token ids outside the vocabulary of 96",
    ),
    "two layers": (draft_heads.eagle3, {"num_hidden_layers": 2}, ModelInvalid, "num_hidden_layers must be 1"),
    "no d2t": (draft_heads.eagle3, {"without": ("d2t",)}, ModelInvalid, "draft_vocab_size needs the tensor d2t"),
    "tap": (
        draft_heads.eagle3,
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 8]}},
        ModelInvalid,
        "must be different layers of tiny, 0 to 7",
    ),
    "no taps": (
        draft_heads.eagle3,
        {"eagle_config": {"use_aux_hidden_state": False}},
        ModelInvalid,
        "use_aux_hidden_state false is not supported",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_named(tmp_path: Path, case: str) -> None:
    make, changes, error, words = WRONG[case]
    with pytest.raises(error, match=words):
        read_eagle(make(tmp_path, **changes), target_spec())


@pytest.mark.parametrize("make", [draft_heads.eagle1, draft_heads.eagle3])
@pytest.mark.parametrize("change", [{"hidden_size": 64}, {"vocab_size": 100}])
def test_head_of_another_target(tmp_path: Path, make: Callable[..., Path], change: dict[str, int]) -> None:
    with pytest.raises(ModelInvalid, match="take a head that was trained for it"):
        read_eagle(make(tmp_path), target_spec(**change))


def test_files(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no folder"):
        read_eagle(tmp_path / "none", target_spec())
    with pytest.raises(ModelInvalid, match=r"has no config\.json"):
        read_eagle(tmp_path, target_spec())
    draft_heads.eagle1(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelInvalid, match=r"pytorch_model\.bin is a pickle, which is not read"):
        read_eagle(tmp_path, target_spec())
