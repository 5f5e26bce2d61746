"""The sampler of the native CPU kernels. Mostly the native program draws by itself, inside the step; where the host
changes or reports logits first, torch does that and the same kernel draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from penstock.flow import Admit
from penstock.kernels.cpu.draw import draw
from penstock.kernels.cpu.program import DrawTable
from penstock.sample.constraints import StepConstraints
from penstock.sample.draws import Draws
from penstock.sample.request_table import RequestTable


class _CachedTable(NamedTuple):
    """Of some slots. Good until one of them is admitted to; positions are written every step."""

    slots: list[int]
    table: DrawTable
    reads_logits: bool  # one of the slots does: the program must not draw by itself


class NativeSampler:
    def __init__(self, vocab_size: int, tokens: Tensor) -> None:
        """`tokens` [slots, context]: the sequences. Drawn tokens are written there."""
        self._requests = RequestTable(vocab_size, tokens)
        self._tokens = tokens
        self._cached: _CachedTable | None = None

    def admit(self, admit: Admit) -> None:
        self._requests.admit(admit)
        self._cached = None

    def draw_table(self, slots: list[int], positions: list[int]) -> DrawTable | None:
        """What the native program draws by, penalties included. None: the logits have to go through `sample`."""
        cached = self._table(slots, positions)
        return None if cached.reads_logits else cached.table

    def sample(
        self,
        logits: Tensor,
        slots: list[int],
        positions: Sequence[int],
        constraints: StepConstraints | None = None,
    ) -> Draws:
        """As `TorchSampler.sample`."""
        return self._requests.report(
            logits, slots, positions, constraints, lambda: self._draw(logits, slots, positions, constraints)
        )

    def _draw(
        self, logits: Tensor, slots: list[int], positions: Sequence[int], constraints: StepConstraints | None
    ) -> Tensor:
        at = torch.tensor(positions)
        adjustments = self._requests.adjustments(slots, positions)
        adjustments.apply(logits, self._tokens, at, max(positions), constraints)
        tokens = draw(logits, self._table(slots, positions).table)
        self._tokens[torch.tensor(slots), at] = tokens.to(torch.int32)
        return tokens

    def _table(self, slots: list[int], positions: Sequence[int]) -> _CachedTable:
        if self._cached is None or self._cached.slots != slots:
            requests = [self._requests.by_slot[slot] for slot in slots]
            table = DrawTable([request.draw_params for request in requests])
            self._cached = _CachedTable(slots, table, any(request.reads_logits for request in requests))
        self._cached.table.positions[:] = positions
        return self._cached
