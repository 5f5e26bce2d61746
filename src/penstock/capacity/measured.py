"""Measured figures of a running server beside the ceilings of its hardware."""

from __future__ import annotations

import msgspec

from penstock.capacity import memory
from penstock.capacity.answer import Measured, MeasuredRow
from penstock.capacity.device import Device
from penstock.capacity.formats import Format, kv_bits
from penstock.capacity.shape import Shape
from penstock.capacity.speed import Speed


class StepSeen(msgspec.Struct, frozen=True):
    batch: int
    step_s: float


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a server. Lengths are means over its requests; None: not measured yet."""

    weights: str  # the format they are kept in
    kv: str
    weights_bytes: float
    kv_bytes: float
    kv_tokens: int
    step_tokens: int
    tensor_parallel: int = 1
    requests: int
    prompt_tokens: float  # computed, without what was cached
    output_tokens: float
    prefill_tokens_per_s: float | None = None
    steps: tuple[StepSeen, ...] = ()  # of decoding alone, by batch


def compare(seen: Observed, shape: Shape, device: Device) -> Measured | None:
    """None before the first request. Ceilings go by the bytes that the weights really take: files mix formats."""
    if not seen.requests:
        return None
    bits = seen.weights_bytes * 8 / shape.parameters
    format = shape.format(seen.weights, device.kind)
    loaded = Format("as loaded", bits, bits, bits, format.integers)
    kv = kv_bits(seen.kv, shape.head_dim, device.kind)
    degree = 1 if device.kind == "cpu" else seen.tensor_parallel  # ranks on a CPU share it
    ceiling = Speed(shape, device, loaded, kv, degree, seen.step_tokens)
    rows = [
        _bytes("weights_bytes", "weights", memory.weights_bytes(shape, format), seen.weights_bytes),
        _bytes(
            "kv_bytes_per_token",
            "KV cache, per token",
            memory.kv_bytes(shape, ceiling.kv_bits, 1),
            seen.kv_bytes / max(1, seen.kv_tokens),
        ),
    ]
    compute = bandwidth = None
    if seen.prefill_tokens_per_s and seen.prompt_tokens:
        time = ceiling.prefill(seen.prompt_tokens)
        rows.append(
            _rate("prefill_tokens_per_s", "prefill", seen.prompt_tokens / time.seconds, seen.prefill_tokens_per_s)
        )
        if time.bound == "compute":
            compute = rows[-1].ratio
    context = seen.prompt_tokens + seen.output_tokens / 2
    for step in seen.steps:
        time = ceiling.step(step.batch, context)
        rows.append(
            _rate(
                "decode_tokens_per_s",
                f"decode, batch {step.batch}",
                step.batch / time.seconds,
                step.batch / step.step_s,
            )
        )
        if time.bound == "bandwidth" and bandwidth is None:
            bandwidth = rows[-1].ratio
    return Measured(
        requests=seen.requests,
        prompt_tokens=seen.prompt_tokens,
        output_tokens=seen.output_tokens,
        rows=rows,
        compute_efficiency=_efficiency(compute),
        bandwidth_efficiency=_efficiency(bandwidth),
    )


def _bytes(name: str, label: str, theory: float, measured: float) -> MeasuredRow:
    return MeasuredRow(name=name, label=label, unit="bytes", theory=theory, measured=measured, ratio=measured / theory)


def _rate(name: str, label: str, theory: float, measured: float) -> MeasuredRow:
    return MeasuredRow(
        name=name, label=label, unit="tokens/s", theory=theory, measured=measured, ratio=measured / theory
    )


def _efficiency(ratio: float | None) -> float | None:
    """Within the bounds of a question: a ratio above 1 means wrong figures of the hardware."""
    return None if ratio is None else min(1.0, max(0.001, ratio))
