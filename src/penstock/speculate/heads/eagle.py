"""EAGLE heads as published: EAGLE-1 (also EAGLE-2, which has the same weights) and EAGLE-3, in the layouts of their
authors, of SGLang and vLLM, and of vLLM's speculators."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import ModelInvalid
from penstock.kernels.arrays import Array
from penstock.speculate.heads.checkpoint import HeadCheckpoint, open_checkpoint
from penstock.speculate.heads.layer import read_layer, read_projection
from penstock.speculate.heads.spec import ChainHeadSpec
from penstock.speculate.heads.weights import ChainHeadWeights
from penstock.store.hf_config import spec_from_config
from penstock.store.spec import ModelSpec
from penstock.store.values import Values


def read_eagle(folder: Path, target: ModelSpec) -> tuple[ChainHeadSpec, ChainHeadWeights]:
    """The head in `folder`, checked against the target it is to draft for. Its tensors tell which EAGLE it is."""
    checkpoint = open_checkpoint(folder)
    is_eagle3 = any(name.startswith("midlayer.") or name.endswith("hidden_norm.weight") for name in checkpoint.names)
    read = _read_eagle3 if is_eagle3 else _read_eagle1
    spec, weights = read(checkpoint, _layer_spec(checkpoint.config, folder.name), target)
    checkpoint.finish("EAGLE-3" if is_eagle3 else "EAGLE-1")
    return spec, weights


def _layer_spec(config: Values, name: str) -> ModelSpec:
    """Of the head's decoder layers. Heads are Llama layers; the name in `architectures` is ignored."""
    nested = config.part("transformer_layer_config").values or config.part("model").values  # speculators, old vLLM
    values: Mapping[str, Any] = {**config.values, **nested}
    hidden_act = values.get("hidden_act", "silu")
    if hidden_act not in ("silu", "swish"):
        raise config.invalid("hidden_act", f"{hidden_act!r} is not supported in draft heads (silu is)")
    return spec_from_config(
        {**values, "architectures": ["LlamaForCausalLM"], "layer_types": None, "dtype": None, "torch_dtype": None},
        None,
        name,
    )


def _read_eagle1(
    checkpoint: HeadCheckpoint, layers: ModelSpec, target: ModelSpec
) -> tuple[ChainHeadSpec, ChainHeadWeights]:
    hidden = layers.hidden_size
    if hidden != target.hidden_size:
        raise _mismatch(checkpoint, f"hidden states of {hidden}", target, target.hidden_size)
    embedding, vocab = _embedding(checkpoint, layers, target), target.vocab_size
    drafted = checkpoint.config.integer("truncated_vocab_size", vocab, most=vocab)
    token_ids = None
    if "token_map" in checkpoint:
        token_ids = _checked_ids(checkpoint, "token_map", checkpoint.token_ids("token_map", drafted), target)
    elif drafted != vocab:
        raise checkpoint.config.invalid("truncated_vocab_size", "needs the tensor token_map")
    weights = ChainHeadWeights(
        fuse=read_projection(checkpoint, "fc", hidden, 2 * hidden),
        layers=tuple(read_layer(checkpoint, f"layers.{number}.", layers) for number in range(layers.num_layers)),
        embedding=embedding,
        head=_own_head(checkpoint, token_ids, drafted, hidden),
        token_ids=token_ids,
    )
    spec = ChainHeadSpec(kind="eagle", layers=layers, target_hidden_size=hidden, draft_vocab_size=drafted)
    return spec, weights


def _own_head(checkpoint: HeadCheckpoint, token_ids: Array | None, drafted: int, hidden: int) -> Array | None:
    """A head over the whole vocabulary is cut to the tokens it drafts."""
    if "lm_head.weight" not in checkpoint:
        return None
    head = checkpoint.floats("lm_head.weight", (checkpoint.shape("lm_head.weight")[0], hidden))
    return head if token_ids is None or len(head) == drafted else head[token_ids]


