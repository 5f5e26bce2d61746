"""The sampler of CUDA devices: a request's parameters go to the device once, and kernels read them there by slot.

A step uploads slots and positions only, so a CUDA graph can make any mixture of draws; `kernels.cuda.sample` has the
three ways. Log-probabilities and typical_p stay with torch, for the rows that request them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from penstock.flow import Admit
from penstock.flow.params import MAX_BIASES
from penstock.kernels import sampling_layout
from penstock.kernels.cuda import sample
from penstock.kernels.cuda.sampling_params import DRAW_PARAMS, WORDS, DrawScratch, SamplingTables
from penstock.kernels.upload import put, upload
from penstock.sample.constraints import StepConstraints
from penstock.sample.reference import draw, noise
from penstock.sample.reference.draws import Draws
from penstock.sample.reference.filters import Filters
from penstock.sample.reference.reports import report
from penstock.sample.request_table import RequestTable
from penstock.sample.slot_request import SlotRequest

# Replays the captured draw graph: full (with adjustments of logits) or only filtered; with the masks of these rows, if
# they are not those of the slots. Gives the tokens.
ReplayDraw = Callable[[bool, Sequence[int] | None], Tensor]


class CudaSampler:
    def __init__(self, vocab_size: int, tokens: Tensor, most_draws: int = 0) -> None:
        """`tokens` [slots, context]: the sequences. Drawn tokens are written there. `most_draws`: of a step with
        drafts; 0: there are none."""
        self._requests = RequestTable(vocab_size, len(tokens), most_draws)
        self.inspects = self._requests.inspects
        self._tokens, self._device = tokens, tokens.device
        self._hashes = noise.token_hashes(vocab_size, tokens.device)
        self.tables = SamplingTables.blank(tokens, self._hashes, MAX_BIASES, most_draws + 1 if most_draws else 0)
        self.scratch = DrawScratch.of(max(len(tokens), most_draws), vocab_size, self._device)
        self.no_mask = len(self.tables.allowed) - 1  # the row that allows all tokens, where there are drafts
        if most_draws:
            self.tables.allowed[self.no_mask] = -1
        # Requests that are not on the device yet: steps of greedy draws alone do not read them.
        self._unwritten: dict[int, SlotRequest] = {}
        self._adjusted: set[int] = set()  # slots whose logits change before the draw
        self._typical: set[int] = set()
        self.argmax_only = self._requests.argmax_only

    def admit(self, admit: Admit) -> None:
        slot = admit.slot
        request = self._unwritten[slot] = self._requests.admit(admit)
        (self._adjusted.add if request.adjusts_logits else self._adjusted.discard)(slot)
        (self._typical.add if request.kind == "typical" else self._typical.discard)(slot)

    def sample(
        self,
        logits: Tensor,
        slots: Sequence[int],
        positions: Sequence[int],
        constraints: StepConstraints | None = None,
        replay: ReplayDraw | None = None,
    ) -> Draws:
        """As `TorchSampler.sample`; slots with drafts have them at these positions. `replay` draws from these very
        logits as a CUDA graph."""

        def draw_tokens() -> Tensor:
            return self._draw(logits, slots, positions, constraints, replay)

        return report(self._requests, self._tokens, logits, slots, positions, constraints, draw_tokens)

    def _draw(
        self,
        logits: Tensor,
        slots: Sequence[int],
        positions: Sequence[int],
        constraints: StepConstraints | None,
        replay: ReplayDraw | None,
    ) -> Tensor:
        if replay is None and self.argmax_only(slots):
            return self._launch(sample.greedy, logits, slots, positions)
        self._write_params()
        if not self._adjusted.isdisjoint(slots):
            self._write_masks(slots, positions, constraints)
        return self.draw_again(logits, slots, positions, self.mask_rows(slots, constraints), replay)

    def begin_drafts(self, slots: Sequence[int]) -> bool:
        """Before drafts are drawn as the requests in these slots ask for. Whether all take the token of the largest
        logit."""
        if self.argmax_only(slots):
            return True
        self._write_params()
        return False

    def draw_drafts(
        self, logits: Tensor, slots: Sequence[int], positions: Sequence[int], mask_rows: Sequence[int]
    ) -> None:
        """To the slots. Without typical_p."""
        self._launch(sample.full, logits, slots, positions, mask_rows)

    def mask_rows(self, slots: Sequence[int], constraints: StepConstraints | None) -> list[int] | None:
        """Which mask each row takes. None: that of its slot."""
        if constraints is None or len(constraints.rows) == len({slots[row] for row in constraints.rows}):
            return None
        rows = list(slots)
        for row, place in zip(constraints.rows, self._requests.mask_rows(slots, constraints), strict=True):
            rows[row] = place
        return rows

    def draw_again(
        self,
        logits: Tensor,
        slots: Sequence[int],
        positions: Sequence[int],
        mask_rows: Sequence[int] | None = None,
        replay: ReplayDraw | None = None,
    ) -> Tensor:
        """As `sample`, with the parameters and masks that are there, and nothing but tokens."""
        full = not self._adjusted.isdisjoint(slots)
        if replay is not None:
            tokens = replay(full, mask_rows)
        else:
            tokens = self._launch(sample.full if full else sample.filtered, logits, slots, positions, mask_rows)
        if not self._typical.isdisjoint(slots):
            self._draw_typical(logits, slots, positions, tokens)
        return tokens

    def _launch(
        self,
        way: Callable[..., None],
        logits: Tensor,
        slots: Sequence[int],
        positions: Sequence[int],
        mask_rows: Sequence[int] | None = None,
    ) -> Tensor:
        """One of the functions of `kernels.cuda.sample`."""
        rows = upload([slots, positions, positions, mask_rows or slots], self._device)
        tokens = torch.empty(len(slots), dtype=torch.int64, device=self._device)
        way(logits, rows, self.tables, self.scratch, tokens)
        return tokens

    def _write_params(self) -> None:
        """Upload the parameters of slots admitted to since the last call."""
        if not self._unwritten:
            return
        params = np.array(
            [sampling_layout.row(request.draw_params) for request in self._unwritten.values()], dtype=DRAW_PARAMS
        )
        words = params.view(np.int32).reshape(-1, WORDS.value)
        self.tables.slot_params[upload(list(self._unwritten), self._device)] = upload(words, self._device)
        for slot, request in self._unwritten.items():
            masks = request.masks
            if masks is not None and masks.bias_tokens is not None and masks.bias is not None:
                count = len(masks.bias)
                put(self.tables.bias_tokens[slot, :count], masks.bias_tokens.astype(np.int32))
                put(self.tables.biases[slot, :count], masks.bias)
        self._unwritten.clear()

    def _write_masks(self, slots: Sequence[int], positions: Sequence[int], constraints: StepConstraints | None) -> None:
        """Upload the masks of allowed tokens that changed since the last call."""
        if changed := self._requests.update_masks(slots, positions, constraints):
            bits = self._requests.allowed[changed].view(np.int32)
            self.tables.allowed[upload(changed, self._device)] = upload(bits, self._device)

    def _draw_typical(self, logits: Tensor, slots: Sequence[int], positions: Sequence[int], tokens: Tensor) -> None:
        """Redraw the rows with typical_p, from logits that are adjusted and masked by now."""
        rows = [row for row, slot in enumerate(slots) if slot in self._typical]
        params = [self._requests.by_slot[slots[row]].draw_params for row in rows]
        own_slots, own_positions = [slots[row] for row in rows], [positions[row] for row in rows]
        index, own, at, streams = upload(
            [rows, own_slots, own_positions, [int(one["stream"]) for one in params]], self._device
        )
        filters = Filters.of(params, self._device)
        drawn = draw.filtered(logits.index_select(0, index), filters, noise.row_keys(streams, at), self._hashes)
        tokens[index] = drawn
        self._tokens[own, at] = drawn.to(torch.int32)
