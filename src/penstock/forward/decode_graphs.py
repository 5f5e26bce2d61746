"""Small steps as CUDA graphs: one launch instead of several hundred.

In a graph every token is a row of its own. The tokens of a prompt chunk are rows of the same slot at consecutive
positions. A layer writes all keys and values before any row attends, and each row attends only to positions before it,
so chunks are right. Their prefix is read once per few tokens, though (see `kernels.cuda.decode_attention`); steps that
would read too much again do not run as graphs (`READ_AGAIN`).

A graph is captured for each of a few batch sizes. A step takes the smallest one that holds it and pads with rows of the
padding slot, whose keys and values go to block 0, which belongs to no sequence. A graph starts from slots and positions
and ends with the logits and their argmax, which is the token of greedy requests. Other requests are sampled by one of
two more graphs, filtered or full (`kernels.cuda.sample`), launched after it; the host computes constraint masks in
between. All graphs share one memory pool and write their logits to the same place, where they stay until the next step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from penstock.flow import Row
from penstock.forward.cuda_ranks import ALONE, RankPlace
from penstock.forward.graph_capture import GraphCapture
from penstock.forward.slot_tensors import SlotTensors
from penstock.kernels.cuda import sample
from penstock.kernels.cuda.decode_inputs import gather_decode_inputs
from penstock.kernels.cuda_ops import CudaOperations
from penstock.kernels.interface import Batch, BlockMap, Pages
from penstock.kernels.upload import put
from penstock.sample.cuda_sampler import CudaSampler, ReplayDraw

if TYPE_CHECKING:
    from penstock.forward.backend import Model

SIZES = (1, 2, 4, *range(8, 32, 8), *range(32, 128, 16), *range(128, 256, 32), *range(256, 512, 64), 512)  # rows

# Tokens whose keys and values may be read again. On an H200 reading so many takes about as long as launching the
# kernels of a layer one by one.
READ_AGAIN = 1 << 17


@dataclass(frozen=True, slots=True)
class Captured:
    graph: torch.cuda.CUDAGraph
    filtered: torch.cuda.CUDAGraph
    full: torch.cuda.CUDAGraph
    rows: Tensor  # [3, size] int64, written before each replay: slots, positions, drawn positions (0: draws none)
    hidden: Tensor  # [size, hidden]


class Replayed(NamedTuple):
    """The results of a decode graph, of all tokens of a step's rows. `draw` overwrites logits and argmax."""

    hidden: Tensor  # [tokens, hidden]
    logits: Tensor  # [tokens, vocab] float32
    argmax: Tensor  # [tokens] int64; that of a sampled row's last token is in its slot
    draw: ReplayDraw  # samples all tokens and writes these to the slots instead


class DecodeGraphs:
    """The CUDA graphs of steps with few tokens, and the tensors they share."""

    def __init__(
        self,
        model: Model,
        pages: Sequence[Pages],
        slots: SlotTensors,
        sampler: CudaSampler,
        *,
        padding_slot: int,
        place: RankPlace = ALONE,
        deterministic: bool = False,
    ) -> None:
        """`padding_slot`, the last one, is the slot of padding rows. Its index is also the number of other slots, and
        the most rows of a graph. A rank that does not draw has graphs that end with its part of the logits."""
        self._model, self._pages, self._slots, self._padding_slot = model, pages, slots, padding_slot
        self._ops, self._draws = place.operations(CudaOperations(deterministic)), place.draws
        self._tables, self._scratch = sampler.tables, sampler.scratch
        self._sizes = [size for size in SIZES if size < padding_slot] + [padding_slot]
        self._captured: list[Captured] = []
        device = slots.tokens.device
        most = self._sizes[-1]
        self._tokens, self._positions, self._drawn = (
            torch.zeros(most, dtype=torch.int64, device=device) for _ in range(3)
        )
        self._lengths, self._runs = (torch.zeros(most, dtype=torch.int32, device=device) for _ in range(2))
        self._logits = torch.empty(most, model.spec.vocab_size, dtype=torch.float32, device=device)
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
                self._compute(self._rows(size))
        for full in (False, True) if self._draws else ():
            self._draw(self._rows(1), full=full)

    def _capture(self, size: int, capture: GraphCapture) -> Captured:
        rows = self._rows(size)

        def draws(full: bool) -> torch.cuda.CUDAGraph:
            self._draw(rows, full=full)
            return capture.capture(lambda: self._draw(rows, full=full))[0]

        self._compute(rows)  # first: compilation and loading must not be captured
        graph, hidden = capture.capture(lambda: self._compute(rows))
        filtered, full = (draws(False), draws(True)) if self._draws else (graph, graph)
        return Captured(graph, filtered, full, rows, hidden)

    @torch.inference_mode()
    def _compute(self, rows: Tensor) -> Tensor:
        model, logits = self._model, self._logits[: rows.shape[1]]
        hidden = model.forward(self._ops, self._batch(rows), self._pages)
        self._ops.logits(hidden, model.head, model.spec.logit_softcap, logits)
        if self._draws:
            sample.greedy(logits, rows, self._tables, self._scratch, self._drawn[: rows.shape[1]])
        return hidden

    @torch.inference_mode()
    def _draw(self, rows: Tensor, *, full: bool) -> None:
        """After `_compute`."""
        count = rows.shape[1]
        work = self._logits[:count], rows, self._tables, self._scratch, self._drawn[:count]
        sample.full(*work) if full else sample.filtered(*work, found=True)

    def _rows(self, size: int) -> Tensor:
        return torch.tensor([[self._padding_slot] * size, [0] * size, [0] * size], device=self._tokens.device)

    def run(self, rows: Sequence[Row]) -> Replayed:
        """Replay the graph of these rows, for which `fits` is true."""
        slots, starts, counts, sampled = np.array([(row.slot, row.start, row.count, row.draws) for row in rows]).T
        ends = counts.cumsum()
        count = int(ends[-1])
        captured = self._captured[bisect_left(self._sizes, count)]
        inputs = np.zeros(captured.rows.shape, dtype=np.int64)
        inputs[0] = self._padding_slot
        inputs[0, :count] = slots.repeat(counts)
        inputs[1, :count] = np.arange(count) + (starts + counts - ends).repeat(counts)
        inputs[2, ends - 1] = (starts + counts) * sampled
        put(captured.rows, inputs)
        captured.graph.replay()
        drawn = self._drawn[:count]

        def draw(full: bool) -> Tensor:
            (captured.full if full else captured.filtered).replay()
            return drawn

        return Replayed(captured.hidden[:count], self._logits[:count], drawn, draw)

    def _batch(self, rows: Tensor) -> Batch:
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
