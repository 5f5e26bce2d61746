"""Small steps as CUDA graphs: one launch instead of several hundred.

In a graph every token is a row of its own. The tokens of a prompt chunk are rows of the same slot at consecutive
positions. A layer writes all keys and values before any row attends, and each row attends only to positions before it,
so chunks are right. Their prefix is read once per few tokens, though (see `kernels.cuda.decode_attention`); steps that
would read too much again do not run as graphs (`READ_AGAIN`).

A graph is captured for each of a few batch sizes. A step takes the smallest one that holds it and pads with rows of the
padding slot, whose keys and values go to block 0, which belongs to no sequence. A graph starts from slots and positions
and ends with the logits and their argmax, which is the token of greedy requests. Other requests are sampled by one of
two more graphs, filtered or full (`kernels.cuda.sample`), launched after it; the host computes constraint masks in
between. Where there are adapters, each size has a further graph, for steps in which a row has one. All graphs share one
memory pool and write their logits to the same place, where they stay until the next step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from penstock.flow import Row
from penstock.forward.cuda_ranks import ALONE, RankPlace
from penstock.forward.delta_tiles import GraphTiles, Numbers
from penstock.forward.graph_capture import GraphCapture
from penstock.forward.slot_tensors import SlotRows
from penstock.forward.taps import tapped_forward
from penstock.kernels.cuda import sample
from penstock.kernels.cuda.accept import write_tokens
from penstock.kernels.cuda.decode_inputs import gather_decode_inputs
from penstock.kernels.cuda.low_rank import DeltaMemory, StepDeltas
from penstock.kernels.cuda_ops import CudaOperations
from penstock.kernels.interface import Batch, BlockMap, Pages
from penstock.kernels.upload import put
from penstock.sample.cuda_sampler import CudaSampler, ReplayDraw
from penstock.speculate.proposer import Taps

if TYPE_CHECKING:
    from penstock.forward.backend import Model

SIZES = (1, 2, 4, *range(8, 32, 8), *range(32, 128, 16), *range(128, 256, 32), *range(256, 512, 64), 512)  # rows

# Tokens whose keys and values may be read again. On an H200 reading so many takes about as long as launching the
# kernels of a layer one by one.
READ_AGAIN = 1 << 17


class Adapted(NamedTuple):
    """The graph of a step in which a row has an adapter."""

    graph: torch.cuda.CUDAGraph
    hidden: Tensor  # [size, hidden]
    states: Tensor  # [size, width] of the taps, or `hidden`


@dataclass(frozen=True, slots=True)
class Captured:
    graph: torch.cuda.CUDAGraph
    filtered: torch.cuda.CUDAGraph
    full: torch.cuda.CUDAGraph
    # [4, size] int64, written before each replay: slots, positions, drawn positions (0: draws none), masks
    rows: Tensor
    hidden: Tensor  # [size, hidden]
    states: Tensor  # [size, width] of the taps, or `hidden`
    adapted: Adapted | None


class Replayed(NamedTuple):
    """The results of a decode graph for all tokens of a step's rows. `draw` overwrites logits and argmax."""

    tokens: Tensor  # [tokens] int64: the inputs
    hidden: Tensor  # [tokens, hidden]
    states: Tensor  # [tokens, width]: what a draft head reads
    size: int  # of the graph
    logits: Tensor  # [tokens, vocab] float32
    argmax: Tensor  # [tokens] int64; those of a row's draws are in its slot, over its drafts
    draw: ReplayDraw  # samples all tokens and writes these to the slots instead
    restore_drafts: Callable[[], None]  # writes the inputs to the slots again, where the graph has written its argmax


