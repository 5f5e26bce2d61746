"""Medusa heads on a GPU: head i drafts the token i + 1 places after the one that the target drew, from one state."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.forward.cuda_proposer import DeviceHost, FollowedStep
from penstock.forward.dense_packing import DensePacker
from penstock.forward.graph_capture import GraphCapture
from penstock.kernels.cuda_ops import CudaOperations
from penstock.model import Decoder
from penstock.model.weights.dense_form import Allocate
from penstock.speculate.heads.packing import output_head
from penstock.speculate.heads.spec import MedusaSpec
from penstock.speculate.heads.weights import MedusaWeights
from penstock.speculate.proposer import Taps


class MedusaNetwork:
    """Implements `HeadNetwork`."""

    taps: Taps = ()
    reads_all = False
    period = 1

    def __init__(
        self, spec: MedusaSpec, weights: MedusaWeights, target: Decoder, allocate: Allocate | None = None
    ) -> None:
        """`allocate`: memory for weights."""
        embedding = target.embedding.dense
        device, self.dtype = embedding.device, embedding.dtype
        self._device = device
        packer = DensePacker(0.0, embedding.dtype, device, allocate)
        self.width, self._ops = spec.hidden_size, CudaOperations()
        self.num_steps = self.most = spec.num_heads
        self._blocks = [[packer.linear(block) for block in blocks] for blocks in weights.blocks]
        ids = weights.token_ids
        self._heads = [output_head(own, target.head, ids, packer) for own in weights.heads]
        self._token_ids = None if ids is None else torch.from_numpy(np.ascontiguousarray(ids)).to(device)

    def enter(self, step: FollowedStep) -> tuple[Tensor, list[int]]:
        ends = step.starts[1:]
        return step.states, [end - max(1, row.draws) for row, end in zip(step.rows, ends, strict=True)]

    def logits(self, rows: Tensor, feature: Tensor, number: int, out: Tensor) -> None:
        x = feature
        for block in self._blocks[number]:
            x = x + F.silu(self._ops.linear(x, block))
        if self._token_ids is None:
            self._ops.logits(x, self._heads[number], 0.0, out)
        else:
            out.fill_(-torch.inf)
            out.index_copy_(1, self._token_ids, self._ops.logits(x, self._heads[number], 0.0))

    def reserve(self, slots: int, block_size: int) -> None:
        self.saved = torch.zeros(slots, self.width, dtype=self.dtype, device=self._device)

    def bind(self, host: DeviceHost) -> None:
        pass

    def capture(self, capture: GraphCapture) -> None:
        pass
