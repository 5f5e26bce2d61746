"""Log-probabilities of prompt tokens, for the slots that request them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from penstock.flow import Admit, Row
from penstock.sample import logprobs
from penstock.sample.logprobs import Logprobs

# Values of prompt logits that are computed at a time: 16 MiB.
PROMPT_LOGITS = 1 << 22


class PromptLogprobs:
    def __init__(self, vocab_size: int, tokens: Tensor, most_rows: int | None = None) -> None:
        """`tokens` [slots, context] are the sequences. At most `most_rows` logits are computed at a time."""
        self._tokens = tokens
        self._size = max(1, PROMPT_LOGITS // vocab_size)
        if most_rows is not None:
            self._size = min(self._size, most_rows)
        self._by_slot: dict[int, tuple[int, int]] = {}  # number of top tokens, prompt length

    def include_any(self, rows: Sequence[Row]) -> bool:
        """Whether any of these rows is of such a slot."""
        return bool(self._by_slot) and any(row.slot in self._by_slot for row in rows)

    def admit(self, admit: Admit) -> None:
        self._by_slot.pop(admit.slot, None)
        if admit.params.prompt_logprobs is not None:
            self._by_slot[admit.slot] = (admit.params.prompt_logprobs, admit.prompt_length)

    def measure(
        self, rows: Sequence[Row], starts: Sequence[int], logits: Callable[[int, int], Tensor]
    ) -> dict[int, list[Logprobs]]:
        """By row. Row r's hidden states begin at `starts[r]`; `logits(first, end)` are those of a
        range of them."""
        parts: dict[int, list[Logprobs]] = {}
        for index, row in enumerate(rows if self._by_slot else ()):
            if row.slot not in self._by_slot:
                continue
            count, prompt_length = self._by_slot[row.slot]
            end = min(row.start + row.count, prompt_length - 1)
            if row.start < end:
                parts[index] = self._measure(row, end, count, starts[index], logits)
            if end == prompt_length - 1:
                del self._by_slot[row.slot]
        return parts

    def _measure(
        self, row: Row, end: int, count: int, first: int, logits: Callable[[int, int], Tensor]
    ) -> list[Logprobs]:
        """Of the tokens that follow positions row.start .. end - 1, whose hidden states begin at `first`."""
        parts = []
        for start in range(row.start, end, self._size):
            stop = min(start + self._size, end)
            targets = self._tokens[row.slot, start + 1 : stop + 1].to(torch.int64)
            scores = logits(first + start - row.start, first + stop - row.start)
            parts.append(logprobs.measure(scores, targets, [count] * (stop - start)))
        return parts
