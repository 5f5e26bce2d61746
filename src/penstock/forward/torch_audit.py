"""The audit of drafts on backends whose logits depend on the number of tokens in a step, by rounding: a token that was
drawn without drafts may be another one where two are equally likely."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from penstock.flow import Row
from penstock.forward.draft_audit import DraftAudit
from penstock.kernels.arrays import Array

# How much logits may differ by rounding: a share of the largest.
ROUNDING = {torch.float32: 1e-4, torch.bfloat16: 0.05, torch.float16: 0.01}


def compare_draws(
    audit: DraftAudit,
    slots: Array,
    rows: Sequence[Row],
    tokens: Sequence[int],
    kept: Sequence[int],
    logits: Tensor,
    compute: Callable[[list[Row]], tuple[Tensor, torch.dtype]],
    draw: Callable[[Tensor, list[Row], list[int]], list[int]],
) -> tuple[int, int]:
    """As `DraftAudit.compare`. `logits` [draws, vocab]: what the step drew from. `compute` gives the logits of rows
    that draw one token each, and the type they were computed in; `draw` their tokens, with the masks of these draws."""

    def redraw(plain: list[Row], at: list[int]) -> list[int]:
        own, dtype = compute(plain)
        before = logits[at]
        tolerance = ROUNDING[dtype] * before.abs().amax(1)
        alike = ((own - before).abs().amax(1) <= tolerance).tolist()
        pairs = zip(at, alike, draw(own, plain, at), strict=True)
        return [tokens[row] if same else token for row, same, token in pairs]

    return audit.compare(slots, rows, tokens, kept, redraw)
