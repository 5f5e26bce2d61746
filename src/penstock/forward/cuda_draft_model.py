"""A draft model on a GPU: `speculate.draft_model` says what it does. It has decode graphs of its own over the target's
slots, whose draws are the drafts: nothing comes to the host between one draft and the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from penstock.flow import Admit, Row
from penstock.forward.cuda_inputs import gather
from penstock.forward.cuda_proposer import MOST_DRAFTS, SIZES, DeviceHost, shortest
from penstock.forward.decode_graphs import DecodeGraphs
from penstock.forward.graph_capture import GraphCapture
from penstock.forward.slot_arrays import SlotArrays
from penstock.kernels.arrays import Array
from penstock.kernels.cuda.draft_rows import collect_drafts
from penstock.kernels.cuda_ops import CudaOperations
from penstock.kernels.upload import upload
from penstock.model import Decoder
from penstock.speculate.chain_proposer import FIRST_RATE
from penstock.speculate.filled_blocks import FilledBlocks
from penstock.speculate.proposer import DraftRow, Proposal


class SharedSlots(NamedTuple):
    """The target's slots, as a model with other cache groups sees them: implements `SlotRows`."""

    tokens: Tensor
    tables: tuple[Tensor, ...]
    block_size: int


class DraftModelOnDevice:
    """Implements `Proposer`."""

    kinds = (FIRST_RATE,)
    computes = True
    taps = None

    def __init__(self, model: Decoder, host: DeviceHost, copy: SlotArrays, step_tokens: int) -> None:
        """`copy`: of the slots, on the host."""
        spec, slots = model.spec, host.slots
        self._model, self._host, self._ops, self._step_tokens = model, host, CudaOperations(), step_tokens
        self._slots = SharedSlots(slots.tokens, (slots.tables[0],) * len(spec.cache_groups), slots.block_size)
        self._pages = host.allocate_pages(spec)
        self._graphs = DecodeGraphs(
            model,
            self._pages,
            self._slots,
            host.sampler,
            padding_slot=host.padding_slot,
            most_rows=min(SIZES[-1], host.decode.most_rows),
        )
        self._blocks = FilledBlocks(copy.tokens, copy.tables[0], slots.block_size)
        self._zeros = torch.zeros(host.decode.most_rows, dtype=torch.int32, device=slots.tokens.device)

    def forget(self) -> None:
        """All keys and values: their memory was given back."""
        self._blocks.forget()

    def capture(self, capture: GraphCapture) -> None:
        self._graphs.capture(capture)

    def admit(self, admit: Admit) -> None:
        self._blocks.admit(admit.slot)

    def follow(self, rows: Sequence[Row], states: Array) -> None:
        raise AssertionError("it reads no states")

    def propose(self, rows: Sequence[DraftRow]) -> list[Proposal]:
        """Waits for the device."""
        rows = [row._replace(most=min(row.most, MOST_DRAFTS)) for row in rows]
        behind = [self._blocks.computed(row.slot, row.length - 1) for row in rows]
        self._catch_up(rows, behind)
        for depth in range(max(row.most for row in rows)):
            places = [place for place, row in enumerate(rows) if depth < row.most]
            self._run(
                [
                    Row(rows[place].slot, behind[place], rows[place].length + depth - behind[place], 1)
                    for place in places
                ]
            )
            for place in places:
                behind[place] = rows[place].length + depth
        for row, computed in zip(rows, behind, strict=True):
            self._blocks.note(row.slot, computed)
        drafts = torch.empty(len(rows), MOST_DRAFTS, dtype=torch.int32, device=self._zeros.device)
        lengths, most = [row.length for row in rows], [row.most for row in rows]
        ends = [length + count for length, count in zip(lengths, most, strict=True)]
        places_ = upload([[row.slot for row in rows], lengths, ends, most], drafts.device)
        collect_drafts(places_, self._zeros, self._slots.tokens, drafts)
        found: list[list[int]] = drafts.tolist()
        return [Proposal(tokens[: row.most]) for tokens, row in zip(found, rows, strict=True)]

    def draft_seconds(self) -> float:
        """Of one more draft."""
        row = Row(self._host.padding_slot, 1, 1, 1)

        def draft() -> None:
            self._run([row])
            self._slots.tokens[row.slot, 2].item()

        return shortest(draft)

    def _catch_up(self, rows: Sequence[DraftRow], behind: list[int]) -> None:
        """Until the rest of all rows, up to their newest token, is one step."""
        while sum(row.length - done for row, done in zip(rows, behind, strict=True)) > self._step_tokens:
            left, run = self._step_tokens, []
            for place, row in enumerate(rows):
                count = min(row.length - 1 - behind[place], left)
                if count > 0:
                    run.append(Row(row.slot, behind[place], count, 0))
                    behind[place] += count
                    left -= count
            self._run(run)

    @torch.inference_mode()
    def _run(self, rows: list[Row]) -> None:
        """Drawn tokens are in their slots then."""
        for row in rows:
            self._blocks.overwrite(row.slot, row.start, row.start + row.count)
        drawing = [row for row in rows if row.draws]
        greedy = self._host.sampler.begin_drafts([row.slot for row in drawing])
        if self._graphs.fits(rows):
            replayed = self._graphs.run(rows)
            if not greedy:
                slots = [row.slot for row in rows for _ in range(row.count)]
                replayed.draw(True, self._masks(slots))
            return
        rows = sorted(rows, key=lambda row: row.count > 1)  # rows of one token come first
        batch = gather(rows, self._slots)
        last = [end - 1 for end, row in zip(batch.host_starts[1:], rows, strict=True) if row.draws]
        batch = replace(batch, logits_indices=upload(last or [0], batch.tokens.device))
        hidden = self._model.forward(self._ops, batch, self._pages)
        drawing = [row for row in rows if row.draws]
        if drawing:
            slots, positions = [row.slot for row in drawing], [row.start + row.count for row in drawing]
            logits = self._ops.logits(hidden, self._model.head, self._model.spec.logit_softcap)
            self._host.sampler.draw_drafts(logits, slots, positions, self._masks(slots))

    def _masks(self, slots: Sequence[int]) -> list[int]:
        """Masks of constraints are not applied while drafting."""
        return [self._host.sampler.no_mask if self._host.has_constraint(slot) else slot for slot in slots]
