"""The sampler of CUDA devices: what a request asks for goes to the device once, and kernels read it there by slot.

So a step is told nothing but its slots and positions, and its draws can be a CUDA graph, whatever they are:
`kernels.cuda.sample` has the ways there are. Left to torch are log-probabilities and typical_p, for the rows that ask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from penstock.flow import Admit
from penstock.flow.params import MAX_BIASES
from penstock.kernels.cuda import sample
from penstock.kernels.cuda.sampling_params import RULE, WORDS, Room, Rules
from penstock.kernels.upload import put, upload
from penstock.sample import draw, noise, penalties
from penstock.sample.constraints import Masked
from penstock.sample.filters import Filters, Numbers
from penstock.sample.masks import Bits
from penstock.sample.recipe import Slot
from penstock.sample.sampler import Replay, Sampler


class CudaSampler(Sampler):
    def __init__(self, vocab_size: int, tokens: Tensor) -> None:
        super().__init__(vocab_size, tokens)
        self.rules = Rules.blank(tokens, self._hashes, MAX_BIASES)
        self.room = Room.of(len(tokens), vocab_size, self._device)
        # Slots whose rules are not on the device yet: as long as all draws are greedy, nobody reads them.
        self._new: dict[int, Slot] = {}
        self._adjusted: set[int] = set()  # slots whose logits are changed before the draw
        self._typical: set[int] = set()
        # By slot that bans tokens: whether what is on the device is for early tokens; None: nothing is.
        self._drawable: dict[int, bool | None] = {}

    def admit(self, admit: Admit) -> None:
        super().admit(admit)
        slot = self._new[admit.slot] = self._slots[admit.slot]
        adjusted = slot.masks is not None or slot.params.constraint is not None or penalties.wanted(slot.params)
        (self._adjusted.add if adjusted else self._adjusted.discard)(admit.slot)
        (self._typical.add if slot.kind == "typical" else self._typical.discard)(admit.slot)
        self._drawable.pop(admit.slot, None)
        if slot.bans:
            self._drawable[admit.slot] = None

    def _draw(
        self,
        logits: Tensor,
        slots: Sequence[int],
        positions: Sequence[int],
        masked: Masked | None,
        replay: Replay | None,
    ) -> Tensor:
        if replay is None and self.wants_largest(slots):
            return self._launch(sample.greedy, logits, slots, positions)
        self._write_rules()
        full = not self._adjusted.isdisjoint(slots)
        if full:
            self._write_drawable(slots, positions, masked)
        if replay is not None:
            tokens = replay(full)
        else:
            tokens = self._launch(sample.full if full else sample.filtered, logits, slots, positions)
        if not self._typical.isdisjoint(slots):
            self._draw_typical(logits, slots, positions, tokens)
        return tokens

    def _launch(
        self, way: Callable[..., None], logits: Tensor, slots: Sequence[int], positions: Sequence[int]
    ) -> Tensor:
        """One of those of `kernels.cuda.sample`."""
        rows = upload([slots, positions, positions], self._device)
        tokens = torch.empty(len(slots), dtype=torch.int64, device=self._device)
        way(logits, rows, self.rules, self.room, tokens)
        return tokens

    def _write_rules(self) -> None:
        """Of the slots that were admitted to since the last time."""
        if not self._new:
            return
        rules = np.array([_rule(slot, self._vocab_size) for slot in self._new.values()], dtype=RULE)
        words = rules.view(np.int32).reshape(-1, WORDS.value)
        self.rules.table[upload(list(self._new), self._device)] = upload(words, self._device)
        for number, slot in self._new.items():
            if slot.masks is not None and slot.masks.bias_tokens is not None and slot.masks.bias is not None:
                count = len(slot.masks.bias)
                put(self.rules.bias_tokens[number, :count], slot.masks.bias_tokens.astype(np.int32))
                put(self.rules.biases[number, :count], slot.masks.bias)
        self._new.clear()

    def _write_drawable(self, slots: Sequence[int], positions: Sequence[int], masked: Masked | None) -> None:
        """Which tokens may be drawn, where that is not as it was."""
        changed: dict[int, Bits] = {}
        for slot, position in zip(slots, positions, strict=True) if self._drawable else ():
            if slot in self._drawable:
                request = self._slots[slot]
                early = request.early(position)
                if self._drawable[slot] != early and request.masks is not None:
                    changed[slot] = request.masks.drawable(self._vocab_size, early)
                    self._drawable[slot] = early
        if masked is not None:
            changed |= {slots[row]: bits for row, bits in zip(masked.rows, masked.allowed, strict=True)}
        if changed:
            bits = np.stack(list(changed.values())).view(np.int32)
            self.rules.drawable[upload(list(changed), self._device)] = upload(bits, self._device)

    def _draw_typical(self, logits: Tensor, slots: Sequence[int], positions: Sequence[int], tokens: Tensor) -> None:
        """Again, from logits that are adjusted and masked by now."""
        rows = [row for row, slot in enumerate(slots) if slot in self._typical]
        requests = [self._slots[slots[row]] for row in rows]
        index, own, at, streams = upload(
            [rows, [slots[row] for row in rows], [positions[row] for row in rows], [one.stream for one in requests]],
            self._device,
        )
        filters = Filters.of([one.params for one in requests], self._vocab_size, self._device)
        drawn = draw.filtered(logits.index_select(0, index), filters, noise.row_keys(streams, at), self._hashes)
        tokens[index] = drawn
        self._tokens[own, at] = drawn.to(torch.int32)


def _rule(slot: Slot, vocab_size: int) -> tuple[float, ...]:
    """As RULE has it."""
    numbers, params = Numbers.of(slot.params, vocab_size), slot.params
    biases = 0 if slot.masks is None or slot.masks.bias is None else len(slot.masks.bias)
    return (
        slot.stream,
        0.0 if params.greedy else numbers.temperature,
        numbers.top_k,
        numbers.top_p,
        numbers.log_min_p,
        slot.prompt_length,
        *penalties.numbers(params),
        biases,
        slot.bans or params.constraint is not None,
    )
