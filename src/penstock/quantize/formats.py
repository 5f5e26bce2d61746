"""How a quantized matrix is stored: the tensors and the `quantization_config` of each format. The other way round of
`model.weights.quantized_layers`."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from penstock.quantize.round_codes import Codes, Grid

Target = Literal["awq", "gptq", "int4", "int8", "fp8"]
TARGETS: dict[Target, str] = {
    "awq": "4 bits with zero points; input channels scaled by their inputs on a text",
    "gptq": "4 bits; rounding errors spread by the inputs on a text",
    "int4": "4 bits; rounded to nearest without a text (compressed-tensors W4A16)",
    "int8": "8 bits with a scale for each group (compressed-tensors W8A16), or for each row (W8A8)",
    "fp8": "e4m3 with a scale for each row (compressed-tensors FP8)",
}
CALIBRATED: tuple[Target, ...] = ("awq", "gptq")  # need a text; others are rounded to nearest without
GROUPED: tuple[Target, ...] = ("awq", "gptq", "int4")  # have a group size; int8 may have one

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # of eight outputs in a word, from the lowest bits on


def grid(target: Target, group: int) -> Grid:
    return Grid(8 if target == "int8" else 4, group, symmetric=target != "awq")


def store_codes(target: Target, made: Codes) -> dict[str, Tensor]:
    """The tensors of a layer, by the last part of their names."""
    scales = made.scales.half()
    if target == "awq":
        order = torch.tensor(AWQ_ORDER)
        return {
            "qweight": _words(_reorder(made.codes.T, order)),
            "qzeros": _words(_reorder(made.zeros.T, order)),
            "scales": scales.T.contiguous(),
        }
    if target == "gptq":
        cols = made.codes.shape[1]
        groups = torch.arange(cols, dtype=torch.int32) // (cols // made.scales.shape[1])
        return {
            "qweight": _words(made.codes).T.contiguous(),
            "qzeros": _words(made.zeros.T - 1),
            "scales": scales.T.contiguous(),
            "g_idx": groups,
        }
    return {
        "weight_packed": made.codes.contiguous().view(torch.int32) if target == "int8" else _words(made.codes),
        "weight_scale": scales,
        "weight_shape": torch.tensor(made.codes.shape),
    }


def config(target: Target, group: int) -> dict[str, Any]:
    """quantization_config. `group` 0: a scale for each row"""
    if target == "awq":
        return {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
    if target == "gptq":
        return {"quant_method": "gptq", "bits": 4, "group_size": group, "desc_act": False, "sym": True}
    form, bits, kind = {
        "int4": ("pack-quantized", 4, "int"),
        "int8": ("pack-quantized" if group else "int-quantized", 8, "int"),
        "fp8": ("float-quantized", 8, "float"),
    }[target]
    weights = {"num_bits": bits, "type": kind, "symmetric": True, "strategy": "group" if group else "channel"}
    if group:
        weights["group_size"] = group
    activations = {"num_bits": 8, "type": kind, "symmetric": True, "strategy": "token", "dynamic": True}
    scheme = {"targets": ["Linear"], "weights": weights, "input_activations": None if group else activations}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": {"group_0": scheme},
        "ignore": ["lm_head"],
    }


def _reorder(codes: Tensor, order: Tensor) -> Tensor:
    return codes.reshape(len(codes), -1, 8)[..., order].reshape(codes.shape)


def _words(codes: Tensor) -> Tensor:
    """[n, m] uint8 of 4 bits -> [n, m / 8] int32, the first in the lowest bits"""
    nibbles = codes.reshape(len(codes), -1, 2)
    octets = nibbles[..., 0] | nibbles[..., 1] << 4
    return octets.contiguous().view(torch.int32)
