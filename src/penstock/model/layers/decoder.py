"""A decoder-only transformer around the layers of an architecture: embedding, layers, final norm, output head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

from penstock.kernels.arrays import round_float
from penstock.kernels.interface import Batch, Norm, Operations, Pages, Rotary
from penstock.kernels.weight import Form
from penstock.model.layers.build import LayerBuilder
from penstock.model.layers.step import LayerStep
from penstock.model.weights.loaded import Weights
from penstock.model.weights.map import WeightMap
from penstock.store.spec import ModelSpec, Rope

if TYPE_CHECKING:
    from torch import Tensor


class Layer(Protocol):
    """What an architecture shows: the wiring of one layer."""

    def __init__(self, build: LayerBuilder) -> None: ...

    def forward(self, ops: Operations, x: Tensor, step: LayerStep) -> Tensor:
        """The residual stream x [tokens, hidden] after this layer. May write to x; writes keys and values to the pages.
        Selects tokens (`LayerStep.select`) once attention has written them."""


class Decoder:
    """Base of the architectures. Each names its layer, which shows the wiring, and the tensors it is loaded from. Owns
    the weights; the KV pages are the caller's."""

    layer: ClassVar[type[Layer]]
    weight_map: ClassVar[WeightMap]

    def __init__(self, spec: ModelSpec, weights: Weights, rotary: Callable[[Rope], Rotary], ranks: int = 1) -> None:
        """`rotary` makes the table of cos and sin, on the device. `ranks` that the model is split over: spec and
        weights are those of one of them."""
        self.spec = spec
        self.num_bytes = weights.num_bytes
        self.is_quantized = any(weight.is_quantized for weight in weights.matrices.values())
        self.keeps_codes = any(weight.form is Form.CODED for weight in weights.matrices.values())
        self.embedding, self.head = weights.matrices["embedding"], weights.matrices["head"]
        # Rounded as the checkpoint's makers did, to the type of the numbers it multiplies.
        self.embedding_scale = round_float(spec.embedding_scale, self.embedding.dtype)
        self.norm = Norm(weights.vectors["norm"], spec.norm_eps)
        everywhere = rotary(spec.rope)
        in_windows = rotary(spec.local_rope) if spec.local_rope else everywhere
        self.layers = [
            self.layer(
                LayerBuilder(
                    spec, number, weights.layer(number), in_windows if spec.window(number) else everywhere, ranks
                )
            )
            for number in range(spec.num_layers)
        ]

    def forward(
        self, ops: Operations, batch: Batch, pages: Sequence[Pages], tap: Callable[[int, Tensor], None] | None = None
    ) -> Tensor:
        """Hidden states after the final norm, [tokens, hidden], of all tokens or of `batch.logits_indices` alone.
        `pages` is by layer; keys and values are written. `tap` is given the residual stream before each layer, which
        the layer may write to."""
        x = ops.embed(batch.tokens, self.embedding, self.embedding_scale)
        last = len(self.layers) - 1
        for number, (layer, layer_pages) in enumerate(zip(self.layers, pages, strict=True)):
            if tap is not None:
                tap(number, x)
            indices = batch.logits_indices if number == last else None
            x = layer.forward(ops, x, LayerStep(batch, layer_pages, indices))
        return ops.norm(x, self.norm)
