"""The forward pass in torch operations: a model with its KV pages and the slots that steps gather their inputs from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from penstock.flow import Admit, Extend, Row
from penstock.forward.backend import Model
from penstock.forward.inputs import gather
from penstock.forward.slot_adapters import HeldAdapters, SlotAdapters
from penstock.forward.slot_tensors import SlotTensors
from penstock.forward.torch_adapters import TorchAdapter
from penstock.kernels.interface import Batch, Operations, Pages
from penstock.kernels.rank_ops import RankOperations
from penstock.kernels.reference.low_rank import Parts, adapted_tokens
from penstock.kernels.torch_ops import TorchOperations


class Computed(NamedTuple):
    """The hidden states of a step."""

    hidden: Tensor  # [tokens, hidden]: of all tokens, or of those that tokens are drawn from
    starts: Sequence[int]  # [rows + 1]: where each row begins, if they are those of all tokens
    drawn_at: list[int]  # [draws]: which of them tokens are drawn from


class Forward(Protocol):
    """The forward pass as a backend uses it: here, or on several ranks (`rank_forward`)."""

    slots: SlotTensors

    def apply(self, admits: Sequence[Admit], extends: Sequence[Extend]) -> None:
        """Write the changes of a plan to the slots."""

    def compute(self, rows: Sequence[Row], *, all_hidden: bool) -> Computed:
        """`all_hidden`: return the hidden states of all tokens, not only those to sample from."""

    def logits(self, hidden: Tensor, places: Sequence[int]) -> Tensor:
        """Of these hidden states of the last step, [n, vocab]."""

    def close(self) -> None:
        """There will be no more steps."""


class TorchForward:
    """Implements `Forward`."""

    def __init__(
        self,
        model: Model,
        pages: Sequence[Pages],
        ops: Operations,
        *,
        context: int,
        slots: int,
        adapters: HeldAdapters[TorchAdapter] | None = None,
    ) -> None:
        """`adapters`: None: no sequence has one."""
        self._model, self._pages, self._ops = model, pages, ops
        own = ops.own if isinstance(ops, RankOperations) else ops
        self._adapted = own if isinstance(own, TorchOperations) else None  # others, of tests, have none
        self._adapters = SlotAdapters(adapters)
        self._owners: list[Parts | None] = []  # of the hidden states of the last step; []: no row has an adapter
        block_size, device = pages[0].keys.shape[1], pages[0].keys.device
        self.slots = SlotTensors(slots, context, block_size, len(model.spec.cache_groups), device)

    def apply(self, admits: Sequence[Admit], extends: Sequence[Extend]) -> None:
        self.slots.apply(admits, extends)
        for admit in admits:
            self._adapters.admit(admit)

    def compute(self, rows: Sequence[Row], *, all_hidden: bool) -> Computed:
        batch = gather(rows, self.slots)
        starts: Sequence[int] = batch.host_starts
        drawn_at = [end - back for row, end in zip(rows, starts[1:], strict=True) for back in range(row.draws, 0, -1)]
        # Beyond the last attention only tokens that are drawn from matter, unless a request reads all of them.
        if drawn_at and len(drawn_at) < starts[-1] and not all_hidden:
            batch, drawn_at = replace(batch, logits_indices=torch.tensor(drawn_at)), list(range(len(drawn_at)))
        self._set_adapters(rows, batch)
        return Computed(self._model.forward(self._ops, batch, self._pages), starts, drawn_at)

    def _set_adapters(self, rows: Sequence[Row], batch: Batch) -> None:
        if self._adapted is not None:
            found, starts = self._adapters.of(rows), batch.host_starts
            parts: list[Parts | None] = [None if one is None else one.parts for one in found or ()]
            owners = [owner for row, owner in enumerate(parts) for _ in range(starts[row], starts[row + 1])]
            wanted = None if batch.logits_indices is None else batch.logits_indices.tolist()
            self._adapted.adapters = adapted_tokens(owners, wanted)
            self._owners = owners if wanted is None or not owners else [owners[token] for token in wanted]

    def logits(self, hidden: Tensor, places: Sequence[int]) -> Tensor:
        taken = hidden[places.start : places.stop] if isinstance(places, range) else hidden[list(places)]
        if self._owners and self._adapted is not None:
            self._adapted.adapters = adapted_tokens([self._owners[place] for place in places])
        return self._ops.logits(taken, self._model.head, self._model.spec.logit_softcap)

    def close(self) -> None:
        if isinstance(self._ops, RankOperations):
            self._ops.close()
