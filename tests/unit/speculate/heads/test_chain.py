"""Chain heads in numpy against the decoder layers of transformers, and their bookkeeping."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding

from helpers import draft_heads
from helpers.draft_heads import HIDDEN, VOCAB, Drawn, target_spec
from penstock.kernels.arrays import Array
from penstock.speculate.heads.chain import ChainHead, HeadSequence
from penstock.speculate.heads.eagle import read_eagle

EMBEDDING, HEAD = Drawn(21).matrix(VOCAB, HIDDEN) * 4, Drawn(22).matrix(VOCAB, HIDDEN)
TOKENS = np.random.default_rng(23).integers(0, VOCAB, 12)


class Oracle:
    """EAGLE's layer by transformers; the wiring around it by hand, from the papers."""

    def __init__(self, folder: Path) -> None:
        self.tensors = load_file(folder / "model.safetensors")
        self.eagle3 = "d2t" in self.tensors
        config = LlamaConfig(**{**draft_heads.CONFIG, "attn_implementation": "eager"})
        self.layer = LlamaDecoderLayer(config, 0)
        self.layer.input_layernorm = nn.Identity()
        self.rotary = LlamaRotaryEmbedding(config)
        prefix = "midlayer." if self.eagle3 else "layers.0."
        own = {name.removeprefix(prefix): tensor for name, tensor in self.tensors.items() if name.startswith(prefix)}
        if self.eagle3:
            for name in ("q_proj", "k_proj", "v_proj"):
                weight = own[f"self_attn.{name}.weight"]
                setattr(self.layer.self_attn, name, nn.Linear(weight.shape[1], weight.shape[0], bias=False))
            self.norms = [self._norm(own.pop(f"{name}.weight")) for name in ("input_layernorm", "hidden_norm")]
        self.layer.load_state_dict(own)

    @staticmethod
    def _norm(weight: Tensor) -> LlamaRMSNorm:
        norm = LlamaRMSNorm(HIDDEN, eps=1e-5)
        norm.load_state_dict({"weight": weight})
        return norm

    def features(self, embedded: Tensor, features: Tensor) -> Tensor:
        """Of a whole sequence; `features` of EAGLE-3 have gone through fc."""
        count = len(embedded)
        mask = torch.full((count, count), -torch.inf).triu(1)[None, None]
        places = self.rotary(embedded[None], torch.arange(count)[None])
        if not self.eagle3:
            both = torch.cat((embedded, features), dim=-1)
            fused = both @ self.tensors["fc.weight"].T + self.tensors["fc.bias"]
            out = self.layer(fused[None], attention_mask=mask, position_embeddings=places)
            return (out[0] if isinstance(out, tuple) else out)[0]
        both = torch.cat((self.norms[0](embedded), self.norms[1](features)), dim=-1)
        x = features + self.layer.self_attn(both[None], attention_mask=mask, position_embeddings=places)[0][0]
        return x + self.layer.mlp(self.layer.post_attention_layernorm(x))

    def tap_features(self, states: Tensor) -> Tensor:
        return states @ self.tensors["fc.weight"].T if self.eagle3 else states

    def logits(self, features: Tensor) -> Tensor:
        if not self.eagle3:
            return features @ torch.from_numpy(HEAD).T
        return self._norm(self.tensors["norm.weight"])(features) @ self.tensors["lm_head.weight"].T


def make(folder: Path) -> ChainHead:
    spec, weights = read_eagle(folder, target_spec())
    return ChainHead(spec, weights, EMBEDDING, HEAD, context=64)


def states(head: ChainHead, count: int = len(TOKENS)) -> Array:
    width = HIDDEN * max(1, len(head.spec.taps))
    return np.random.default_rng(24).standard_normal((count, width)).astype(np.float32)


FOLDERS: dict[str, Callable[..., Path]] = {"eagle1": draft_heads.eagle1, "eagle3": draft_heads.eagle3}


@pytest.mark.parametrize("kind", FOLDERS)
@torch.inference_mode()
def test_features_and_logits_are_those_of_transformers(tmp_path: Path, kind: str) -> None:
    without: dict[str, Any] = {"without": ("embed_tokens.weight",)} if kind == "eagle1" else {}
    folder = FOLDERS[kind](tmp_path, **without)
    head, oracle = make(folder), Oracle(folder)
    given = states(head)
    embedded = torch.from_numpy(EMBEDDING[TOKENS])
    expected = oracle.features(embedded, oracle.tap_features(torch.from_numpy(given)))
    found = head.extend(HeadSequence(head.spec), TOKENS, given)
    np.testing.assert_allclose(found, expected, atol=2e-5)
    np.testing.assert_allclose(head.logits(found), oracle.logits(expected), atol=5e-5)


@pytest.mark.parametrize("kind", FOLDERS)
@torch.inference_mode()
def test_drafts_are_a_greedy_roll_out(tmp_path: Path, kind: str) -> None:
    """Each draft is fed back with the feature that it was drafted from, at the next position."""
    folder = FOLDERS[kind](tmp_path)
    head, oracle = make(folder), Oracle(folder)
    given, sequence = states(head), HeadSequence(head.spec)
    head.extend(sequence, TOKENS, given)
    drafts = head.draft(sequence, 4)
    table = torch.from_numpy(EMBEDDING) if kind == "eagle3" else oracle.tensors["embed_tokens.weight"]
    features, tokens = oracle.tap_features(torch.from_numpy(given)), TOKENS.tolist()
    expected = []
    for _ in range(4):
        last = oracle.features(table[tokens], features)[-1:]
        place = int(oracle.logits(last).argmax())
        expected.append(3 * place if kind == "eagle3" else place)
        tokens.append(expected[-1])
        features = torch.cat((features, last))
    assert drafts == expected


@pytest.mark.parametrize("kind", FOLDERS)
def test_entries_may_come_in_pieces_and_be_taken_back(tmp_path: Path, kind: str) -> None:
    head = make(FOLDERS[kind](tmp_path))
    given = states(head)
    whole, pieces = HeadSequence(head.spec), HeadSequence(head.spec)
    expected = head.extend(whole, TOKENS, given)
    head.extend(pieces, TOKENS[:5], given[:5])
    head.draft(pieces, 3)  # leaves no trace
    head.extend(pieces, TOKENS[5:8][::-1].copy(), given[5:8])
    head.truncate(pieces, 5)
    assert head.draft(pieces, 3) == []
    found = head.extend(pieces, TOKENS[5:], given[5:])
    np.testing.assert_allclose(found, expected[5:], atol=2e-5)
    assert head.draft(pieces, 3) == head.draft(whole, 3)
    assert head.draft(whole, 1) == head.draft(whole, 3)[:1]
