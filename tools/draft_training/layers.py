"""The decoder layer of heads and small models, with attention that can look ahead several drafts at once.

Training and evaluation draft from every position of a sequence in parallel. Draft step s of start n has position n + s;
it attends to the true entries 0 .. n, and to the draft steps 1 .. s of the same start. So every step has the causal
mask of the sequence, and one key per earlier draft step beside it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from penstock.model.layers.rope import rotary_table
from penstock.store.spec import ModelSpec


@dataclass
class LayerCache:
    """Keys and values of one layer during a rollout: of the true entries, then of each draft step."""

    keys: list[Tensor] = field(default_factory=list)  # each [batch, kv_heads, tokens, head_dim]
    values: list[Tensor] = field(default_factory=list)


class Norm(nn.RMSNorm):
    """RMS norm in float32, also where products are in bfloat16."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec.hidden_size, spec.norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.float())


class ScaledLinear(nn.Linear):
    """A product whose inputs and outputs are divided by the scales of their channels, so that one learning rate suits
    all of its weights: hidden states have channels that are 20 times as large as others. `folded` has the product as it
    is saved."""

    def __init__(self, input_size: int, output_size: int, bias: bool = False) -> None:
        super().__init__(input_size, output_size, bias=bias)
        self.register_buffer("input_scale", torch.ones(input_size))
        self.register_buffer("output_scale", torch.ones(output_size))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x / self.input_scale) * self.output_scale

    @torch.no_grad()
    def rescale(self, input_scale: Tensor | None = None, output_scale: Tensor | None = None) -> None:
        """New scales. Weights keep their values, so what it computes changes."""
        if input_scale is not None:
            self.input_scale.copy_(input_scale)
        if output_scale is not None:
            self.output_scale.copy_(output_scale)

    def folded(self) -> dict[str, Tensor]:
        tensors = {"weight": self.weight * self.output_scale[:, None] / self.input_scale}
        return tensors if self.bias is None else tensors | {"bias": self.bias * self.output_scale}


def folded_parameters(network: nn.Module) -> dict[str, Tensor]:
    """Parameters without scales, by name."""
    tensors = dict(network.named_parameters())
    for name, module in network.named_modules():
        if isinstance(module, ScaledLinear):
            tensors |= {f"{name}.{part}": tensor for part, tensor in module.folded().items()}
    return tensors


class Attention(nn.Module):
    def __init__(self, spec: ModelSpec, input_size: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = spec.num_heads, spec.num_kv_heads, spec.head_dim
        self.scale = spec.attention_scale
        self.q_proj = ScaledLinear(input_size, spec.num_heads * spec.head_dim)
        self.k_proj = ScaledLinear(input_size, spec.num_kv_heads * spec.head_dim)
        self.v_proj = ScaledLinear(input_size, spec.num_kv_heads * spec.head_dim)
        self.o_proj = ScaledLinear(spec.num_heads * spec.head_dim, spec.hidden_size)
        table = torch.from_numpy(rotary_table(spec.rope, spec.context))
        self.register_buffer("rotary", table, persistent=False)  # [context, 2, dim / 2]

    def forward(self, x: Tensor, step: int, cache: LayerCache) -> Tensor:
        """x [batch, tokens, input] of draft step `step`; 0: the true entries."""
        batch, tokens, _ = x.shape
        q = self._rotate(self._split(self.q_proj(x), self.heads), step)
        cache.keys.append(self._rotate(self._split(self.k_proj(x), self.kv_heads), step))
        cache.values.append(self._split(self.v_proj(x), self.kv_heads))
        shared = self.heads // self.kv_heads
        keys = [key.repeat_interleave(shared, dim=1) for key in cache.keys]
        values = [value.repeat_interleave(shared, dim=1) for value in cache.values]
        if step == 0:
            mixed = F.scaled_dot_product_attention(q, keys[0], values[0], is_causal=True, scale=self.scale)
        else:
            mixed = self._attend(q, keys, values)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, tokens, -1))

    def _attend(self, q: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        tokens = q.shape[2]
        hidden = torch.ones(tokens, tokens, dtype=torch.bool, device=q.device).triu(1)
        scores = (q @ keys[0].transpose(-1, -2)).masked_fill(hidden, -torch.inf)
        own = [(q * key).sum(-1, keepdim=True) for key in keys[1:]]
        shares = (torch.cat([scores, *own], dim=-1).float() * self.scale).softmax(-1).to(q.dtype)
        mixed = shares[..., :tokens] @ values[0]
        for place, value in enumerate(values[1:]):
            mixed = mixed + shares[..., tokens + place, None] * value
        return mixed

    def _split(self, x: Tensor, heads: int) -> Tensor:
        return x.view(*x.shape[:2], heads, self.head_dim).transpose(1, 2)

    def _rotate(self, x: Tensor, step: int) -> Tensor:
        cos, sin = self.rotary[step : step + x.shape[2]].unbind(dim=1)
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Mlp(nn.Module):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(spec.hidden_size, spec.intermediate_size, bias=False)
        self.up_proj = nn.Linear(spec.hidden_size, spec.intermediate_size, bias=False)
        self.down_proj = ScaledLinear(spec.intermediate_size, spec.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    """x + attention(norm(x)), then x + MLP(norm(x)). EAGLE-1's first layer has no norm before its attention."""

    def __init__(self, spec: ModelSpec, *, input_norm: bool = True) -> None:
        super().__init__()
        if input_norm:
            self.input_layernorm: nn.Module = Norm(spec)
        self.self_attn = Attention(spec, spec.hidden_size)
        self.post_attention_layernorm = Norm(spec)
        self.mlp = Mlp(spec)
        self._input_norm = input_norm

    def forward(self, x: Tensor, step: int, cache: LayerCache) -> Tensor:
        normed = self.input_layernorm(x) if self._input_norm else x
        x = x + self.self_attn(normed, step, cache)
        return x + self.mlp(self.post_attention_layernorm(x))
