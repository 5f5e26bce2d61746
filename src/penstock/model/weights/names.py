"""Parameters that most decoders have, by the names of their tensors in Hugging Face and in GGUF checkpoints."""

from __future__ import annotations

from penstock.model.weights.map import Parameter, Part, Transform

LAYER = "layers.{layer}."  # ours
HF_LAYER, GGUF_LAYER = "model.layers.{layer}.", "blk.{layer}."
HF_ATTENTION, GGUF_ATTENTION = f"{HF_LAYER}self_attn.", f"{GGUF_LAYER}attn_"
HF_MLP, GGUF_MLP = f"{HF_LAYER}mlp.", f"{GGUF_LAYER}ffn_"

EMBEDDING = Parameter(
    "embedding", "table", (Part("model.embed_tokens.weight", "token_embd.weight", "vocab"),), "hidden"
)
HEAD = Parameter(
    "head", "head", (Part("lm_head.weight", "output.weight", "vocab"),), "hidden", exists=lambda spec: not spec.tied
)


def final_norm(from_hf: Transform | None = None) -> Parameter:
    return Parameter("norm", "norm", (Part("model.norm.weight", "output_norm.weight", "hidden", from_hf=from_hf),))


def layer_norm(name: str, hf: str, gguf: str, from_hf: Transform | None = None) -> Parameter:
    part = Part(f"{HF_LAYER}{hf}.weight", f"{GGUF_LAYER}{gguf}.weight", "hidden", from_hf=from_hf)
    return Parameter(f"{LAYER}{name}", "norm", (part,))


def qkv_projection(qk_from_gguf: Transform | None = None) -> tuple[Parameter, ...]:
    """q, k and v apart in the checkpoint, one matrix here."""

    def parts(what: str) -> tuple[Part, ...]:
        return (
            Part(f"{HF_ATTENTION}q_proj.{what}", f"{GGUF_ATTENTION}q.{what}", "q", from_gguf=qk_from_gguf),
            Part(f"{HF_ATTENTION}k_proj.{what}", f"{GGUF_ATTENTION}k.{what}", "kv", from_gguf=qk_from_gguf),
            Part(f"{HF_ATTENTION}v_proj.{what}", f"{GGUF_ATTENTION}v.{what}", "kv"),
        )

    return (
        Parameter(f"{LAYER}qkv", "matrix", parts("weight"), "hidden"),
        Parameter(f"{LAYER}qkv_bias", "bias", parts("bias"), exists=lambda spec: spec.attention_bias),
    )


def qk_norms(from_hf: Transform | None = None) -> tuple[Parameter, ...]:
    """Norms over the dimensions of a head, shared by all heads of q and by all of k."""
    return tuple(
        Parameter(
            f"{LAYER}{name}",
            "norm",
            (Part(f"{HF_ATTENTION}{name}.weight", f"{GGUF_ATTENTION}{name}.weight", "head", from_hf=from_hf),),
        )
        for name in ("q_norm", "k_norm")
    )


def _gate_up(what: str) -> tuple[Part, ...]:
    return (
        Part(f"{HF_MLP}gate_proj.{what}", f"{GGUF_MLP}gate.{what}", "ffn"),
        Part(f"{HF_MLP}up_proj.{what}", f"{GGUF_MLP}up.{what}", "ffn"),
    )


OUTPUT_PROJECTION = (
    Parameter(
        f"{LAYER}output",
        "matrix",
        (Part(f"{HF_ATTENTION}o_proj.weight", f"{GGUF_ATTENTION}output.weight", "hidden"),),
        "q",
    ),
    Parameter(
        f"{LAYER}output_bias",
        "bias",
        (Part(f"{HF_ATTENTION}o_proj.bias", f"{GGUF_ATTENTION}output.bias", "hidden"),),
        exists=lambda spec: spec.output_bias,
    ),
)
GATE_UP_PROJECTION = (
    Parameter(f"{LAYER}gate_up", "matrix", _gate_up("weight"), "hidden"),
    Parameter(f"{LAYER}gate_up_bias", "bias", _gate_up("bias"), exists=lambda spec: spec.mlp_bias),
)
DOWN_PROJECTION = (
    Parameter(
        f"{LAYER}down", "matrix", (Part(f"{HF_MLP}down_proj.weight", f"{GGUF_MLP}down.weight", "hidden"),), "ffn"
    ),
    Parameter(
        f"{LAYER}down_bias",
        "bias",
        (Part(f"{HF_MLP}down_proj.bias", f"{GGUF_MLP}down.bias", "hidden"),),
        exists=lambda spec: spec.mlp_bias,
    ),
)
