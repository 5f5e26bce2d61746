"""Low-rank deltas of adapters: y += scale · B·(A·x), by row with its own adapter.

Two launches surround a product: `shrink` computes A·x of all its projections, together with the norm of x where the
product has one; `expand` adds B·(A·x) to what the product gave, and does the gated activation, with which it computes
A·x of the product behind it, too. They load their matrices while the launch before still runs: these belong to no
step. Which adapter a row has, and what rank that has, they read on the device, so one CUDA graph serves any mixture.

Rows are grouped by adapter into tiles, so that matrices are read once per tile. The width of x is divided among
programs, whose partial sums `expand` adds up in their order: results do not depend on timing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from penstock.kernels.cuda import norm as norm_
from penstock.kernels.cuda.attention_tiles import dot_precision
from penstock.kernels.cuda.launch import Launcher, power_of_2
from penstock.kernels.cuda.low_rank_expand import embed_kernel, expand_kernel
from penstock.kernels.cuda.low_rank_shrink import shrink_few_kernel, shrink_many_kernel
from penstock.kernels.interface import Activation, Norm
from penstock.kernels.low_rank import EMBEDDING, MOST_PARTS, LowRank

UNIT = 16  # ranks; those of an adapter are padded to whole units, and offsets count numbers in them
MAX_RANK = 256
FEW, MANY = 8, 64  # rows of a tile: of a decode step, of a prompt


class Shape(NamedTuple):
    """How work is divided among programs."""

    share: int  # of the width of x, in `shrink`
    share_warps: int
    outs: int  # outputs, in `expand`
    outs_warps: int
    gated: int  # gated outputs
    gated_warps: int


# The fastest of those tried on an H200 for the 8B shape.
SHAPES = {FEW: Shape(1024, 8, 1024, 8, 512, 8), MANY: Shape(1024, 4, 128, 4, 128, 8)}
# Partial sums that `expand` adds up: it has all of them in shared memory.
MOST_SPLITS, MOST_SPLITS_OF_MANY = 64, 4
STEP = 128  # of the width, which a program of `shrink` takes at a time for a tile of many rows


class DeltaMemory(NamedTuple):
    """The adapters on the device."""

    numbers: Tensor  # [numbers] of the model's type: A [ranks, in] and B [units, out, UNIT] of each projection
    # [adapters, sites * MOST_PARTS, 4] int32: where A and B begin in UNITs, units of ranks (0: no delta), scale as
    # float32. Adapter 0 is none. Of the embedding A is [units, vocab, UNIT].
    table: Tensor
    sizes: Mapping[str, tuple[int, int]]  # by product: outputs of its first projection, and of each other


class Tiles(NamedTuple):
    """Rows by adapter."""

    order: Tensor  # [rows] int32
    tiles: Tensor  # [tiles, 3] int32: adapter, its first row in `order`, number of rows
    rows: int  # most of a tile: FEW or MANY


@dataclass(slots=True)
class StepDeltas:
    """The adapters of a step's tokens."""

    memory: DeltaMemory
    tokens: Tiles
    wanted: Tiles | None  # of `Batch.logits_indices`
    num_tokens: int
    ahead: tuple[Tensor, Shrunk] | None = None  # what the product before has computed for the one with this x

    def of(self, x: Tensor) -> Tiles:
        """By rows of x, which has all tokens or the wanted ones. If these are equally many, they are the same."""
        return self.tokens if len(x) == self.num_tokens or self.wanted is None else self.wanted


@dataclass(frozen=True, slots=True)
class Shrunk:
    """A·x."""

    parts: Tensor  # [rows in order, projections, splits, MAX_RANK] float32
    factors: Tensor | None  # [rows] float32, of the norm, that it lacks


_launch_few, _launch_many = Launcher(shrink_few_kernel), Launcher(shrink_many_kernel)
_launch_expand, _launch_embed = Launcher(expand_kernel), Launcher(embed_kernel)


