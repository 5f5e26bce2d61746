"""Log-probabilities of prompt tokens, for the slots that request them."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.flow import Admit, Row
from penstock.forward.hidden_states import HiddenStates
from penstock.sample.logprobs import Logprobs

# Values of prompt logits that are computed at a time: 16 MiB.
PROMPT_LOGITS = 1 << 22


class PromptLogprobs:
    def __init__(self, vocab_size: int, most_rows: int | None = None) -> None:
        """At most `most_rows` logits are computed at a time."""
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

    def measure(self, rows: Sequence[Row], starts: Sequence[int], hidden: HiddenStates) -> dict[int, list[Logprobs]]:
        """By row, whose hidden states begin at `starts[r]`."""
        parts: dict[int, list[Logprobs]] = {}
        for index, row in enumerate(rows if self._by_slot else ()):
            if row.slot not in self._by_slot:
                continue
            count, prompt_length = self._by_slot[row.slot]
            end = min(row.start + row.count, prompt_length - 1)
            if row.start < end:
                parts[index] = self._measure(row, end, count, starts[index], hidden)
            if end == prompt_length - 1:
                del self._by_slot[row.slot]
        return parts

    def _measure(self, row: Row, end: int, count: int, first: int, hidden: HiddenStates) -> list[Logprobs]:
        """Of the tokens that follow positions row.start .. end - 1, whose hidden states begin at `first`."""
        parts = []
        for start in range(row.start, end, self._size):
            place, length = first + start - row.start, min(self._size, end - start)
            parts.append(hidden.logprobs(place, place + length, row.slot, start, count))
        return parts