def _read_eagle3(
    checkpoint: HeadCheckpoint, layers: ModelSpec, target: ModelSpec
) -> tuple[ChainHeadSpec, ChainHeadWeights]:
    config, hidden = checkpoint.config, layers.hidden_size
    if layers.num_layers != 1:
        raise config.invalid("num_hidden_layers", f"must be 1 for EAGLE-3, got {layers.num_layers}")
    if config.part("eagle_config").raw("use_aux_hidden_state") is False:
        raise config.invalid("eagle_config.use_aux_hidden_state", "false is not supported")
    target_hidden = config.integer("target_hidden_size", hidden)
    if target_hidden != target.hidden_size:
        raise _mismatch(checkpoint, f"hidden states of {target_hidden}", target, target.hidden_size)
    taps = _taps(config, target)
    drafted = config.integer("draft_vocab_size", target.vocab_size, most=target.vocab_size)
    token_ids = None
    if "d2t" in checkpoint:
        offsets = checkpoint.token_ids("d2t", drafted)
        token_ids = _checked_ids(checkpoint, "d2t", offsets + np.arange(drafted), target)
    elif drafted != target.vocab_size:
        raise config.invalid("draft_vocab_size", "needs the tensor d2t")
    checkpoint.skip("t2d")  # the inverse of d2t
    prefix = "midlayer." if "midlayer.hidden_norm.weight" in checkpoint else "layers.0."
    weights = ChainHeadWeights(
        fuse=read_projection(checkpoint, "fc", hidden, len(taps) * target_hidden),
        layers=(read_layer(checkpoint, prefix, layers, input_size=2 * hidden),),
        output_norm=checkpoint.floats("norm.weight", (hidden,)),
        embedding=_embedding(checkpoint, layers, target),
        head=checkpoint.floats("lm_head.weight", (drafted, hidden)),
        token_ids=token_ids,
    )
    spec = ChainHeadSpec(
        kind="eagle3",
        layers=layers,
        target_hidden_size=target_hidden,
        taps=taps,
        draft_vocab_size=drafted,
        norm_before_residual=config.flag("norm_before_residual", False),
    )
    return spec, weights


def _taps(config: Values, target: ModelSpec) -> tuple[int, ...]:
    """As vLLM counts them: the residual stream before these layers."""
    key = "eagle_aux_hidden_state_layer_ids"
    ids = config.part("eagle_config").items(key) or config.items(key)
    taps = tuple(ids) or (2, target.num_layers // 2, target.num_layers - 3)
    if not all(isinstance(tap, int) and 0 <= tap < target.num_layers for tap in taps) or len(set(taps)) < len(taps):
        raise config.invalid(key, f"must be different layers of {target.name}, 0 to {target.num_layers - 1}: {taps}")
    return taps


def _embedding(checkpoint: HeadCheckpoint, layers: ModelSpec, target: ModelSpec) -> Array | None:
    """Its own, if it has one; None: the target's."""
    if layers.vocab_size != target.vocab_size:
        raise _mismatch(checkpoint, f"a vocabulary of {layers.vocab_size}", target, target.vocab_size)
    embedding = checkpoint.optional_floats("embed_tokens.weight", (layers.vocab_size, layers.hidden_size))
    if embedding is None and layers.hidden_size != target.hidden_size:
        raise ModelInvalid(
            f"{checkpoint.folder} lacks embed_tokens.weight: the embedding of {target.name} has {target.hidden_size} "
            f"dimensions, the head {layers.hidden_size}",
            param="speculate",
        )
    return embedding


def _checked_ids(checkpoint: HeadCheckpoint, name: str, ids: Array, target: ModelSpec) -> Array:
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < target.vocab_size:
        raise ModelInvalid(
            f"{checkpoint.folder}: {name} leads to token ids outside the vocabulary of {target.vocab_size}",
            param="speculate",
        )
    return ids


def _mismatch(checkpoint: HeadCheckpoint, what: str, target: ModelSpec, size: int) -> ModelInvalid:
    return ModelInvalid(
        f"{checkpoint.folder} was made for {what}, {target.name} has {size}: take a head that was trained for it",
        param="speculate",
    )
