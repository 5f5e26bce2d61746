"""The parts of a layer, made of its weights and what the spec says."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.kernels.interface import Activation, HeadNorms, Linear, Norm, Rotary
from penstock.kernels.low_rank import LowRank
from penstock.model.layers.attention import Attention
from penstock.model.weights.loaded import Weights
from penstock.store.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class LayerBuilder:
    """Parameters are named as in the weight map, without the layer."""

    spec: ModelSpec
    number: int
    weights: Weights
    rotary: Rotary
    ranks: int = 1  # that the model is split over

    def linear(
        self, name: str, *, norm: Norm | None = None, gate: Activation | None = None, reduce: bool = False
    ) -> Linear:
        """With the bias `{name}_bias` where the model has one. `reduce`: its columns are split over the ranks."""
        bias = self.weights.vectors.get(f"{name}_bias")
        reduce = reduce and self.ranks > 1
        return Linear(self.weights.matrices[name], bias, norm, gate, reduce, LowRank(self.number, name))

    def norm(self, name: str) -> Norm:
        return Norm(self.weights.vectors[name], self.spec.norm_eps)

    def head_norms(self) -> HeadNorms:
        return HeadNorms(self.weights.vectors["q_norm"], self.weights.vectors["k_norm"], self.spec.norm_eps)

    def attention(self, head_norms: HeadNorms | None = None) -> Attention:
        spec = self.spec
        return Attention(
            rotary=self.rotary,
            head_norms=head_norms,
            cache_group=next(index for index, group in enumerate(spec.cache_groups) if self.number in group.layers),
            window=spec.window(self.number),
            scale=spec.attention_scale,
            softcap=spec.attention_softcap,
        )