def shrink(x: Tensor, norm: Norm | None, delta: LowRank, deltas: StepDeltas) -> tuple[Tensor, Shrunk]:
    """The norm of x, or x, and A·x of it."""
    if deltas.ahead is not None and deltas.ahead[0] is x:
        (_, shrunk), deltas.ahead = deltas.ahead, None
        return x, shrunk
    memory, tiles = deltas.memory, deltas.of(x)
    (rows, width), projections = x.shape, len(delta.projections)
    shape, padded = SHAPES[tiles.rows], max(power_of_2(width), UNIT)
    few = tiles.rows == FEW
    if norm is not None and not few:
        x, norm = norm_.norm(x, norm), None
    share, splits = _shares(width, x.element_size(), shape, few)
    parts = _empty_parts(rows, projections, splits, x.device)
    first_entry, entries = delta.site * MOST_PARTS, memory.table.shape[1]
    reads = (memory.numbers, memory.table, tiles.order, tiles.tiles, parts)
    if not few:
        _launch_many(
            (len(tiles.tiles), projections, splits),
            x.dtype,
            (x, *reads, first_entry, entries),
            (width, projections, splits, share, min(share, STEP), MANY, dot_precision(x), UNIT, MAX_RANK),
            num_warps=shape.share_warps,
            num_stages=3,
        )
        return x, Shrunk(parts, None)
    normed, factors, normed_rows, (gains, eps) = x, None, 0, norm or (x, 0.0)
    if norm is not None:
        normed, factors, normed_rows = torch.empty_like(x), torch.empty(rows, device=x.device), rows
    groups = min(shape.share_warps, share // UNIT)
    _launch_few(
        (normed_rows + len(tiles.tiles) * projections * splits, 1, 1),
        x.dtype,
        (x, gains, normed, parts if factors is None else factors, *reads, normed_rows, eps, first_entry, entries),
        (
            *(width, projections, splits, share, norm is not None, groups, FEW),
            *(padded, dot_precision(x), UNIT, MAX_RANK),
        ),
        num_warps=shape.share_warps,
    )
    return normed, Shrunk(parts, factors)


def expand(
    shrunk: Shrunk,
    y: Tensor,
    delta: LowRank,
    deltas: StepDeltas,
    activation: Activation | None = None,
    onto: Tensor | None = None,
) -> Tensor:
    """Adds B·(A·x) to y, in place. With an activation: what it gives, or `onto` with that added, in place."""
    memory, tiles = deltas.memory, deltas.of(y)
    (size, others), gated = memory.sizes[delta.product], activation is not None
    rows, projections, splits, _ = shrunk.parts.shape
    shape, few = SHAPES[tiles.rows], tiles.rows == FEW
    outs, warps = (shape.gated, shape.gated_warps) if gated else (shape.outs, shape.outs_warps)
    blocks = -(-size // outs)
    out, ahead = y, gated and few and onto is None and blocks <= MOST_SPLITS
    if gated:
        out = torch.empty(len(y), size, dtype=y.dtype, device=y.device) if onto is None else onto
    entries, next_entry, parts, next_parts = memory.table.shape[1], 0, shrunk.parts, shrunk.parts
    if ahead:
        next_entry, next_parts = LowRank(delta.layer, "down").site * MOST_PARTS, _empty_parts(rows, 1, blocks, y.device)
        deltas.ahead = out, Shrunk(next_parts, None)
    reads = (memory.numbers, memory.table, tiles.order, tiles.tiles)
    does = (shrunk.factors is not None, gated, activation == "silu", onto is not None, ahead)
    _launch_expand(
        (len(tiles.tiles), blocks if gated else blocks + (projections - 1) * -(-others // outs), 1),
        (y.dtype, memory.numbers.dtype),
        (
            *(parts, parts if shrunk.factors is None else shrunk.factors, *reads, y, out, next_parts),
            *(delta.site * MOST_PARTS, entries, next_entry),
        ),
        (
            *(size, others, projections, splits, power_of_2(splits), *does, tiles.rows, outs, min(warps, outs // UNIT)),
            *(dot_precision(memory.numbers), UNIT, MAX_RANK),
        ),
        num_warps=warps,
    )
    return out


def embed(x: Tensor, tokens: Tensor, scale: float, deltas: StepDeltas) -> None:
    """Adds the deltas of tokens [n] to x [n, width], their embeddings, which have been multiplied by `scale`."""
    memory, tiles = deltas.memory, deltas.of(x)
    vocab, width = memory.sizes["head"][0], x.shape[1]
    outs = min(SHAPES[FEW].outs, max(power_of_2(width), UNIT))
    _launch_embed(
        (len(tiles.tiles), -(-width // outs), 1),
        x.dtype,
        (
            *(x, tokens, memory.numbers, memory.table, tiles.order, tiles.tiles),
            *(scale, EMBEDDING.site * MOST_PARTS, memory.table.shape[1]),
        ),
        (vocab, width, outs, UNIT),
        num_warps=4,
    )


def _shares(width: int, itemsize: int, shape: Shape, few: bool) -> tuple[int, int]:
    """How much of the width a program of `shrink` takes, and how many programs take it."""
    share = min(shape.share // (2 if few and itemsize == 4 else 1), max(power_of_2(width), UNIT))
    while -(-width // share) > (MOST_SPLITS if few else MOST_SPLITS_OF_MANY):
        share *= 2
    return share, -(-width // share)


def _empty_parts(rows: int, projections: int, splits: int, device: torch.device) -> Tensor:
    return torch.empty(rows, projections, splits, MAX_RANK, dtype=torch.float32, device=device)
