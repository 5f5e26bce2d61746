"""MTP layers: next-token prediction layers that a checkpoint brings beside its own layers. Read in the layout of MiMo,
`model.mtp_layers.N`, whose layers are those of Qwen2."""

from __future__ import annotations

import msgspec

from penstock.errors import ModelInvalid
from penstock.speculate.heads.checkpoint import HeadCheckpoint
from penstock.speculate.heads.layer import read_layer, read_projection
from penstock.speculate.heads.spec import ChainHeadSpec
from penstock.speculate.heads.weights import ChainHeadWeights
from penstock.store.files import ModelFiles
from penstock.store.hf_folder import read_json
from penstock.store.spec import ModelSpec
from penstock.store.values import Values

# Names of MTP tensors in checkpoints whose layers have no counterpart here -> what they are
FOREIGN = {
    "eh_proj.weight": "layers with latent attention or experts (DeepSeek, GLM)",
    "mtp.fc.weight": "layers with gated attention (Qwen3-Next, Qwen3.5)",
}


def read_mtp(files: ModelFiles, layer: int = 0) -> tuple[ChainHeadSpec, ChainHeadWeights]:
    """One MTP layer of the model's own checkpoint."""
    target = files.spec
    if files.format != "safetensors" or not files.weights:
        raise ModelInvalid(
            f"{target.name} has no MTP layers that can be read: they are read from safetensors only", param="speculate"
        )
    folder = files.weights[0].parent
    config = Values(read_json(folder / "config.json") or {}, str(folder / "config.json"))
    count = config.integer("num_nextn_predict_layers", 0, least=0)
    checkpoint = HeadCheckpoint(folder, config, files.weights)
    _check(checkpoint, target, count, layer)
    prefix, hidden = f"mtp_layers.{layer}.", target.hidden_size
    weights = ChainHeadWeights(
        fuse=read_projection(checkpoint, f"{prefix}input_proj", hidden, 2 * hidden),
        layers=(read_layer(checkpoint, prefix, target),),
        embedding_norm=checkpoint.floats(f"{prefix}token_layernorm.weight", (hidden,)),
        feature_norm=checkpoint.floats(f"{prefix}hidden_layernorm.weight", (hidden,)),
        output_norm=checkpoint.floats(f"{prefix}final_layernorm.weight", (hidden,)),
    )
    checkpoint.skip(*(name for name in checkpoint.names if not name.startswith(prefix)))
    checkpoint.finish("an MTP layer")
    one_layer = msgspec.structs.replace(target, num_layers=1, windows=())
    spec = ChainHeadSpec(kind="mtp", layers=one_layer, target_hidden_size=hidden, draft_vocab_size=target.vocab_size)
    return spec, weights


def _check(checkpoint: HeadCheckpoint, target: ModelSpec, count: int, layer: int) -> None:
    for ending, what in FOREIGN.items():
        if any(name.endswith(ending) for name in checkpoint.names):
            raise ModelInvalid(f"the MTP layers of {target.name} are not supported: {what}", param="speculate")
    if not any(name.startswith("mtp_layers.") for name in checkpoint.names):
        raise ModelInvalid(f"{target.name} has no MTP layers", param="speculate")
    if layer >= count:
        raise ModelInvalid(f"{target.name} has {count} MTP layers, there is no layer {layer}", param="speculate")
