"""Medusa heads as published: by their authors, and by vLLM, which calls the parts differently and can share the
target's output head (`original_lm_head`) or draft from a part of the vocabulary (`truncated_vocab_size`, `token_map`).
"""

from __future__ import annotations

import re
from pathlib import Path

from penstock.errors import ModelInvalid
from penstock.kernels.arrays import Array
from penstock.speculate.heads.checkpoint import HeadCheckpoint, open_checkpoint
from penstock.speculate.heads.layer import read_projection
from penstock.speculate.heads.spec import MedusaSpec
from penstock.speculate.heads.weights import MedusaWeights
from penstock.store.spec import ModelSpec
from penstock.store.values import Values

MOST_HEADS = 64


def read_medusa(folder: Path, target: ModelSpec) -> tuple[MedusaSpec, MedusaWeights]:
    """The heads in `folder`, checked against the target they are to draft for."""
    checkpoint = open_checkpoint(folder)
    config, vocab = checkpoint.config, target.vocab_size
    hidden = config.integer("hidden_size", target.hidden_size)
    if (hidden, config.integer("vocab_size", vocab)) != (target.hidden_size, vocab):
        raise ModelInvalid(
            f"{folder} was made for another model: {target.name} has hidden states of {target.hidden_size} and a "
            f"vocabulary of {vocab}",
            param="speculate",
        )
    spec = MedusaSpec(
        num_heads=_count(config, "medusa_num_heads", "num_heads"),
        num_blocks=_count(config, "medusa_num_layers", "num_hidden_layers"),
        hidden_size=hidden,
        draft_vocab_size=config.integer("truncated_vocab_size", vocab, most=vocab),
    )
    weights = _read(checkpoint, spec, target)
    checkpoint.finish("Medusa")
    return spec, weights


def _count(config: Values, *keys: str) -> int:
    key = next((key for key in keys if config.raw(key) is not None), keys[0])
    return config.integer(key, most=MOST_HEADS)


def _read(checkpoint: HeadCheckpoint, spec: MedusaSpec, target: ModelSpec) -> MedusaWeights:
    prefix = next((match[0] for name in checkpoint.names if (match := re.match(r"medusa_heads?\.", name))), "")
    by_vllm = f"{prefix}blocks.0.layers.0.weight" in checkpoint

    def block(head: int, number: int) -> str:
        return f"{prefix}blocks.{head}.layers.{number}" if by_vllm else f"{prefix}{head}.{number}.linear"

    def output(head: int) -> str:
        return f"{prefix}lm_heads.{head}.weight" if by_vllm else f"{prefix}{head}.{spec.num_blocks}.weight"

    hidden, token_ids = spec.hidden_size, _token_ids(checkpoint, spec, target)
    blocks = tuple(
        tuple(read_projection(checkpoint, block(head, number), hidden, hidden) for number in range(spec.num_blocks))
        for head in range(spec.num_heads)
    )
    if checkpoint.config.flag("original_lm_head", False):
        shared = _output(checkpoint, output(0), spec, token_ids) if output(0) in checkpoint else None
        return MedusaWeights(blocks, (shared,) * spec.num_heads, token_ids)
    heads = tuple(_output(checkpoint, output(head), spec, token_ids) for head in range(spec.num_heads))
    return MedusaWeights(blocks, heads, token_ids)


def _token_ids(checkpoint: HeadCheckpoint, spec: MedusaSpec, target: ModelSpec) -> Array | None:
    if "token_map" not in checkpoint:
        if spec.draft_vocab_size != target.vocab_size:
            raise checkpoint.config.invalid("truncated_vocab_size", "needs the tensor token_map")
        return None
    ids = checkpoint.token_ids("token_map", spec.draft_vocab_size)
    if not 0 <= int(ids.min()) <= int(ids.max()) < target.vocab_size:
        raise ModelInvalid(
            f"{checkpoint.folder}: token_map has ids outside the vocabulary of {target.vocab_size}", param="speculate"
        )
    return ids


def _output(checkpoint: HeadCheckpoint, name: str, spec: MedusaSpec, token_ids: Array | None) -> Array:
    """A head over the whole vocabulary is cut to the tokens it drafts."""
    head = checkpoint.floats(name, (checkpoint.shape(name)[0], spec.hidden_size))
    if token_ids is not None and len(head) != spec.draft_vocab_size:
        head = head[token_ids]
    return head
