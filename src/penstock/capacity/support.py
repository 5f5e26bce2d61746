"""What a plan assumes that Penstock itself cannot run yet. The arithmetic holds for other engines."""

from __future__ import annotations

from penstock.capacity.device import Device
from penstock.capacity.formats import FORMATS, KV_FORMATS, KV_PAIRS
from penstock.capacity.question import Question

# By kind of device: the formats that stay as they are in its memory (docs/QUANTIZATION.md). Others are dequantized.
WEIGHTS = {"gpu": tuple(FORMATS), "cpu": tuple(name for name in FORMATS if name != "fp8")}
KV = {
    "gpu": (*KV_FORMATS, *(pair for pair in KV_PAIRS if "float16" not in pair)),
    "cpu": ("float32", "float16", "int8", "int4", *(pair for pair in KV_PAIRS if "fp8" not in pair)),
}
DEQUANTIZED = {"gpu": "the compute dtype", "cpu": "float16"}


def formats_not_run() -> dict[str, dict[str, list[str]]]:
    """By kind of device and field of a question."""
    return {
        kind: {
            "weights": [name for name in FORMATS if name not in WEIGHTS[kind]],
            "kv": [name for name in (*KV_FORMATS, *KV_PAIRS) if name not in KV[kind]],
        }
        for kind in WEIGHTS
    }


def not_run(asked: Question, device: Device) -> list[str]:
    """One sentence for each assumption of the plan that Penstock does not meet."""
    kind, found = device.kind, []
    place = "a GPU" if kind == "gpu" else "a CPU"
    if device.maker != "NVIDIA" and kind == "gpu":
        found.append(f"{device.label}: Penstock runs on NVIDIA GPUs and on CPUs.")
    if asked.weights not in WEIGHTS[kind] or (asked.weights == "fp8" and device.fp8_flops is None):
        found.append(f"Weights in {asked.weights} on {place}: Penstock dequantizes them to {DEQUANTIZED[kind]}.")
    if asked.kv not in KV[kind]:
        found.append(f"A KV cache in {asked.kv} on {place}: Penstock has {', '.join(KV[kind])} there.")
    if asked.tensor_parallel > 1 and kind == "cpu":
        found.append(
            "Tensor parallelism: Penstock splits a model over processes of one machine, which share its memory."
        )
    return found
