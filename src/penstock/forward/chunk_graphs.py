"""Steps with long prompt chunks as CUDA graphs that are split at every attention (piecewise graphs).

The launch of attention depends on the step in too many ways to be captured; all else depends on the number of tokens
alone. So the kernels between one attention and the next are captured, for a few numbers of tokens, and attention is
launched in between as in a step without graphs. A step takes the smallest size that holds it; padding tokens write
their keys and values to block 0, which belongs to no sequence.

That pays off for models whose layers the device computes faster than the host launches them (`WORTHWHILE`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from penstock.forward.cuda_ranks import ALONE, RankPlace
from penstock.forward.graph_capture import GraphCapture
from penstock.forward.inputs import TokenInputs
from penstock.kernels.cuda import rotate_store
from penstock.kernels.cuda_ops import CudaOperations
from penstock.kernels.interface import Batch, BlockMap, HeadNorms, Pages, Rotary
from penstock.store.spec import ModelSpec

if TYPE_CHECKING:
    from penstock.forward.backend import Model

SIZES = (1024, 1536, 2048, 3072, 4096, 8192)  # tokens
# Tokens times parameters of a layer. An H200 computes as many in 0.4 ms, the time that launching a layer can take.
WORTHWHILE = 1 << 37


class Gap(NamedTuple):
    """The attention between two graphs: its launch arguments beside the step's inputs."""

    pages: Pages
    group: int  # of the cache
    scale: float
    window: int
    softcap: float


@dataclass(frozen=True, slots=True)
class Captured:
    graphs: list[torch.cuda.CUDAGraph]  # one more than gaps
    gaps: list[Gap]
    hidden: Tensor  # [size, hidden]


class _SplitAtAttention(CudaOperations):
    """All operations but attention, which ends the graph and is recorded as a gap. Tensors that cross a gap have a
    fixed place: queries are written to `q`, and the result of attention is read from `mixed`."""

    def __init__(self, q: Tensor, mixed: Tensor, split: Callable[[], None], deterministic: bool) -> None:
        super().__init__(deterministic)
        self._q, self._mixed, self._split = q, mixed, split
        self.gaps: list[Gap] = []

    def rotate_store(
        self,
        qkv: Tensor,
        pages: Pages,
        block_map: BlockMap,
        batch: Batch,
        rotary: Rotary,
        norms: HeadNorms | None,
    ) -> Tensor:
        return rotate_store.rotate_store(qkv, pages, block_map, batch.positions, rotary, norms, self._q)

    def attention(
        self,
        q: Tensor,
        pages: Pages,
        block_map: BlockMap,
        batch: Batch,
        *,
        scale: float,
        window: int,
        softcap: float,
        out: Tensor | None = None,
    ) -> Tensor:
        group = next(index for index, one in enumerate(batch.maps) if one is block_map)
        self.gaps.append(Gap(pages, group, scale, window, softcap))
        self._split()
        return self._mixed


class ChunkGraphs:
    """The CUDA graphs of steps with prompt chunks, and the tensors they share."""

    def __init__(
        self,
        model: Model,
        pages: Sequence[Pages],
        step_tokens: int,
        dtype: torch.dtype,
        place: RankPlace = ALONE,
        deterministic: bool = False,
    ) -> None:
        """`dtype`: that the model computes in."""
        self._model, self._pages, self._place = model, pages, place
        self._ops, self._deterministic = CudaOperations(deterministic), deterministic
        self._sizes = sizes(model.spec, step_tokens)
        self._captured: list[Captured] = []
        self._most = max(self._sizes, default=0)
        spec, device = model.spec, pages[0].keys.device
        self._tokens, self._positions, *self._targets = (
            torch.zeros(self._most, dtype=torch.int64, device=device) for _ in range(2 + len(spec.cache_groups))
        )
        self._q = torch.zeros(self._most, spec.num_heads, spec.head_dim, dtype=dtype, device=device)
        self._mixed = torch.zeros_like(self._q).flatten(1)

    def inputs(self, count: int) -> TokenInputs | None:
        """Where a step of `count` tokens has its inputs; None: there is no graph for it."""
        if not self._captured or count > self._most:
            return None
        return TokenInputs(
            self._tokens[:count], self._positions[:count], tuple(every[:count] for every in self._targets)
        )

    def capture(self, capture: GraphCapture) -> None:
        self._captured = [self._capture(size, capture) for size in reversed(self._sizes)][::-1]

    def capture_largest(self, capture: GraphCapture) -> None:
        """Capture and discard: see `CudaGraphs.capture_largest`."""
        for size in self._sizes[-1:]:
            self._capture(size, capture)

    def run(self, batch: Batch) -> Tensor:
        """Hidden states of all tokens of a batch that was gathered into `inputs`."""
        count = batch.host_starts[-1]
        number = bisect_left(self._sizes, count)
        captured = self._captured[number]
        for targets in self._targets if count < self._sizes[number] else ():
            targets[count : self._sizes[number]] = 0
        q, mixed = self._q[:count], self._mixed[:count]
        for graph, gap in zip(captured.graphs, captured.gaps, strict=False):
            graph.replay()
            self._ops.attention(
                q,
                gap.pages,
                batch.maps[gap.group],
                batch,
                scale=gap.scale,
                window=gap.window,
                softcap=gap.softcap,
                out=mixed,
            )
        captured.graphs[-1].replay()
        return captured.hidden[:count]

    @torch.inference_mode()
    def _capture(self, size: int, capture: GraphCapture) -> Captured:
        def forward(split: Callable[[], None]) -> tuple[Tensor, list[Gap]]:
            ops = _SplitAtAttention(self._q[:size], self._mixed[:size], split, self._deterministic)
            return self._model.forward(self._place.operations(ops), self._batch(size), self._pages), ops.gaps

        forward(lambda: None)  # first: loading must not be captured
        graphs, (hidden, gaps) = capture.capture_pieces(forward)
        return Captured(graphs, gaps, hidden)

    def _batch(self, size: int) -> Batch:
        """The inputs that operations other than attention read; the other fields are placeholders."""
        tokens, positions = self._tokens[:size], self._positions[:size]
        return Batch(
            tokens=tokens,
            positions=positions,
            starts=tokens,
            lengths=tokens,
            maps=tuple(BlockMap(tokens, targets[:size]) for targets in self._targets),
            num_rows=0,
            num_single=0,
            host_starts=[],
            host_lengths=[],
        )


def sizes(spec: ModelSpec, step_tokens: int) -> list[int]:
    """Numbers of tokens for which graphs pay off."""
    kv, q = spec.num_kv_heads * spec.head_dim, spec.num_heads * spec.head_dim
    layer = spec.hidden_size * (2 * q + 2 * kv + 3 * spec.intermediate_size)
    return [size for size in SIZES if size <= step_tokens and size * layer <= WORTHWHILE]
