"""Roofline of a step: the longer of reading its bytes and computing its FLOPs, plus the all-reduces over the link.

With both efficiencies at 1 the figures are ceilings; below 1 they are expectations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

from penstock.capacity import memory
from penstock.capacity.device import Device
from penstock.capacity.formats import Format
from penstock.capacity.shape import Shape

Bound = Literal["bandwidth", "compute", "link"]

REDUCES_PER_LAYER = 2  # behind the attention's output and behind the MLP's
REDUCE_LATENCY_S = 5e-6  # of one all-reduce, however small
INTEGER_GAIN = 4  # 8-bit products that a CPU does in place of one in 32 bit


@dataclass(frozen=True, slots=True)
class Time:
    seconds: float
    bound: Bound


@dataclass(frozen=True, slots=True)
class Speed:
    shape: Shape
    device: Device
    format: Format
    kv_bits: float
    degree: int = 1
    step_tokens: int = 8192
    compute_efficiency: float = 1.0
    bandwidth_efficiency: float = 1.0

    @property
    def ceiling(self) -> Speed:
        return replace(self, compute_efficiency=1.0, bandwidth_efficiency=1.0)

    @property
    def number_bytes(self) -> int:
        """Of an activation."""
        return 4 if self.format.name == "float32" else 2

    def step(self, batch: float, context: float, tokens: int = 1) -> Time:
        """`batch` sequences of `context` tokens each compute their next `tokens`: 1, or more to verify drafts."""
        kv = memory.kv_bytes(self.shape, self.kv_bits, context, self.degree)
        moved = memory.read_bytes(self.shape, self.format, self.degree) + batch * kv
        return self._time(moved, self._step_s(batch, context, tokens), batch * tokens, 1)

    def prefill(self, tokens: float, cached: float = 0.0) -> Time:
        """The prompt of one request, of which `cached` tokens need not be computed."""
        computed = tokens - cached
        steps = max(1, ceil(computed / self.step_tokens))
        moved = steps * memory.read_bytes(self.shape, self.format, self.degree)
        return self._time(moved, self._compute_s(*self._prefill_flop(tokens, cached)), computed, steps)

    def step_flop(self, batch: float, context: float, tokens: int = 1) -> float:
        return batch * tokens * sum(self._token_flop(context))

    def prefill_flop(self, tokens: float, cached: float = 0.0) -> float:
        return sum(self._prefill_flop(tokens, cached))

    def _token_flop(self, context: float) -> tuple[float, float]:
        """Of products with weights, and of attention."""
        shape = self.shape
        weights = 2 * (shape.layers * shape.layer_matrices + shape.table)
        return weights, 4 * shape.heads * shape.head_dim * shape.seen(context)

    def _step_s(self, batch: float, context: float, tokens: int = 1) -> float:
        """The arithmetic of a step."""
        return batch * tokens * self._compute_s(*self._token_flop(context))

    def _prefill_flop(self, tokens: float, cached: float) -> tuple[float, float]:
        """As `_token_flop`. Only the last token needs logits."""
        shape = self.shape
        linear = 2 * shape.layers * shape.layer_matrices * (tokens - cached) + 2 * shape.table
        pairs = _pairs(shape, tokens) - _pairs(shape, cached)
        return linear, 4 * shape.heads * shape.head_dim * pairs

    def reduce_bytes(self, tokens: float = 1.0) -> float:
        """Bytes that a device sends in the ring all-reduces of a step: each payload 2 (n - 1) / n times."""
        payload = tokens * self.shape.hidden * self.number_bytes
        return REDUCES_PER_LAYER * self.shape.layers * payload * 2 * (self.degree - 1) / self.degree

    def balance_batch(self, context: float) -> float | None:
        """The batch from which on a step is compute-bound; None: reading the KV cache always takes longer."""
        read_s = memory.read_bytes(self.shape, self.format, self.degree) / self._bandwidth
        kv_s = memory.kv_bytes(self.shape, self.kv_bits, context, self.degree) / self._bandwidth
        compute_s = self._step_s(1, context)
        return read_s / (compute_s - kv_s) if compute_s > kv_s else None

    @property
    def _bandwidth(self) -> float:
        return self.device.bandwidth_bytes_s * self.bandwidth_efficiency

    @property
    def matmul_flops(self) -> float:
        """Of products with weights: FP8 weights are multiplied in FP8 by cards that can."""
        if self.format.name == "fp8" and self.device.fp8_flops is not None:
            return self.device.fp8_flops
        return self._plain_flops

    @property
    def _plain_flops(self) -> float:
        gain = INTEGER_GAIN if self.device.kind == "cpu" and self.format.integers else 1
        return self.device.flops * gain

    def _compute_s(self, matmul_flop: float, attention_flop: float) -> float:
        seconds = matmul_flop / self.matmul_flops + attention_flop / self._plain_flops
        return seconds / self.degree / self.compute_efficiency

    def link_s(self, tokens: float, steps: int) -> float:
        """Of the all-reduces of `steps` steps over `tokens` tokens."""
        if self.degree == 1:
            return 0.0
        assert self.device.link_bytes_s is not None
        latency_s = steps * REDUCES_PER_LAYER * self.shape.layers * REDUCE_LATENCY_S
        return self.reduce_bytes(tokens) / self.device.link_bytes_s + latency_s

    def _time(self, moved_bytes: float, compute_s: float, tokens: float, steps: int) -> Time:
        read_s, link_s = moved_bytes / self._bandwidth, self.link_s(tokens, steps)
        device_s = max(read_s, compute_s)
        bound: Bound = "link" if link_s > device_s else "compute" if compute_s > read_s else "bandwidth"
        return Time(device_s + link_s, bound)


def _pairs(shape: Shape, tokens: float) -> float:
    """Queries and the positions each sees, over all layers, when `tokens` are computed from the first."""
    full = tokens * (tokens + 1) / 2
    inside = min(tokens, shape.window)
    windowed = inside * (inside + 1) / 2 + (tokens - inside) * shape.window
    return (shape.layers - shape.windowed_layers) * full + shape.windowed_layers * windowed