class DecodeGraphs:
    """The CUDA graphs of steps with few tokens, and the tensors they share."""

    def __init__(
        self,
        model: Model,
        pages: Sequence[Pages],
        slots: SlotRows,
        sampler: CudaSampler,
        *,
        padding_slot: int,
        most_rows: int,
        place: RankPlace = ALONE,
        deterministic: bool = False,
        adapters: DeltaMemory | None = None,
        taps: Taps = (),
        save: Callable[[Tensor, Tensor], None] | None = None,
    ) -> None:
        """`padding_slot` is the slot of padding rows; `most_rows`: of a graph. Graphs of a rank that does not draw end
        with its part of the logits. `taps`: of a draft head; `save` is given rows and states of each step, to launch
        kernels. `adapters`: None: no row has one."""
        self.most_rows, self._taps, self._save = most_rows, taps, save
        self._model, self._pages, self._slots, self._padding_slot = model, pages, slots, padding_slot
        self._cuda_ops, self._draws = CudaOperations(deterministic), place.draws
        self._ops = place.operations(self._cuda_ops)
        self._tables, self._scratch = sampler.tables, sampler.scratch
        self._sizes = [size for size in SIZES if size < most_rows] + [most_rows]
        self._captured: list[Captured] = []
        device = slots.tokens.device
        most = self._sizes[-1]
        self._tokens, self._positions, self._drawn = (
            torch.zeros(most, dtype=torch.int64, device=device) for _ in range(3)
        )
        self._lengths, self._runs = (torch.zeros(most, dtype=torch.int32, device=device) for _ in range(2))
        self.logits = torch.empty(most, model.spec.vocab_size, dtype=torch.float32, device=device)
        self._adapters, self._tiles = adapters, None if adapters is None else GraphTiles(most, device)
        self._starts = torch.arange(most + 1, dtype=torch.int32, device=device)
        self._maps = [
            BlockMap(
                torch.zeros(most, table.shape[1], dtype=torch.int32, device=device), torch.zeros_like(self._tokens)
            )
            for table in slots.tables
        ]

    def fits(self, rows: Sequence[Row]) -> bool:
        """Whether there is a graph for as many tokens, and chunks do not read too much of their prefixes again."""
        if not self._captured or sum(row.count for row in rows) > self._sizes[-1]:
            return False
        return sum((row.count - 1) * row.start for row in rows) <= READ_AGAIN

    def capture(self, capture: GraphCapture) -> None:
        """The largest first: the others fit into the memory pool it leaves."""
        self._captured = [self._capture(size, capture) for size in reversed(self._sizes)][::-1]

    def capture_largest(self, capture: GraphCapture) -> None:
        """Capture and discard: see `CudaGraphs.capture_largest`."""
        self._capture(self._sizes[-1], capture)

    def run_uncaptured(self) -> None:
        """Run what will be captured, for precompilation. Sizes that round up to the same power of 2 launch the same
        kernels, and draws the same for all sizes."""
        for size in self._sizes:
            if size & (size - 1) == 0 or size == self._sizes[-1]:
                for deltas in self._variants(size):
                    self._compute(self._rows(size), deltas)
        for full in (False, True) if self._draws else ():
            self._draw(self._rows(1), full=full)

    def _capture(self, size: int, capture: GraphCapture) -> Captured:
        rows = self._rows(size)

        def draws(full: bool) -> torch.cuda.CUDAGraph:
            self._draw(rows, full=full)
            return capture.capture(lambda: self._draw(rows, full=full))[0]

        def computes(deltas: StepDeltas | None) -> Adapted:
            self._compute(rows, deltas)  # first: compilation and loading must not be captured
            graph, (hidden, states) = capture.capture(lambda: self._compute(rows, deltas))
            return Adapted(graph, hidden, states)

        plain, *adapted = map(computes, self._variants(size))
        filtered, full = (draws(False), draws(True)) if self._draws else (plain.graph, plain.graph)
        return Captured(plain.graph, filtered, full, rows, plain.hidden, plain.states, adapted[0] if adapted else None)

    def captured(self) -> list[tuple[int, Tensor, Tensor]]:
        """Of each graph: its size, and the rows and states of a replay."""
        return [(one.rows.shape[1], one.rows, one.states) for one in reversed(self._captured)]

    def _variants(self, size: int) -> list[StepDeltas | None]:
        """What graphs of a size are captured with."""
        if self._adapters is None or self._tiles is None:
            return [None]
        return [None, StepDeltas(self._adapters, self._tiles.without_adapters(size), None, size)]

    @torch.inference_mode()
    def _compute(self, rows: Tensor, deltas: StepDeltas | None) -> tuple[Tensor, Tensor]:
        model, logits = self._model, self.logits[: rows.shape[1]]
        self._cuda_ops.deltas = deltas
        hidden, states = tapped_forward(model, self._ops, self.batch(rows), self._pages, self._taps)
        self._ops.logits(hidden, model.head, model.spec.logit_softcap, logits)
        if self._draws:
            sample.greedy(logits, rows, self._tables, self._scratch, self._drawn[: rows.shape[1]])
        if self._save is not None:
            self._save(rows, states)
        return hidden, states

    @torch.inference_mode()
    def _draw(self, rows: Tensor, *, full: bool) -> None:
        """After `_compute`."""
        count = rows.shape[1]
        work = self.logits[:count], rows, self._tables, self._scratch, self._drawn[:count]
        sample.full(*work) if full else sample.filtered(*work, found=True)

    def _rows(self, size: int) -> Tensor:
        padding = [self._padding_slot] * size
        return torch.tensor([padding, [0] * size, [0] * size, padding], device=self._tokens.device)

    def run(self, rows: Sequence[Row], adapters: Numbers | None = None) -> Replayed:
        """Replay the graph of these rows, for which `fits` is true. `adapters` [tokens]; None: no row has one."""
        slots, starts, counts, draws = np.array([(row.slot, row.start, row.count, row.draws) for row in rows]).T
        ends = counts.cumsum()
        count = int(ends[-1])
        captured = self._captured[bisect_left(self._sizes, count)]
        inputs = np.zeros(captured.rows.shape, dtype=np.int64)
        inputs[0] = self._padding_slot
        inputs[0, :count] = slots.repeat(counts)
        inputs[1, :count] = np.arange(count) + (starts + counts - ends).repeat(counts)
        is_drawn = np.arange(count) >= (ends - draws).repeat(counts)
        inputs[2, :count] = (inputs[1, :count] + 1) * is_drawn
        inputs[3] = inputs[0]
        put(captured.rows, inputs)
        hidden = captured.hidden
        if adapters is None:
            captured.graph.replay()
        else:
            hidden = self._replay_adapted(captured, adapters)
        drawn, has_drafts = self._drawn[:count], int(draws.max()) > 1

        def restore_drafts() -> None:
            write_tokens(captured.rows, self._tokens, self._slots.tokens)

        def draw(full: bool, masks: Sequence[int] | None) -> Tensor:
            if masks is not None:
                put(captured.rows[3, :count], np.array(masks))
            if full and has_drafts:  # penalties read them
                restore_drafts()
            (captured.full if full else captured.filtered).replay()
            return drawn

        return Replayed(
            tokens=self._tokens[:count],
            hidden=hidden[:count],
            states=captured.states[:count],
            size=len(captured.hidden),
            logits=self.logits[:count],
            argmax=drawn,
            draw=draw,
            restore_drafts=restore_drafts,
        )

    def _replay_adapted(self, captured: Captured, adapters: Numbers) -> Tensor:
        """Gives the hidden states; those that a draft head reads are where the graph without adapters has them."""
        adapted = captured.adapted
        assert adapted is not None
        assert self._tiles is not None
        size = len(adapted.hidden)
        put(self._tiles.place(size), self._tiles.packed(adapters, size))
        adapted.graph.replay()
        if self._save is not None:
            captured.states.copy_(adapted.states)
        return adapted.hidden

    def batch(self, rows: Tensor) -> Batch:
        """The inputs of `rows` [2 or more, n], one token each: slots and positions."""
        size = rows.shape[1]
        tokens, positions, lengths = self._tokens[:size], self._positions[:size], self._lengths[:size]
        maps = tuple(BlockMap(whole.tables[:size], whole.targets[:size]) for whole in self._maps)
        for table, block_map in zip(self._slots.tables, maps, strict=True):
            gather_decode_inputs(
                rows,
                self._slots.tokens,
                table,
                self._slots.block_size,
                tokens=tokens,
                positions=positions,
                lengths=lengths,
                runs=self._runs[:size],
                tables=block_map.tables,
                targets=block_map.targets,
            )
        return Batch(
            tokens=tokens,
            positions=positions,
            starts=self._starts[: size + 1],
            lengths=lengths,
            maps=maps,
            num_rows=size,
            num_single=size,
            host_starts=list(range(size + 1)),
            host_lengths=[1] * size,  # of the capture; replays have their lengths on the device
            runs=self._runs[:size],
        )
