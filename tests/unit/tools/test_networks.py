"""The networks that are trained: drafts from all positions at once are those of one position after the other, and what
is saved drafts the same when it is read."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from draft_training import save
from draft_training.acceptance import chain_drafts, medusa_drafts, small_model_drafts
from draft_training.corpus import Batch
from draft_training.eagle import Eagle1, Eagle3
from draft_training.layers import LayerCache, ScaledLinear
from draft_training.medusa import Medusa
from draft_training.small_model import SmallModel
from helpers.draft_heads import HIDDEN, VOCAB, target_spec
from penstock.kernels.arrays import Array
from penstock.speculate.heads.chain import ChainHead, HeadSequence
from penstock.speculate.heads.eagle import read_eagle
from penstock.speculate.heads.medusa import read_medusa
from penstock.speculate.heads.medusa_heads import MedusaHeads

TARGET = target_spec()
SPEC = msgspec.structs.replace(TARGET, num_layers=1)
VOCABULARY = torch.arange(1, VOCAB, 2)
DEPTH = 3


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


EMBEDDING, HEAD = draw(VOCAB, HIDDEN), draw(VOCAB, HIDDEN)


def batch(length: int = 10) -> Batch:
    tokens = torch.randint(0, VOCAB, (1, length), generator=torch.Generator().manual_seed(1))
    ones = torch.ones(1, length, dtype=torch.bool)
    return Batch(tokens, draw(1, length, 4, HIDDEN), ones, ones)


def rounded(network: nn.Module) -> nn.Module:
    """Random weights and scales that the saved type holds exactly."""
    generator = torch.Generator().manual_seed(0)
    for module in network.modules():
        if isinstance(module, ScaledLinear):
            sizes = module.in_features, module.out_features
            module.rescale(*(2.0 ** torch.randint(-1, 2, (size,), generator=generator) for size in sizes))
    with torch.no_grad():
        for parameter in network.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            scale = 0.2 if parameter.dim() == 1 else 1.5 * parameter.shape[-1] ** -0.5
            parameter.copy_((noise * scale + (parameter.dim() == 1)).to(save.DTYPE))
    return network.eval()


def saved(kind: str, folder: Path) -> tuple[nn.Module, ChainHead]:
    rows = HEAD[VOCABULARY]
    if kind == "eagle":
        network = rounded(Eagle1(SPEC, rows))
        save.save_eagle1(folder, network, SPEC, VOCABULARY, {})
    else:
        network = rounded(Eagle3(SPEC, rows, torch.ones(HIDDEN)))
        save.save_eagle3(folder, network, SPEC, VOCABULARY, [2, 4, 5], {})
    spec, weights = read_eagle(folder, TARGET)
    return network, ChainHead(spec, weights, EMBEDDING.numpy(), HEAD.numpy(), context=64)


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
@torch.inference_mode()
def test_chain_heads(tmp_path: Path, kind: str) -> None:
    network, head = saved(kind, tmp_path)
    given = batch()
    found = chain_drafts(network, EMBEDDING, VOCABULARY, DEPTH)(given)[0]  # type: ignore[arg-type]
    tokens = given.tokens[0].numpy()
    states: Array = (given.states[0, :, 0] if kind == "eagle" else given.states[0, :, 1:].flatten(1)).numpy()
    sequence = HeadSequence(head.spec)
    for start in range(len(tokens) - 1):
        head.extend(sequence, tokens[start + 1 : start + 2], states[start : start + 1])
        assert head.draft(sequence, DEPTH) == found[start].tolist()
    assert len(np.unique(found[:-1])) > DEPTH


@torch.inference_mode()
def test_medusa_heads(tmp_path: Path) -> None:
    network = rounded(Medusa(HIDDEN, HEAD[VOCABULARY], heads=DEPTH, blocks=2))
    save.save_medusa(tmp_path, network, TARGET, VOCABULARY, {})  # type: ignore[arg-type]
    heads = MedusaHeads(*read_medusa(tmp_path, TARGET), HEAD.numpy())
    given = batch()
    found = medusa_drafts(network, VOCABULARY, DEPTH)(given)[0]  # type: ignore[arg-type]
    for start in range(len(found)):
        assert heads.draft(given.states[0, start, 0].numpy(), DEPTH) == found[start].tolist()


@torch.inference_mode()
def test_small_model() -> None:
    spec = msgspec.structs.replace(TARGET, num_layers=2)
    model = SmallModel(spec, HEAD[VOCABULARY], torch.ones(HIDDEN))
    rounded(model)
    given = batch()
    found = small_model_drafts(model, EMBEDDING, VOCABULARY, DEPTH)(given)[0]
    for start in range(given.tokens.shape[1] - 1):
        tokens = given.tokens[:, : start + 2]
        for place in range(DEPTH):
            hidden = model.advance(EMBEDDING[tokens], 0, [LayerCache() for _ in model.layers])[:, -1:]
            tokens = torch.cat((tokens, VOCABULARY[model.logits(hidden).argmax(-1)]), dim=1)
            assert int(tokens[0, -1]) == int(found[start, place])
