"""The sampler in plain torch operations: the reference of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.flow import Admit
from penstock.kernels.upload import upload
from penstock.sample import draw, noise
from penstock.sample.constraints import StepConstraints
from penstock.sample.draws import Draws
from penstock.sample.filters import Filters
from penstock.sample.request_table import RequestTable
from penstock.sample.slot_request import DrawKind, SlotRequest


@dataclass(frozen=True, slots=True)
class DrawGroup:
    """The rows of a step that draw in the same way."""

    rows: Tensor | None  # [n] int64; None: all rows of the step
    streams: Tensor  # [n] int64
    filters: Filters

    @classmethod
    def of(cls, rows: list[int], requests: Sequence[SlotRequest], vocab_size: int, device: torch.device) -> DrawGroup:
        return cls(
            rows=upload(rows, device) if len(rows) < len(requests) else None,
            streams=upload([requests[row].stream for row in rows], device),
            filters=Filters.of([requests[row].params for row in rows], vocab_size, device),
        )

    def pick(self, values: Tensor) -> Tensor:
        """The group's part of a tensor with one entry per row of the step."""
        return values if self.rows is None else values.index_select(0, self.rows)


class TorchSampler:
    def __init__(self, vocab_size: int, tokens: Tensor) -> None:
        """`tokens` [slots, context]: the sequences. Drawn tokens are written there."""
        self._requests = RequestTable(vocab_size, tokens)
        self._tokens = tokens
        self._hashes = noise.token_hashes(vocab_size, tokens.device)
        self._groups: tuple[list[int], dict[DrawKind, DrawGroup]] | None = None

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
        is overwritten."""
        return self._requests.report(
            logits, slots, positions, constraints, lambda: self._draw(logits, list(slots), positions, constraints)
        )

    def _draw(
        self, logits: Tensor, slots: list[int], positions: Sequence[int], constraints: StepConstraints | None
    ) -> Tensor:
        at = torch.tensor(positions)
        adjustments = self._requests.adjustments(slots, positions)
        adjustments.apply(logits, self._tokens, at, max(positions), constraints)
        tokens = torch.empty_like(at)
        for kind, group in self._groups_of(slots).items():
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

    def _groups_of(self, slots: list[int]) -> dict[DrawKind, DrawGroup]:
        if self._groups is None or self._groups[0] != slots:
            requests = [self._requests.by_slot[slot] for slot in slots]
            rows: dict[DrawKind, list[int]] = {}
            for row, request in enumerate(requests):
                rows.setdefault(request.kind, []).append(row)
            vocab_size, device = self._requests.vocab_size, self._tokens.device
            made = {kind: DrawGroup.of(own, requests, vocab_size, device) for kind, own in rows.items()}
            self._groups = (slots, made)
        return self._groups[1]
