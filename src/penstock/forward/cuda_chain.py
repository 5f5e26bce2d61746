"""Chain heads (EAGLE-1, EAGLE-3, MTP) on a GPU; `speculate.chain_proposer` says what they compute. Entries of a step
are computed right behind it, wrong drafts included: no entry reads those after it, and the next step overwrites them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from penstock.flow import Row
from penstock.forward.cuda_inputs import gather
from penstock.forward.cuda_proposer import MOST_DRAFTS, DeviceHost, FollowedStep
from penstock.forward.dense_packing import DensePacker
from penstock.forward.graph_capture import GraphCapture
from penstock.kernels.cuda.draft_rows import next_tokens
from penstock.kernels.cuda_ops import CudaOperations
from penstock.kernels.upload import upload
from penstock.model import Decoder
from penstock.model.weights.dense_form import Allocate
from penstock.speculate.heads.chain_network import ChainNetwork
from penstock.speculate.heads.packing import output_head
from penstock.speculate.heads.spec import ChainHeadSpec
from penstock.speculate.heads.weights import ChainHeadWeights


class ChainHead:
    """Implements `HeadNetwork`."""

    num_steps = 2  # the first draft follows from the target's state
    most = MOST_DRAFTS

    def __init__(
        self,
        spec: ChainHeadSpec,
        weights: ChainHeadWeights,
        target: Decoder,
        context: int,
        allocate: Allocate | None = None,
    ) -> None:
        """`allocate`: memory for weights."""
        embedding = target.embedding.dense
        device, self.dtype = embedding.device, embedding.dtype
        self._device = device
        self.taps, self.width, self.reads_all = spec.taps, spec.hidden_size, True
        self._spec, self._ops = spec, CudaOperations()
        packer = DensePacker(spec.layers.norm_eps, embedding.dtype, device, allocate)
        self._network = ChainNetwork(spec, weights, target.embedding, context, packer)
        norm = None if weights.output_norm is None or spec.kind == "mtp" else packer.norm(weights.output_norm)
        self._norm, self._head = norm, output_head(weights.head, target.head, weights.token_ids, packer)
        ids = weights.token_ids
        self._token_ids = None if ids is None else torch.from_numpy(np.ascontiguousarray(ids)).to(device)
        self._entries: dict[int, tuple[torch.cuda.CUDAGraph, Tensor]] = {}  # by size: with its features

    def reserve(self, slots: int, block_size: int) -> None:
        width = max(1, len(self.taps)) * self._spec.target_hidden_size
        self.period = block_size
        self.saved = torch.zeros(slots * block_size, width, dtype=self.dtype, device=self._device)

    def bind(self, host: DeviceHost) -> None:
        self._host, self._decode = host, host.decode
        self._pages = host.allocate_pages(self._spec.layers)
        self._tokens = torch.zeros(host.decode.most_rows, dtype=torch.int64, device=host.slots.tokens.device)

    def enter(self, step: FollowedStep) -> tuple[Tensor, list[int]]:
        draws = [max(1, row.draws) for row in step.rows]
        if step.graph_size is not None:
            graph, features = self._entries[step.graph_size]
            graph.replay()
            ends = accumulate(row.count for row in step.rows)
            return features, [end - count for end, count in zip(ends, draws, strict=True)]
        return self._enter_uncaptured(step, draws), list(accumulate(draws, initial=0))[:-1]

    def _enter_uncaptured(self, step: FollowedStep, draws: Sequence[int]) -> Tensor:
        """Features of the last tokens of each row."""
        slots, rows = self._host.slots, step.rows
        batch = gather(rows, slots)
        tokens = torch.empty_like(batch.tokens)
        next_tokens(upload(_places(rows), tokens.device), slots.tokens, tokens)
        ends = zip(accumulate(row.count for row in rows), draws, strict=True)
        wanted = [end - back for end, count in ends for back in range(count, 0, -1)]
        batch = replace(batch, tokens=tokens, logits_indices=upload(wanted, tokens.device))
        return self._network.forward(self._ops, batch, self._pages, step.states, are_states=True)

    def logits(self, rows: Tensor, feature: Tensor, number: int, out: Tensor) -> None:
        if number:
            size = rows.shape[1]
            batch, tokens = self._decode.batch(rows), self._tokens[:size]
            next_tokens(rows, self._host.slots.tokens, tokens)
            batch = replace(batch, tokens=tokens)
            feature.copy_(self._network.forward(self._ops, batch, self._pages, feature, are_states=False))
        x = feature if self._norm is None else self._ops.norm(feature, self._norm)
        if self._token_ids is None:
            self._ops.logits(x, self._head, 0.0, out)
        else:
            out.fill_(-torch.inf)
            out.index_copy_(1, self._token_ids, self._ops.logits(x, self._head, 0.0))

    def capture(self, capture: GraphCapture) -> None:
        for size, rows, states in self._decode.captured():
            self._enter_rows(rows, states)
            graph, features = capture.capture(lambda r=rows, s=states: self._enter_rows(r, s))  # type: ignore[misc]
            self._entries[size] = graph, features

    @torch.inference_mode()
    def _enter_rows(self, rows: Tensor, states: Tensor) -> Tensor:
        tokens = self._tokens[: rows.shape[1]]
        batch = self._decode.batch(rows)
        next_tokens(rows, self._host.slots.tokens, tokens)
        return self._network.forward(self._ops, replace(batch, tokens=tokens), self._pages, states, are_states=True)


def _places(rows: Sequence[Row]) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """[2, tokens]: slot and position of each."""
    slots, starts, counts = np.array([(row.slot, row.start, row.count) for row in rows], dtype=np.int64).T
    begins = counts.cumsum() - counts
    return np.stack((slots.repeat(counts), np.arange(counts.sum()) + (starts - begins).repeat(counts)))
