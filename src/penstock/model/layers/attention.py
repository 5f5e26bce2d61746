"""Attention: projection to q, k and v, the cache, and the projection back; and which tensors it is made of."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from penstock.kernels.interface import Batch, HeadNorms, Matrix, Norm, Operations, Pages, Rotary
from penstock.model.weights.map import Parameter, Part, Transform, Weights
from penstock.store.spec import ModelSpec

HF = "model.layers.{layer}.self_attn."
GGUF = "blk.{layer}.attn_"


def projections(qk_from_gguf: Transform | None = None) -> tuple[Parameter, ...]:
    """q, k and v apart in the checkpoint, one matrix here."""

    def parts(what: str) -> tuple[Part, ...]:
        return (
            Part(f"{HF}q_proj.{what}", f"{GGUF}q.{what}", "q", from_gguf=qk_from_gguf),
            Part(f"{HF}k_proj.{what}", f"{GGUF}k.{what}", "kv", from_gguf=qk_from_gguf),
            Part(f"{HF}v_proj.{what}", f"{GGUF}v.{what}", "kv"),
        )

    return (
        Parameter("layers.{layer}.qkv", "matrix", parts("weight"), "hidden"),
        Parameter("layers.{layer}.qkv_bias", "bias", parts("bias"), exists=lambda spec: spec.attention_bias),
    )


OUTPUT = (
    Parameter("layers.{layer}.output", "matrix", (Part(f"{HF}o_proj.weight", f"{GGUF}output.weight", "hidden"),), "q"),
    Parameter(
        "layers.{layer}.output_bias",
        "bias",
        (Part(f"{HF}o_proj.bias", f"{GGUF}output.bias", "hidden"),),
        exists=lambda spec: spec.output_bias,
    ),
)


def qk_norms(from_hf: Transform | None = None) -> tuple[Parameter, ...]:
    """Norms over the dimensions of a head, shared by all heads of q and by all of k."""
    return tuple(
        Parameter(
            f"layers.{{layer}}.{name}",
            "norm",
            (Part(f"{HF}{name}.weight", f"{GGUF}{name}.weight", "head", from_hf=from_hf),),
        )
        for name in ("q_norm", "k_norm")
    )


@dataclass(frozen=True, slots=True)
class Attention:
    norm: Norm
    qkv: Matrix
    qkv_bias: Tensor | None
    output: Matrix
    output_bias: Tensor | None
    head_norms: HeadNorms | None
    post_norm: Norm | None
    rotary: Rotary
    cache_group: int
    window: int
    scale: float
    softcap: float

    @classmethod
    def build(cls, spec: ModelSpec, layer: int, weights: Weights, rotary: Rotary) -> Attention:
        return cls(
            norm=Norm(weights["attention_norm"], spec.norm_eps),
            qkv=weights.matrix("qkv"),
            qkv_bias=weights.get("qkv_bias"),
            output=weights.matrix("output"),
            output_bias=weights.get("output_bias"),
            head_norms=HeadNorms(weights["q_norm"], weights["k_norm"], spec.norm_eps) if "q_norm" in weights else None,
            post_norm=(
                Norm(weights["post_attention_norm"], spec.norm_eps) if "post_attention_norm" in weights else None
            ),
            rotary=rotary,
            cache_group=next(index for index, group in enumerate(spec.cache_groups) if layer in group.layers),
            window=spec.window(layer),
            scale=spec.attention_scale,
            softcap=spec.attention_softcap,
        )

    def __call__(
        self, ops: Operations, residual: Tensor, batch: Batch, pages: Pages, wanted: Tensor | None = None
    ) -> Tensor:
        """The residual with what attention makes of it added, in place; or that of the wanted tokens alone."""
        block_map = batch.maps[self.cache_group]
        qkv = ops.linear(residual, self.qkv, self.qkv_bias, norm=self.norm)
        q = ops.rotate_store(qkv, pages, block_map, batch, self.rotary, self.head_norms)
        mixed = ops.attention(q, pages, block_map, batch, scale=self.scale, window=self.window, softcap=self.softcap)
        if wanted is not None:
            mixed, residual = mixed[wanted], residual[wanted]
        if self.post_norm is None:
            return ops.linear(mixed, self.output, self.output_bias, onto=residual)
        return ops.norm(ops.linear(mixed, self.output, self.output_bias), self.post_norm, onto=residual)
