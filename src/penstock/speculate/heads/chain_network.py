"""The layers of a chain head, wired from the operations of models: what `chain` defines in numpy. Entry p of a
sequence, at position p of its KV pages, is the feature of token p with the embedding of token p + 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.kernels.interface import Batch, Linear, Operations, Pages, Rotary
from penstock.kernels.weight import Weight
from penstock.model.layers.attention import Attention
from penstock.model.layers.rope import rotary_table
from penstock.model.layers.step import LayerStep
from penstock.speculate.heads.packing import Packer, columns
from penstock.speculate.heads.spec import ChainHeadSpec
from penstock.speculate.heads.weights import ChainHeadWeights, LayerWeights

if TYPE_CHECKING:
    from torch import Tensor


class ChainNetwork:
    def __init__(
        self, spec: ChainHeadSpec, weights: ChainHeadWeights, embedding: Weight, context: int, packer: Packer
    ) -> None:
        """`embedding` is the target's, for a head without its own."""
        self.spec = spec
        self._embedding = embedding if weights.embedding is None else packer.matrix(weights.embedding)
        rotary = Rotary(packer.vector(rotary_table(spec.layers.rope, context)), spec.layers.rope.dim)
        attention = Attention(rotary, None, 0, 0, spec.layers.attention_scale, 0.0)
        hidden = spec.hidden_size
        self._fuse: tuple[Linear, ...]
        if spec.kind == "eagle3":
            self._fuse = (packer.linear(weights.fuse),)
            (layer,) = weights.layers
            self._taps_layer = _TapsLayer(layer, attention, packer, hidden, spec.norm_before_residual)
            self._layers: list[_Layer] = []
        else:
            # The product of two inputs side by side is the sum of two products.
            sides = columns(weights.fuse, 0, hidden), columns(weights.fuse, hidden, 2 * hidden)
            norms = weights.feature_norm, weights.embedding_norm  # of MTP, which has the feature first
            self._fuse = tuple(packer.linear(side, norm=norm) for side, norm in zip(sides, norms, strict=True))
            self._layers = [_Layer(layer, attention, packer) for layer in weights.layers]
        norm = weights.output_norm if spec.kind == "mtp" else None  # that of EAGLE-3 belongs to its output head
        self._norm = None if norm is None else packer.norm(norm)

    def forward(
        self, ops: Operations, batch: Batch, pages: Sequence[Pages], inputs: Tensor, *, are_states: bool
    ) -> Tensor:
        """The features after these entries, of `batch.logits_indices` alone. `inputs` are features of the tokens
        before, or (`are_states`) states of the target there."""
        embedded, indices = ops.embed(batch.tokens, self._embedding, 1.0), batch.logits_indices
        if self.spec.kind == "eagle3":
            feature = ops.linear(inputs, self._fuse[0]) if are_states else inputs
            return self._taps_layer.forward(ops, embedded, feature, LayerStep(batch, pages[0], indices))
        first, second = (inputs, embedded) if self.spec.kind == "mtp" else (embedded, inputs)
        x = ops.linear(second, self._fuse[1], onto=ops.linear(first, self._fuse[0]))
        last = len(self._layers) - 1
        for number, (layer, layer_pages) in enumerate(zip(self._layers, pages, strict=True)):
            x = layer.forward(ops, x, LayerStep(batch, layer_pages, indices if number == last else None))
        return x if self._norm is None else ops.norm(x, self._norm)


class _Mlp:
    def __init__(self, weights: LayerWeights, packer: Packer) -> None:
        self._gate_up = packer.linear(weights.gate, weights.up, norm=weights.mlp_norm, gate="silu")
        self._down = packer.linear(weights.down)

    def add(self, ops: Operations, x: Tensor) -> Tensor:
        return ops.linear(ops.linear(x, self._gate_up), self._down, onto=x)


class _Layer:
    """Of EAGLE-1, whose first layer has no norm before attention, and of MTP."""

    def __init__(self, weights: LayerWeights, attention: Attention, packer: Packer) -> None:
        self._qkv = packer.linear(weights.q, weights.k, weights.v, norm=weights.input_norm)
        self._attention, self._output = attention, packer.linear(weights.output)
        self._mlp = _Mlp(weights, packer)

    def forward(self, ops: Operations, x: Tensor, step: LayerStep) -> Tensor:
        mixed, x = step.select(self._attention(ops, ops.linear(x, self._qkv), step), x)
        return self._mlp.add(ops, ops.linear(mixed, self._output, onto=x))


class _TapsLayer:
    """Of EAGLE-3: attention reads [norm(embedding), norm(feature)], the residual is the feature."""

    def __init__(
        self, weights: LayerWeights, attention: Attention, packer: Packer, hidden: int, norm_before_residual: bool
    ) -> None:
        assert weights.feature_norm is not None
        qkv = (weights.q, weights.k, weights.v)
        of_embedding = (columns(part, 0, hidden) for part in qkv)
        of_feature = (columns(part, hidden, 2 * hidden) for part in qkv)
        self._of_embedding = packer.linear(*of_embedding, norm=weights.input_norm)
        self._of_feature = packer.linear(*of_feature, norm=None if norm_before_residual else weights.feature_norm)
        self._feature_norm = packer.norm(weights.feature_norm) if norm_before_residual else None
        self._attention, self._output = attention, packer.linear(weights.output)
        self._mlp = _Mlp(weights, packer)

    def forward(self, ops: Operations, embedded: Tensor, feature: Tensor, step: LayerStep) -> Tensor:
        x = feature if self._feature_norm is None else ops.norm(feature, self._feature_norm)
        qkv = ops.linear(x, self._of_feature, onto=ops.linear(embedded, self._of_embedding))
        mixed, x = step.select(self._attention(ops, qkv, step), x)
        return self._mlp.add(ops, ops.linear(mixed, self._output, onto=x))
