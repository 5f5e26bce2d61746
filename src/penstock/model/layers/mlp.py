"""The gated MLP, and which tensors it is made of."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from penstock.kernels.interface import Activation, Matrix, Norm, Operations
from penstock.model.weights.map import Parameter, Part, Weights
from penstock.store.spec import ModelSpec

HF = "model.layers.{layer}.mlp."
GGUF = "blk.{layer}.ffn_"


def _gate_up_parts(what: str) -> tuple[Part, ...]:
    return (
        Part(f"{HF}gate_proj.{what}", f"{GGUF}gate.{what}", "ffn"),
        Part(f"{HF}up_proj.{what}", f"{GGUF}up.{what}", "ffn"),
    )


GATE_UP = (
    Parameter("layers.{layer}.gate_up", "matrix", _gate_up_parts("weight"), "hidden"),
    Parameter("layers.{layer}.gate_up_bias", "bias", _gate_up_parts("bias"), exists=lambda spec: spec.mlp_bias),
)
DOWN = (
    Parameter("layers.{layer}.down", "matrix", (Part(f"{HF}down_proj.weight", f"{GGUF}down.weight", "hidden"),), "ffn"),
    Parameter(
        "layers.{layer}.down_bias",
        "bias",
        (Part(f"{HF}down_proj.bias", f"{GGUF}down.bias", "hidden"),),
        exists=lambda spec: spec.mlp_bias,
    ),
)


@dataclass(frozen=True, slots=True)
class Mlp:
    norm: Norm
    gate_up: Matrix
    gate_up_bias: Tensor | None
    down: Matrix
    down_bias: Tensor | None
    activation: Activation
    post_norm: Norm | None

    @classmethod
    def build(cls, spec: ModelSpec, weights: Weights) -> Mlp:
        return cls(
            Norm(weights["mlp_norm"], spec.norm_eps),
            weights.matrix("gate_up"),
            weights.get("gate_up_bias"),
            weights.matrix("down"),
            weights.get("down_bias"),
            spec.activation,
            Norm(weights["post_mlp_norm"], spec.norm_eps) if "post_mlp_norm" in weights else None,
        )

    def __call__(self, ops: Operations, residual: Tensor) -> Tensor:
        """The residual with what the MLP makes of it added, in place."""
        gated = ops.gated(residual, self.gate_up, self.gate_up_bias, self.activation, norm=self.norm)
        if self.post_norm is None:
            return ops.linear(gated, self.down, self.down_bias, onto=residual)
        return ops.norm(ops.linear(gated, self.down, self.down_bias), self.post_norm, onto=residual)
