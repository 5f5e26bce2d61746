"""What every decoder has around its layers: embedding, norms between the layers, output head, rotation tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from penstock.kernels import linear
from penstock.kernels.interface import Batch, Operations, Pages, Rotary
from penstock.model.layers.rope import rotary
from penstock.model.weights.map import Parameter, Part, Transform, WeightMap, Weights
from penstock.store.spec import ModelSpec

EMBEDDING = Parameter(
    "embedding", "table", (Part("model.embed_tokens.weight", "token_embd.weight", "vocab"),), "hidden"
)
HEAD = Parameter(
    "head", "matrix", (Part("lm_head.weight", "output.weight", "vocab"),), "hidden", exists=lambda spec: not spec.tied
)


def norm(name: str, hf: str, gguf: str, from_hf: Transform | None = None) -> Parameter:
    return Parameter(name, "norm", (Part(f"{hf}.weight", f"{gguf}.weight", "hidden", from_hf=from_hf),))


class Decoder(ABC):
    """Base of the architectures. Owns the weights; the pages are the caller's.

    A layer's last residual sum and the norm that follows it are one operation, so a layer ends with the first norm of
    the next one: `next_norms`, the last of them being the final norm.
    """

    weight_map: ClassVar[WeightMap]

    def __init__(self, spec: ModelSpec, weights: Weights, *, device: torch.device, context: int) -> None:
        self.spec = spec
        self.embedding = weights.matrix("embedding")
        self.embedding_scale = float(spec.embedding_scale)
        self.head = self.embedding if spec.tied else weights.matrix("head")
        self.num_bytes = weights.num_bytes
        if isinstance(self.embedding, Tensor):
            self.embedding_scale = torch.tensor(spec.embedding_scale, dtype=self.embedding.dtype).item()
            if spec.tied and linear.packs(self.embedding.dtype, device):
                self.head = linear.pack(self.embedding)
                self.num_bytes += self.embedding.nbytes
        norms = [weights[f"layers.{layer}.attention_norm"] for layer in range(spec.num_layers)]
        self.first_norm, *self.next_norms = [*norms, weights["norm"]]
        self._rotary = rotary(spec.rope, context, device)
        self._local_rotary = rotary(spec.local_rope, context, device) if spec.local_rope else self._rotary

    def rotary(self, layer: int) -> Rotary:
        return self._local_rotary if self.spec.window(layer) else self._rotary

    @abstractmethod
    def forward(self, ops: Operations, batch: Batch, pages: Sequence[Pages]) -> Tensor:
        """Hidden states after the final norm, [tokens, hidden], or of the wanted ones alone: beyond the last attention
        nobody reads the others. `pages` is by layer; keys and values are written."""
