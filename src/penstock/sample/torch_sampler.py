"""The sampler in plain torch operations: the reference of the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from penstock.flow import Admit
from penstock.kernels.upload import upload
from penstock.sample.constraints import StepConstraints
from penstock.sample.reference import draw, noise
from penstock.sample.reference.adjustments import Adjustments
from penstock.sample.reference.draws import Draws
from penstock.sample.reference.filters import Filters
from penstock.sample.reference.reports import report
from penstock.sample.request_table import RequestTable
from penstock.sample.slot_request import DrawKind, SlotRequest


@dataclass(frozen=True, slots=True)
class DrawGroup:
    """The rows of a step that draw in the same way."""

    rows: Tensor | None  # [n] int64; None: all rows of the step
    streams: Tensor  # [n] int64
    filters: Filters

    @classmethod
    def of(cls, rows: list[int], requests: Sequence[SlotRequest], device: torch.device) -> DrawGroup:
        params = [requests[row].draw_params for row in rows]
        return cls(
            rows=upload(rows, device) if len(rows) < len(requests) else None,
            streams=upload([one["stream"] for one in params], device),
            filters=Filters.of(params, device),
        )

    def pick(self, values: Tensor) -> Tensor:
        """The group's part of a tensor with one entry per row of the step."""
        return values if self.rows is None else values.index_select(0, self.rows)


class StepGroups(NamedTuple):
    """Good as long as steps sample the same slots in the same order, and none is admitted to."""

    slots: list[int]
    adjustments: Adjustments
    draws: dict[DrawKind, DrawGroup]

    @classmethod
    def of(cls, slots: list[int], requests: Sequence[SlotRequest], device: torch.device) -> StepGroups:
        rows: dict[DrawKind, list[int]] = {}
        for row, request in enumerate(requests):
            rows.setdefault(request.kind, []).append(row)
        draws = {kind: DrawGroup.of(own, requests, device) for kind, own in rows.items()}
        return cls(slots, Adjustments.of(requests), draws)


class TorchSampler:
    def __init__(self, vocab_size: int, tokens: Tensor, num_drafts: int = 0) -> None:
        """`tokens` [slots, context]: the sequences. Drawn tokens are written there. `num_drafts`: of a step, at
        most."""
        self._requests = RequestTable(vocab_size, len(tokens), num_drafts)
        self.inspects = self._requests.inspects
        self._tokens = tokens
        self._hashes = noise.token_hashes(vocab_size, tokens.device)
        self._groups: StepGroups | None = None

    def admit(self, admit: Admit) -> None:
        self._requests.admit(admit)
        self._groups = None

    def sample(
        self,
        logits: Tensor,
        slots: Sequence[int],
        positions: Sequence[int],
        constraints: StepConstraints | None = None,
    ) -> Draws:
        """Draw the token at `positions[r]` of the sequence in `slots[r]` from `logits[r]`, [rows, vocab] float32, which
        is overwritten. A slot with drafts has a row more for each, in order."""

        def draw_tokens() -> Tensor:
            self._requests.update_masks(slots, positions, constraints)
            return self.draw(logits, list(slots), positions, self.mask_rows(slots, constraints))

        return report(self._requests, self._tokens, logits, slots, positions, constraints, draw_tokens)

    def mask_rows(self, slots: Sequence[int], constraints: StepConstraints | None) -> dict[int, int]:
        """Where the masks of constrained rows are, by row."""
        if constraints is None:
            return {}
        return dict(zip(constraints.rows, self._requests.mask_rows(slots, constraints), strict=True))

    def draw(self, logits: Tensor, slots: list[int], positions: Sequence[int], mask_rows: Mapping[int, int]) -> Tensor:
        """As `sample`, with the masks that are there, and nothing but tokens."""
        at, groups = torch.tensor(positions), self._groups_of(slots)
        groups.adjustments.apply(logits, self._tokens, at, max(positions), self._requests.allowed, mask_rows)
        tokens = torch.empty_like(at)
        for kind, group in groups.draws.items():
            part = self._draw_group(kind, group, group.pick(logits), group.pick(at))
            tokens[slice(None) if group.rows is None else group.rows] = part
        self._tokens[torch.tensor(slots), at] = tokens.to(torch.int32)
        return tokens

    def _draw_group(self, kind: DrawKind, group: DrawGroup, logits: Tensor, positions: Tensor) -> Tensor:
        if kind == "greedy":
            return draw.greedy(logits)
        keys = noise.row_keys(group.streams, positions)
        if kind == "plain":
            return draw.plain(logits, group.filters.temperature, keys, self._hashes)
        return draw.filtered(logits, group.filters, keys, self._hashes)

    def _groups_of(self, slots: list[int]) -> StepGroups:
        if self._groups is None or self._groups.slots != slots:
            requests = [self._requests.by_slot[slot] for slot in slots]
            self._groups = StepGroups.of(slots, requests, self._tokens.device)
        return self._groups
