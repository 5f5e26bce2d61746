"""Causal attention of packed queries over paged keys and values.

Which slots of the pages a row reads, and which keys are masked, depends on the step, not on the layer: `plan` derives
it once for all layers of a cache group. A slot is a token's place in the pages, block * block_size + offset.

Rows of one token are batched, their keys padded to the longest row; where lengths differ much they are split into
several calls. Padding repeats the row's own newest token, so that keys of other sequences are never read. Longer chunks
are computed one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.kernels.interface import Batch, BlockMap, Pages

# Rows are split into two calls where that saves this many padded tokens: about what a call costs on a CPU.
SPLIT_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Singles:
    """Rows of one token that one call computes."""

    rows: Tensor | None  # [n] which of the packed tokens; None: the first n
    count: int
    slots: Tensor  # [n * longest]
    bias: Tensor | None  # [n, 1, 1, longest]: 0 where a key is seen, -inf where not; None: all are


@dataclass(frozen=True, slots=True)
class Chunk:
    """One row of several tokens: packed tokens start .. end - 1."""

    start: int
    end: int
    slots: Tensor  # [keys]
    bias: Tensor | None  # [end - start, keys]; None: keys and queries are the same tokens, plain causal


@dataclass(frozen=True, slots=True)
class Plan:
    singles: tuple[Singles, ...]
    chunks: tuple[Chunk, ...]


def plan(batch: Batch, block_map: BlockMap, block_size: int, window: int, dtype: torch.dtype) -> Plan:
    return _Planner(batch, block_map, block_size, window, dtype).plan()


def reference(q: Tensor, pages: Pages, planned: Plan, *, scale: float, softcap: float) -> Tensor:
    keys, values = pages.keys.flatten(0, 1), pages.values.flatten(0, 1)  # [slots, kv_heads, head_dim]
    if len(planned.singles) == 1 and not planned.chunks:  # the common step: no copies
        return _attend_singles(q, keys, values, planned.singles[0], scale, softcap)
    mixed = q.new_empty(q.shape[0], q.shape[1] * q.shape[2])
    for group in planned.singles:
        part = q[: group.count] if group.rows is None else q[group.rows]
        attended = _attend_singles(part, keys, values, group, scale, softcap)
        if group.rows is None:
            mixed[: group.count] = attended
        else:
            mixed.index_copy_(0, group.rows, attended)
    for chunk in planned.chunks:
        mixed[chunk.start : chunk.end] = _attend_chunk(q[chunk.start : chunk.end], keys, values, chunk, scale, softcap)
    return mixed


@dataclass(frozen=True, slots=True)
class _Planner:
    batch: Batch
    block_map: BlockMap
    block_size: int
    window: int
    dtype: torch.dtype

    def plan(self) -> Plan:
        batch = self.batch
        groups = _split([self.view(length) for length in batch.host_lengths[: batch.num_single]])
        chunks = range(batch.num_single, batch.num_rows)
        return Plan(tuple(map(self.singles, groups)), tuple(map(self.chunk, chunks)))

    def view(self, length: int) -> int:
        """How many keys the newest of `length` tokens sees."""
        return min(length, self.window) if self.window else length

    def singles(self, rows: list[int]) -> Singles:
        batch, device = self.batch, self.batch.lengths.device
        views = [self.view(batch.host_lengths[row]) for row in rows]
        index = None if len(rows) == batch.num_single else torch.tensor(rows, device=device)
        taken = slice(len(rows)) if index is None else index
        lengths, tables = batch.lengths[taken, None], self.block_map.tables[taken]
        first = (lengths - self.window).clamp_(min=0) if self.window else torch.zeros_like(lengths)
        positions = first + torch.arange(max(views), device=device)
        bias = None
        if min(views) < max(views):
            bias = self.bias(positions >= lengths)[:, None, None]
        return Singles(index, len(rows), self.slots(tables, positions.minimum(lengths - 1)), bias)

    def chunk(self, row: int) -> Chunk:
        batch, device, window = self.batch, self.batch.lengths.device, self.window
        start, end, length = batch.host_starts[row], batch.host_starts[row + 1], batch.host_lengths[row]
        first_query = length - (end - start)
        first_key = max(0, first_query - window + 1) if window else 0
        keys = torch.arange(first_key, length, device=device)
        bias = None
        if first_query > 0 or 0 < window < length:
            queries = torch.arange(first_query, length, device=device)[:, None]
            hidden = keys > queries
            bias = self.bias(hidden | (keys <= queries - window) if window else hidden)
        return Chunk(start, end, self.slots(self.block_map.tables[row : row + 1], keys[None]), bias)

    def slots(self, tables: Tensor, positions: Tensor) -> Tensor:
        """[rows, blocks], [rows, n] -> [rows * n]"""
        blocks = tables.gather(1, positions // self.block_size)
        return (blocks * self.block_size + positions % self.block_size).flatten()

    def bias(self, hidden: Tensor) -> Tensor:
        return torch.zeros(hidden.shape, dtype=self.dtype, device=hidden.device).masked_fill_(hidden, -torch.inf)


def _split(views: list[int]) -> list[list[int]]:
    """Groups of rows by the number of keys they see, split where that saves most padding, while that pays off."""
    order = sorted(range(len(views)), key=lambda row: -views[row])
    pending, groups = [order] if order else [], []
    while pending:
        rows = pending.pop()
        saved = [(views[rows[0]] - views[row]) * (len(rows) - place) for place, row in enumerate(rows)]
        place = max(range(len(rows)), key=saved.__getitem__)
        if saved[place] < SPLIT_TOKENS:
            groups.append(sorted(rows))
        else:
            pending += [rows[place:], rows[:place]]
    return groups


def _attend_singles(q: Tensor, keys: Tensor, values: Tensor, group: Singles, scale: float, softcap: float) -> Tensor:
    """[n, heads, head_dim] -> [n, heads * head_dim]. The heads that share keys stand where a sequence's queries would,
    so that keys are read once and never repeated in memory."""
    kv_heads, head_dim = keys.shape[-2:]
    shape = (group.count, -1, kv_heads, head_dim)
    k = keys.index_select(0, group.slots).view(shape).transpose(1, 2)
    v = values.index_select(0, group.slots).view(shape).transpose(1, 2)
    grouped = q.view(group.count, kv_heads, -1, head_dim)
    return _attend(grouped, k, v, group.bias, scale, softcap, is_causal=False).flatten(1)


def _attend_chunk(q: Tensor, keys: Tensor, values: Tensor, chunk: Chunk, scale: float, softcap: float) -> Tensor:
    """[n, heads, head_dim] -> [n, heads * head_dim]"""
    kv_heads, head_dim = keys.shape[-2:]
    k = keys.index_select(0, chunk.slots).transpose(0, 1)[:, None]  # [kv_heads, 1, keys, head_dim]
    v = values.index_select(0, chunk.slots).transpose(0, 1)[:, None]
    grouped = q.view(len(q), kv_heads, -1, head_dim).permute(1, 2, 0, 3)  # [kv_heads, group, n, head_dim]
    k, v = k.expand(-1, grouped.shape[1], -1, -1), v.expand(-1, grouped.shape[1], -1, -1)
    mixed = _attend(grouped, k, v, chunk.bias, scale, softcap, is_causal=chunk.bias is None)
    return mixed.permute(2, 0, 1, 3).flatten(1)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, softcap: float, *, is_causal: bool
) -> Tensor:
    if softcap == 0.0:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=is_causal, scale=scale)
    scores = (q @ k.transpose(-1, -2)).float().mul_(scale / softcap).tanh_().mul_(softcap)
    if is_causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu_(1)
        scores.masked_fill_(hidden, -torch.inf)
    elif bias is not None:
        scores += bias
    return scores.softmax(dim=-1).to(v.dtype) @ v
