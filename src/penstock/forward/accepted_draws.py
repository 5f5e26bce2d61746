"""The draws of a step with drafts: which of them count, found on the device and read back in one copy."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from penstock.flow import Row
from penstock.forward.readback import Readback
from penstock.kernels.cuda.accept import MOST_DRAWS, accept, write_tokens
from penstock.kernels.upload import upload


class AcceptedDraws:
    """Of the rows of a step as they were computed, with their drafts."""

    def __init__(self, rows: Sequence[Row], drawn: Tensor, computed: Tensor) -> None:
        """`drawn` [draws] int64 in order, `computed` [tokens] int64: the input tokens of the step."""
        draws = [row.draws for row in rows]
        assert max(draws) <= MOST_DRAWS
        firsts = list(accumulate(draws, initial=0))
        ends = accumulate(row.count for row in rows)
        at = [end - count for end, count in zip(ends, draws, strict=True)]
        count, total = len(rows), firsts[-1]
        self.on_device = torch.empty(count + total, dtype=torch.int32, device=drawn.device)
        self.places = upload([firsts, [*at, 0]], drawn.device)
        accept(drawn, computed, self.places, self.on_device)
        self._copy = Readback(self.on_device)
        self.kept = Part(self, 0, count)  # [rows] how many draws of each count
        self.tokens = Part(self, count, count + total)  # [draws]
        self._values: list[int] | None = None

    def read(self) -> list[int]:
        """Waits for the device."""
        if self._values is None:
            self._values = self._copy.tolist()
        return self._values


class Part(NamedTuple):
    draws: AcceptedDraws
    first: int
    end: int

    def tolist(self) -> list[int]:
        return self.draws.read()[self.first : self.end]


def run_uncaptured(device: torch.device) -> None:
    """Launch the kernels of drafts, for precompilation."""
    numbers = torch.zeros(4, 2, dtype=torch.int64, device=device)
    slots = torch.zeros(1, 2, dtype=torch.int32, device=device)
    write_tokens(numbers, numbers, slots)
    accept(numbers, numbers, numbers, slots)
