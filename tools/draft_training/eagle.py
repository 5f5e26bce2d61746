"""EAGLE heads in torch, with the parameter names of published checkpoints.

EAGLE-1:  x = fc([embedding, feature]); one decoder layer; its output is the next feature, in the space of the target's
          hidden states after the final norm, so the target's own output head reads it.
EAGLE-3:  feature = fc([three taps]); one decoder layer whose attention reads [norm(embedding), norm(feature)]; its
          output is the next feature; norm and an own output head, over the draft's vocabulary, read it.

Both draft from every position at once (`layers`): `features` gives the first features, `advance` one draft step.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draft_training.layers import Attention, DecoderLayer, LayerCache, Mlp, Norm, ScaledLinear
from draft_training.start import LinearMap
from penstock.store.spec import ModelSpec


class ChainHead(Protocol):
    """A head that drafts one token after the other, each from the feature that the last one left."""

    @property
    def feature_scale(self) -> Tensor | None:
        """[hidden]: of the channels of features that are hidden states of the target; None: they are not."""

    def features(self, states: Tensor) -> Tensor:
        """states [batch, tokens, 1 + taps, hidden] -> [batch, tokens, hidden]"""

    def advance(self, embedded: Tensor, feature: Tensor, step: int, cache: LayerCache) -> Tensor:
        """The next features, of tokens [batch, tokens, hidden] and the features before them."""

    def logits(self, feature: Tensor, places: Tensor | None = None) -> Tensor:
        """Over the draft's vocabulary, or over these places of it."""


class Eagle1(nn.Module):
    def __init__(self, spec: ModelSpec, head: Tensor) -> None:
        """`head`: rows of the target's output head, [draft vocabulary, hidden]."""
        super().__init__()
        self.fc = ScaledLinear(2 * spec.hidden_size, spec.hidden_size, bias=True)
        self.layers = nn.ModuleList([DecoderLayer(spec, input_norm=False)])
        self.register_buffer("head", head, persistent=False)

    @property
    def feature_scale(self) -> Tensor:
        return self.fc.output_scale

    def features(self, states: Tensor) -> Tensor:
        return states[:, :, 0]

    def advance(self, embedded: Tensor, feature: Tensor, step: int, cache: LayerCache) -> Tensor:
        fused = self.fc(torch.cat((embedded, feature), dim=-1))
        out: Tensor = self.layers[0](fused, step, cache)
        return out

    def logits(self, feature: Tensor, places: Tensor | None = None) -> Tensor:
        return feature @ (self.head if places is None else self.head[places]).T

    @torch.no_grad()
    def start_from(self, linear: LinearMap) -> None:
        """Begin as the linear map that predicts the next feature best; the layer adds to it as it learns."""
        self.fc.rescale(linear.input_scale, linear.output_scale)
        self.fc.weight.copy_(linear.weight)
        self.fc.bias.copy_(linear.bias)
        layer, scale = self.layers[0], linear.output_scale
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
            projection.rescale(input_scale=scale)
        for projection in (layer.self_attn.o_proj, layer.mlp.down_proj):
            projection.rescale(output_scale=scale)
            projection.weight.mul_(0.1)
        layer.post_attention_layernorm.weight.copy_(scale.square().mean().sqrt() / scale)


class Eagle3Layer(nn.Module):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.input_layernorm = Norm(spec)
        self.hidden_norm = Norm(spec)
        self.self_attn = Attention(spec, 2 * spec.hidden_size)
        self.post_attention_layernorm = Norm(spec)
        self.mlp = Mlp(spec)

    def forward(self, embedded: Tensor, feature: Tensor, step: int, cache: LayerCache) -> Tensor:
        both = torch.cat((self.input_layernorm(embedded), self.hidden_norm(feature)), dim=-1)
        x = feature + self.self_attn(both, step, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class Eagle3(nn.Module):
    feature_scale = None

    def __init__(self, spec: ModelSpec, head: Tensor, norm: Tensor, taps: int = 3) -> None:
        """Starts with rows of the target's output head and with its final norm."""
        super().__init__()
        self.fc = ScaledLinear(taps * spec.hidden_size, spec.hidden_size)
        self.midlayer = Eagle3Layer(spec)
        self.norm = Norm(spec)
        self.lm_head = nn.Linear(spec.hidden_size, len(head), bias=False)
        with torch.no_grad():
            self.norm.weight.copy_(norm)
            self.lm_head.weight.copy_(head)

    def features(self, states: Tensor) -> Tensor:
        out: Tensor = self.fc(states[:, :, 1:].flatten(2))
        return out

    def advance(self, embedded: Tensor, feature: Tensor, step: int, cache: LayerCache) -> Tensor:
        out: Tensor = self.midlayer(embedded, feature, step, cache)
        return out

    def logits(self, feature: Tensor, places: Tensor | None = None) -> Tensor:
        head = self.lm_head.weight
        return F.linear(self.norm(feature), head if places is None else head[places])

    @torch.no_grad()
    def start_from(self, linear: LinearMap) -> None:
        """Begin as the linear map of the taps that predicts the next hidden state best."""
        self.fc.rescale(linear.input_scale)
        self.fc.weight.copy_(linear.weight * linear.output_scale[:, None])
        self.midlayer.self_attn.o_proj.weight.mul_(0.1)
        self.midlayer.mlp.down_proj.weight.mul_(0.1)
