"""Proposers that compute on the GPU: heads that read the target's states.

A head follows each step: it keeps, by slot, the state from which its drafts begin. After steps without drafts a chain
head only keeps the target's states. It computes their entries, many at a time, when drafts are asked for or their block
is full.

Drafts are drawn by the kernels that draw the target's tokens, with the parameters of the request, straight into the
slots; there is a CUDA graph for each draft, whatever the number of rows. After a step with drafts the next ones are
drawn at once, while the host still waits for its tokens: the device knows which drafts were right. The new drafts are
ready by the time the next step is planned.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from penstock.flow import Admit, Row
from penstock.forward.decode_graphs import DecodeGraphs
from penstock.forward.graph_capture import GraphCapture
from penstock.forward.readback import Readback
from penstock.forward.slot_tensors import SlotTensors
from penstock.kernels.arrays import Array
from penstock.kernels.cuda import draft_rows, sample
from penstock.kernels.interface import Pages
from penstock.kernels.upload import upload
from penstock.sample.cuda_sampler import CudaSampler
from penstock.speculate.chain_proposer import FIRST_RATE
from penstock.speculate.proposer import DraftRow, Proposal, Taps
from penstock.store.spec import ModelSpec

SIZES = (1, 2, 4, 8, 16, 32, 64)  # rows of a graph: beyond that many sequences no head pays off
MOST_DRAFTS = 16  # of a row


@dataclass(frozen=True, slots=True)
class DeviceHost:
    """What a proposer shares with the CUDA backend that it drafts for."""

    context: int
    slots: SlotTensors
    sampler: CudaSampler
    padding_slot: int
    decode: DecodeGraphs  # of the target
    has_constraint: Callable[[int], bool]  # by slot
    allocate_pages: Callable[[ModelSpec], list[Pages]]  # by layer, for all block ids


class FollowedStep(NamedTuple):
    """What a head reads of a step."""

    rows: Sequence[Row]  # as they were computed, with their drafts
    states: Tensor  # [tokens or draws, width]
    starts: Sequence[int]  # [rows + 1] where each row begins in `states`
    graph_size: int | None  # of the decode graph; None: it was launched kernel by kernel
    kept: Tensor | None  # [rows] int32: how many draws of each count; None: no row has drafts


class HeadNetwork(Protocol):
    """What one kind of head computes."""

    taps: Taps
    reads_all: bool  # the states of all tokens of a step, or only of those that tokens are drawn from
    width: int  # of what its drafts begin with
    dtype: torch.dtype
    num_steps: int  # different steps of drafting, the last of which is repeated
    most: int  # drafts of a row
    saved: Tensor  # [slots * period, width of states]: states of the newest tokens of each slot
    period: int

    def reserve(self, slots: int, block_size: int) -> None:
        """Memory for `saved`, before the decode graphs are captured."""

    def bind(self, host: DeviceHost) -> None:
        """The backend is there now."""

    def capture(self, capture: GraphCapture) -> None: ...

    def enter(self, step: FollowedStep) -> tuple[Tensor, list[int]]:
        """The features [.., width] after each of a step's draws, and where those of each row begin; of rows that draw
        none, after the last token."""

    def logits(self, rows: Tensor, feature: Tensor, number: int, out: Tensor) -> None:
        """Of draft `number` of each row of `draft_rows`, to `out` [rows, vocab]. May write to `feature` [rows,
        width]: what the next draft follows from."""


class DraftsUnderWay(NamedTuple):
    """Drafts that were launched."""

    slots: list[int]
    tokens: Readback  # [rows, MOST_DRAFTS]; -1 behind the last

    def of(self, slot: int) -> list[int]:
        place = self.slots.index(slot)
        drafts: list[list[int]] = self.tokens.tolist()  # type: ignore[assignment]
        return [token for token in drafts[place] if token >= 0]


class HeadDrafts:
    """Implements `Proposer`."""

    computes = True

    kinds = (FIRST_RATE,)

    def __init__(self, network: HeadNetwork, host: DeviceHost) -> None:
        network.bind(host)
        self.taps, self.reads_all = network.taps, network.reads_all
        self._network, self._host, decode = network, host, host.decode
        device, slots = host.slots.tokens.device, len(host.slots.tokens)
        sizes = [size for size in SIZES if size < decode.most_rows] + [min(SIZES[-1], decode.most_rows)]
        self._sizes = sorted({*sizes})
        most, dtype = self._sizes[-1], network.dtype
        # By slot, behind its last entry. Of a head that has no entries, its states.
        blank = torch.zeros(slots, network.width, dtype=dtype, device=device)
        self._features = blank if network.period > 1 else network.saved
        self._feature = torch.zeros(most, network.width, dtype=dtype, device=device)
        self._drawn = torch.zeros(most, dtype=torch.int64, device=device)
        self._rows = {size: torch.zeros(5, size, dtype=torch.int64, device=device) for size in self._sizes}
        self._ones = torch.ones(decode.most_rows, dtype=torch.int32, device=device)
        self._zeros = torch.zeros_like(self._ones)
        self._graphs: dict[tuple[int, int, bool], torch.cuda.CUDAGraph] = {}
        self._asked: dict[int, int] = {}  # by slot: how many drafts, at the last time
        self._ready: dict[int, DraftsUnderWay] = {}  # by slot: drafts behind its newest step
        self._saved_from: dict[int, int] = {}  # by slot: the first position whose state is saved and has no entry

    def admit(self, admit: Admit) -> None:
        for by_slot in (self._ready, self._asked, self._saved_from):
            by_slot.pop(admit.slot, None)

    def follow(self, rows: Sequence[Row], states: Array) -> None:
        raise AssertionError("it reads states on the device")

    def follow_step(self, step: FollowedStep) -> None:
        """After each step, behind its draws. A decode graph has saved its states."""
        for row in step.rows:
            self._ready.pop(row.slot, None)
        if step.graph_size is not None and step.kept is None and all(row.count == 1 for row in step.rows):
            if (period := self._network.period) > 1:
                full = [row for row in step.rows if self._save(row) // period < (row.start + 1) // period]
                self._enter_saved([(row.slot, row.start + 1) for row in full])
            return
        self._enter_saved([(row.slot, row.start) for row in step.rows])
        self._enter(step)
        if step.kept is not None:
            self._draft_ahead(step, step.kept)

    def propose(self, rows: Sequence[DraftRow]) -> list[Proposal]:
        """Waits for the device. Rows beyond those of the largest graph get none."""
        rows, beyond = rows[: self._sizes[-1]], rows[self._sizes[-1] :]
        late = [row for row in rows if row.slot not in self._ready]
        if late:
            self._enter_saved([(row.slot, row.length - 1) for row in late])
            self._launch([(row.slot, row.length, row.most) for row in late], self._zeros)
        for row in rows:
            self._asked[row.slot] = row.most
        drafts = [Proposal(self._ready.pop(row.slot).of(row.slot)[: row.most]) for row in rows]
        return drafts + [Proposal([]) for _ in beyond]

    def capture(self, capture: GraphCapture) -> None:
        slot, period = self._host.padding_slot, self._network.period
        for counts in ((1,), (period,), (period, period)) if period > 1 else ():  # kernels that no graph has
            rows = [Row(slot, 0, count, 1) for count in counts]
            self._network.enter(FollowedStep(rows, self._network.saved[: sum(counts)], [], None, None))
        self._network.capture(capture)
        for size in reversed(self._sizes):
            for number in range(self._network.num_steps):
                for full in (False, True):
                    self._compute(size, number, full)  # first: loading must not be captured
                    graph, _ = capture.capture(lambda s=size, n=number, f=full: self._compute(s, n, f))  # type: ignore[misc]
                    self._graphs[size, number, full] = graph

    def draft_seconds(self) -> float:
        """Of one more draft."""

        def draft(number: int) -> None:
            self._launch([(self._host.padding_slot, 2, number)], self._zeros)
            self._ready.pop(self._host.padding_slot).of(self._host.padding_slot)

        return (shortest(lambda: draft(5)) - shortest(lambda: draft(1))) / 4

    def _save(self, row: Row) -> int:
        """Of a token whose state was saved: where the saved ones of its slot begin."""
        return self._saved_from.setdefault(row.slot, row.start)

    def _enter_saved(self, ends: Sequence[tuple[int, int]]) -> None:
        """Compute the entries of saved states, up to the end of each slot."""
        rows = [
            Row(slot, first, end - first, 1) for slot, end in ends if (first := self._saved_from.pop(slot, end)) < end
        ]
        if not rows:
            return
        period, device = self._network.period, self._features.device
        places = [row.slot * period + (row.start + index) % period for row in rows for index in range(row.count)]
        states = self._network.saved.index_select(0, upload(places, device))
        self._enter(FollowedStep(rows, states, [], None, None))

    def _enter(self, step: FollowedStep) -> None:
        features, firsts = self._network.enter(step)
        kept = self._ones_of(len(step.rows)) if step.kept is None else step.kept
        places = upload([[row.slot for row in step.rows], firsts], features.device)
        draft_rows.keep_rows(features, kept, places, self._features)

    def _draft_ahead(self, step: FollowedStep, kept: Tensor) -> None:
        """For rows that had drafts, and so may have them again: as many as they were asked for."""
        drafted = [index for index, row in enumerate(step.rows) if row.draws > 1 and row.slot in self._asked]
        drafted = drafted[: self._sizes[-1]]
        if not drafted:
            return
        rows = [step.rows[index] for index in drafted]
        if len(rows) < len(step.rows):
            kept = kept.index_select(0, upload(drafted, kept.device))
        # Behind its kept draws, the first of which is at the position behind its known tokens.
        begun = [(row.slot, row.start + row.count - row.draws + 1, self._asked[row.slot]) for row in rows]
        self._launch(begun, kept)

    def _launch(self, rows: list[tuple[int, int, int]], kept: Tensor) -> None:
        """Draft for rows of slot, length less `kept`, and number of drafts."""
        host, size = self._host, self._sizes[bisect_left(self._sizes, len(rows))]
        slots, lengths, asked = (list(values) for values in zip(*rows, strict=True))
        numbers = [min(number, self._network.most) for number in asked]
        masks = [host.sampler.no_mask if host.has_constraint(slot) else slot for slot in slots]
        # A draft follows from the entry two positions before, which needs a block.
        ends = [min(host.slots.capacity(slot) + 2, host.context + 1) for slot in slots]
        places = upload([slots, lengths, ends, numbers, masks], host.slots.tokens.device)
        draft_rows.begin_drafts(places, kept, self._rows[size], host.padding_slot)
        full = not host.sampler.begin_drafts(slots)
        for number in range(max(numbers)):
            self._run(size, min(number, self._network.num_steps - 1), full)
        drafts = torch.empty(len(rows), MOST_DRAFTS, dtype=torch.int32, device=places.device)
        draft_rows.collect_drafts(places, kept, host.slots.tokens, drafts)
        under_way = DraftsUnderWay(slots, Readback(drafts))
        for slot in slots:
            self._ready[slot] = under_way

    def _run(self, size: int, number: int, full: bool) -> None:
        graph = self._graphs.get((size, number, full))
        if graph is None:
            self._compute(size, number, full)
        else:
            graph.replay()

    @torch.inference_mode()
    def _compute(self, size: int, number: int, full: bool) -> None:
        rows, feature = self._rows[size], self._feature[:size]
        if number:
            draft_rows.advance_drafts(rows, self._host.padding_slot)
        else:
            torch.index_select(self._features, 0, rows[0], out=feature)
        logits, tables, scratch = self._host.decode.logits[:size], self._host.sampler.tables, self._host.sampler.scratch
        self._network.logits(rows, feature, number, logits)
        (sample.full if full else sample.greedy)(logits, rows, tables, scratch, self._drawn[:size])

    def _ones_of(self, count: int) -> Tensor:
        if count > len(self._ones):
            self._ones = torch.ones(count, dtype=torch.int32, device=self._ones.device)
        return self._ones


def shortest(work: Callable[[], None]) -> float:
    """Seconds that it takes, of several times."""
    seconds = []
    for _ in range(4):
        begun = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begun)
    return min(seconds)
